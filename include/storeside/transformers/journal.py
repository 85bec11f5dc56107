"""Writes the failure journal to the log; see `failures`."""

from __future__ import annotations

import os

from .failures import Failure

# A bucket of objects that all fail must not fill the log, which AIStore returns in one piece.
MOST_LINES = 20_000
_STDOUT = 1


class Journal:
    """The failures of one server; it lists at most `most` of them."""

    def __init__(self, most: int = MOST_LINES) -> None:
        self._left = most

    def record(self, failure: Failure) -> None:
        """List a failure, with one system call per line, so that lines never mix."""
        if self._left > 0:
            os.write(_STDOUT, failure.line().encode() + b"\n")
        elif self._left == 0:
            os.write(_STDOUT, b"storeside: too many failures, the rest is not listed\n")
        self._left -= 1
