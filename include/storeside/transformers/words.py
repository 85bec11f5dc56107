"""The words of a text."""

from __future__ import annotations

import re

# Letters and digits of any script, with apostrophes and hyphens between them.
WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
