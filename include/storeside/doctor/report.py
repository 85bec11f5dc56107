"""Runs checks one by one, each with a time limit, and reports each finding at once."""

from __future__ import annotations

import contextvars
import queue
from collections.abc import Callable, Iterator
from threading import Thread
from typing import TypeVar

from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import TIME_OUT

_Connected = TypeVar("_Connected")
_Result = TypeVar("_Result")


class Report:
    """Passes each finding to `tell` at once. A check may take `seconds`."""

    def __init__(self, seconds: float, tell: Callable[[Finding], None]) -> None:
        self.seconds = seconds
        self._tell = tell

    def add(self, finding: Finding) -> bool:
        """Report a finding and return whether the check passed."""
        self._tell(finding)
        return finding.state == "ok"

    def check(
        self, system: System, name: str, do: Callable[[], Finding], seconds: float = 0, remedy: str = ""
    ) -> bool:
        """Run a check and return whether it passed; `seconds` extend the limit of a check that waits on purpose.

        `remedy` precedes the usual one if the check exceeds its limit.
        """
        limit = self.seconds + seconds
        try:
            return self.add(_limited(do, limit))
        except queue.Empty:
            return self.add(_unanswered(system, name, limit, remedy))

    def connect(
        self, system: System, name: str, do: Callable[[], tuple[_Connected | None, Finding]]
    ) -> _Connected | None:
        """Run a check that also connects; return the client for later checks, or None if the check did not pass."""
        made: list[_Connected | None] = [None]

        def keep() -> Finding:
            made[0], finding = do()
            return finding

        return made[0] if self.check(system, name, keep) else None

    def each(self, system: System, checks: Iterator[Finding]) -> None:
        """Run the checks of an iterator. A check that exceeds its time ends the iteration."""
        last = "the start"
        try:
            while finding := _limited(lambda: next(checks, None), self.seconds):
                self.add(finding)
                last = finding.check
        except queue.Empty:
            self.add(_unanswered(system, f"after {last}", self.seconds))


def _unanswered(system: System, name: str, seconds: float, remedy: str = "") -> Finding:
    remedies = "; or ".join(filter(None, (remedy, TIME_OUT)))
    return system.failed(name, f"no answer within {seconds:g} s", remedies)


def _limited(do: Callable[[], _Result], seconds: float) -> _Result:
    """Return the result of a call in a thread; after `seconds` abandon the thread, which ends by its own time-outs.

    Raises queue.Empty after the time limit, or the error of the call.
    """
    results: queue.Queue[tuple[_Result | None, BaseException | None]] = queue.Queue()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.put((context.run(do), None))
        except BaseException as e:
            results.put((None, e))

    Thread(target=run, name="doctor-check", daemon=True).start()
    result, error = results.get(timeout=seconds)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
