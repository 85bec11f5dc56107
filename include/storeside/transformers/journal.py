"""Writes the failure journal to standard output; see `failures`."""

from __future__ import annotations

import os

from .failures import Failure, Shard

# AIStore returns the whole log at once, so a bucket in which all objects fail must not fill it.
MOST_LINES = 20_000
_STDOUT = 1


class Journal:
    """The failures of one server, of which it writes at most `most`."""

    def __init__(self, most: int = MOST_LINES) -> None:
        self._left = most

    def record(self, failure: Failure) -> None:
        """Write a failure with one system call, so that lines of concurrent writers do not mix."""
        if self._left > 0:
            os.write(_STDOUT, failure.line().encode() + b"\n")
        elif self._left == 0:
            os.write(_STDOUT, b"storeside: too many failures, further ones are not listed\n")
        self._left -= 1

    def record_shard(self, shard: Shard) -> None:
        """Write the line of a delivered shard, after its failures."""
        os.write(_STDOUT, shard.line().encode() + b"\n")
