"""``python -m storeside.stack``: see `storeside.stack.cli`."""

import sys

from storeside.stack.cli import main

sys.exit(main())
