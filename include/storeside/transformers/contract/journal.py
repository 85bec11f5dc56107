"""Writes the failure journal to standard output; see `failures`."""

from __future__ import annotations

import os
import time

from .failures import Failure, Shard, Unlisted

# AIStore returns the whole log at once, so a bucket in which all objects fail must not fill it.
MOST_LINES = 20_000
WINDOW_SECONDS = 3600
# The interval of marks that failures are left out.
_MARK_SECONDS = 1.0
_STDOUT = 1


class Journal:
    """The failures of one server, of which it writes at most `most` in `WINDOW_SECONDS`.

    While it leaves out failures, it writes the mark `Unlisted` instead: one a second.
    """

    def __init__(self, most: int = MOST_LINES) -> None:
        self._most = self._left = most
        self._window = self._marked = 0.0

    def record(self, failure: Failure) -> None:
        """Write a failure with one system call, so that lines of concurrent writers do not mix."""
        now = time.time()
        if not 0 <= now - self._window < WINDOW_SECONDS:
            self._window, self._left = now, self._most
        if self._left > 0:
            self._left -= 1
            os.write(_STDOUT, failure.line().encode() + b"\n")
        elif not now < self._marked <= now + _MARK_SECONDS:
            self._marked = now + _MARK_SECONDS
            os.write(_STDOUT, Unlisted(self._marked).line().encode() + b"\n")

    def record_shard(self, shard: Shard) -> None:
        """Write the line of a delivered shard, after its failures."""
        os.write(_STDOUT, shard.line().encode() + b"\n")
