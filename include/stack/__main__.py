"""``python -m include.stack``: see `include.stack.cli`."""

import sys

from include.stack.cli import main

sys.exit(main())
