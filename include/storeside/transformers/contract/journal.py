"""Writes the failure journal to standard output; see `failures`."""

from __future__ import annotations

import os
import time

from .failures import Facts, Failure, LeftOut, Shard, Unlisted

# AIStore returns the whole log at once, so a bucket in which all objects fail must not fill it.
MOST_LINES = 20_000
# Left-out objects have a separate, higher limit: a filter may leave out most of a bucket.
MOST_LEFT_OUT = 100_000
# So have facts of objects with a result.
MOST_FACTS = 100_000
WINDOW_SECONDS = 3600
# The interval of marks that failures are left out.
_MARK_SECONDS = 1.0
_STDOUT = 1


class _Budget:
    """How many lines of a kind may be written in `WINDOW_SECONDS`."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._window = 0.0

    def take(self, now: float) -> bool:
        if not 0 <= now - self._window < WINDOW_SECONDS:
            self._window, self._left = now, self._most
        self._left -= 1
        return self._left >= 0


class Journal:
    """The failures of one server, of which it writes at most `most` in `WINDOW_SECONDS`.

    While it omits failures, it writes the mark `Unlisted` instead: one a second. It writes at most
    `most_left_out` of the objects that the transformer left out in that time, and `MOST_FACTS` facts of others.
    """

    def __init__(self, most: int = MOST_LINES, most_left_out: int = MOST_LEFT_OUT) -> None:
        self._failures = _Budget(most)
        self._left_out = _Budget(most_left_out)
        self._facts = _Budget(MOST_FACTS)
        self._marked = 0.0

    def record(self, failure: Failure) -> None:
        """Write a failure with one system call, so that lines of concurrent writers do not mix."""
        now = time.time()
        if self._failures.take(now):
            os.write(_STDOUT, failure.line().encode() + b"\n")
        elif not now < self._marked <= now + _MARK_SECONDS:
            self._marked = now + _MARK_SECONDS
            os.write(_STDOUT, Unlisted(self._marked).line().encode() + b"\n")

    def record_left_out(self, left_out: LeftOut) -> None:
        """Write an object or member that the transformer left out."""
        if self._left_out.take(time.time()):
            os.write(_STDOUT, left_out.line().encode() + b"\n")

    def record_facts(self, facts: Facts) -> None:
        """Write the facts of an object with a result."""
        if facts.facts and self._facts.take(time.time()):
            os.write(_STDOUT, facts.line().encode() + b"\n")

    def record_shard(self, shard: Shard) -> None:
        """Write the line of a delivered shard, after its failures."""
        os.write(_STDOUT, shard.line().encode() + b"\n")
