"""Conditions of alerts. Each finds problems of a run, a table or a queue, or none; None if it lacks records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Protocol

from storeside import sql
from storeside.alerts.errors import AlertInputError
from storeside.alerts.facts import MOST_EXAMPLES, Example, Facts, Problem
from storeside.amounts import counted
from storeside.events.ledger import EventLedger
from storeside.sql.answers import first_row

# Fewer earlier runs say nothing about the usual volume.
_FEWEST_RUNS = 5
# Differences within this many standard deviations are usual. Where sizes vary by 30 %, one healthy run in 5,000 is
# outside, and with four deviations of ten runs one in 300: so few runs estimate a deviation roughly.
_USUAL_DEVIATIONS = 5
# Standard deviation of a normal distribution whose median absolute deviation is 1.
_DEVIATION = 1.4826


class Condition(Protocol):
    """A condition; its `name` is the same in every run."""

    @property
    def name(self) -> str:
        """The condition in the ledger and in messages."""

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return the problems; None if nothing shows whether there are any, such as a task without a record."""


@dataclass(frozen=True)
class FailedTasks:
    """Tasks of the run have failed. An alert sends a task that fails in each run once, until it succeeds."""

    name: ClassVar[str] = "failed tasks"

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return one problem per failed task."""
        return [
            Problem(task, f"task {task} failed{f': {error}' if error else ''}")
            for task, error in sorted(facts.failed_tasks.items())
        ]


@dataclass(frozen=True)
class FailedObjects:
    """Objects failed in the run. An alert sends it again when an object fails that did not fail in the run before."""

    name: ClassVar[str] = "failed objects"

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return the number of failed objects, and the first of them with reasons."""
        rows = facts.rows(sql.query("alerts_failures"), limit=MOST_EXAMPLES)
        totals = facts.totals
        if not (rows or totals.tasks):
            return None
        failed = max(int(rows[0][2]) if rows else 0, totals.failed)
        if not failed:
            return []
        tried = totals.done + totals.failed
        what = (
            f"{failed:,} of {counted(tried, 'object')} failed"
            if tried >= failed
            else f"{counted(failed, 'object')} failed"
        )
        return [Problem("", what, _examples(rows), level=failed, by_objects=bool(rows))]


@dataclass(frozen=True)
class KnownFailures:
    """Tasks of the run left out objects that failed for good in earlier runs, and that no user accepted.

    :param at_least: smallest number of such objects that is a problem
    """

    at_least: int = 1
    name: ClassVar[str] = "known failures"

    def __post_init__(self) -> None:
        if self.at_least < 1:
            raise AlertInputError(f"at_least {self.at_least!r}: write a whole number from 1")

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return their number. An alert sends a larger number again."""
        totals = facts.totals
        if not totals.tasks:
            return None
        count = totals.known_bad
        if count < self.at_least:
            return []
        what = (
            f"{counted(count, 'object')} left out, because they failed for good in earlier runs: correct the cause"
            " and set retry_failed, or accept them on the page of the run"
        )
        return [Problem("", what, totals.known, level=count)]


@dataclass(frozen=True)
class Freshness:
    """A table got no new rows for some time, from any run of any DAG.

    :param table: the table, as ``database.table``
    :param hours: longest time without new rows
    """

    table: str
    hours: float

    def __post_init__(self) -> None:
        _require_positive("hours", self.hours)
        database, _, table = self.table.partition(".")
        if not (database and table):
            raise AlertInputError(f"table {self.table!r}: write it as database.table")

    @property
    def name(self) -> str:
        """The condition with its table."""
        return f"freshness of {self.table}"

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return the age of the newest rows if they are too old."""
        rows = facts.rows(sql.query("alerts_freshness"), table=self.table)
        if not rows:
            return [Problem("", f"{self.table} never got rows from a load: check the name of the table")]
        hours = float(rows[0][0])
        if hours <= self.hours:
            return []
        return [Problem("", f"{self.table} got no new rows for {_hours(hours)}, and may be {_hours(self.hours)} old")]


@dataclass(frozen=True)
class Volume:
    """A task moved far less or far more than usual: rows if it loads rows, else objects.

    The usual volume is the median of the task's last runs that moved anything; of these, there must be five. Three
    kinds of differences are no problem: up to three times the square root of the median, which chance explains in
    small numbers; up to five standard deviations of the last runs, estimated by their median absolute deviation; and
    a run that moved nothing, where every fifth run moves nothing.

    :param below: share of the usual volume below which a run is a problem; 0 accepts any smaller volume
    :param above: multiple of the usual volume above which a run is a problem
    :param runs: number of the last runs to compare with
    :param task_id: the task; empty for each task of the run
    """

    below: float = 0.5
    above: float = 3.0
    runs: int = 30
    task_id: str = ""
    name: ClassVar[str] = "volume"

    def __post_init__(self) -> None:
        if not 0 <= self.below < 1:
            raise AlertInputError(f"below {self.below!r}: write a share from 0 to less than 1")
        if not self.above > 1:
            raise AlertInputError(f"above {self.above!r}: write a number greater than 1")
        if self.runs < _FEWEST_RUNS:
            raise AlertInputError(f"runs {self.runs!r}: write a whole number from {_FEWEST_RUNS}")

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return each task with an unusual volume; None if no task of the run is recorded."""
        rows = facts.rows(sql.query("alerts_volumes"), task=self.task_id, runs=self.runs)
        if not rows:
            return None
        problems = []
        for task, has_rows, volume, before in rows:
            if what := self.compare(int(volume), [int(value) for value in before]):
                unit = "row" if has_rows else "object"
                problems.append(Problem(f"{task} {what[0]}", f"task {task}: {counted(int(volume), unit)}, {what[1]}"))
        return problems

    def compare(self, volume: int, before: Sequence[int]) -> tuple[str, str] | None:
        """Return ``low`` or ``high`` and a sentence about the usual volume; None if this volume is usual."""
        moved = [value for value in before if value]
        if len(moved) < _FEWEST_RUNS:
            return None
        if not volume and 5 * (len(before) - len(moved)) >= len(before):
            return None
        usual = median(moved)
        if abs(volume - usual) <= 3 * math.sqrt(usual) or (volume and _is_within_spread(volume, usual, moved)):
            return None
        text = f"while the median of the last {len(moved)} runs is {usual:,.0f}"
        if volume < self.below * usual:
            return "low", text
        return ("high", text) if volume > self.above * usual else None


@dataclass(frozen=True)
class DeadLetters:
    """A queue has dead letters: messages that could not be processed.

    :param queue: name or URL of the queue, not of its dead-letter queue
    :param more_than: number of dead letters that is no problem
    """

    queue: str
    more_than: int = 0

    def __post_init__(self) -> None:
        _require_queue(self.queue)
        if self.more_than < 0:
            raise AlertInputError(f"more_than {self.more_than!r}: write a whole number from 0")

    @property
    def name(self) -> str:
        """The condition with its queue."""
        return f"dead letters of {_last(self.queue)}"

    def look(self, facts: Facts) -> list[Problem] | None:
        """Return the number of dead letters, and the newest with reasons. An alert sends a larger number again."""
        queue = facts.queue(self.queue)
        depth = queue.dead_letters.depth()
        if (count := depth.visible + depth.in_flight) <= self.more_than:
            return []
        limit = min(count, MOST_EXAMPLES)
        rows = facts.rows(sql.query("alerts_dead"), queue=queue.url, limit=limit)
        what = f"queue {queue.name} has {counted(count, 'dead letter')}: correct the cause, then send them back"
        return [Problem("", what, _examples(rows), level=count, queue=queue.name)]


@dataclass(frozen=True)
class Lag:
    """Messages of a queue wait too long.

    SQS does not report their age. It is known from messages that a task or sensor has received; for others it counts
    from when a task, a sensor or this condition first found the queue not empty.

    :param queue: name or URL of the queue
    :param minutes: longest time that a message may wait
    """

    queue: str
    minutes: float

    def __post_init__(self) -> None:
        _require_queue(self.queue)
        _require_positive("minutes", self.minutes)

    @property
    def name(self) -> str:
        """The condition with its queue."""
        return f"lag of {_last(self.queue)}"

    def look(self, facts: Facts) -> list[Problem] | None:
        """Record the depth of the queue, and return the age of its oldest message if that is too old."""
        queue = facts.queue(self.queue)
        depth = queue.depth()
        EventLedger(facts.client, queue.url, "").record_depth(queue)
        row = first_row(facts.client.query(_AGE, parameters={"queue": queue.url}))
        minutes = float(row[0]) / 60
        if depth.is_empty or minutes <= self.minutes:
            return []
        what = (
            f"queue {queue.name}: the oldest message waits for {minutes:,.0f} min, and may wait for"
            f" {self.minutes:,.4g} min; {counted(depth.visible, 'message')} can be received"
        )
        return [Problem("", what, queue=queue.name)]


_AGE = "SELECT argMax(oldest_seconds, recorded_at) FROM storeside.queue_depths WHERE queue = {queue:String}"


def _is_within_spread(volume: int, usual: float, moved: Sequence[int]) -> bool:
    """Return whether the ratio to the usual volume is one that the last runs' ratios make usual."""
    spread = median(abs(math.log(value / usual)) for value in moved)
    return abs(math.log(volume / usual)) <= _USUAL_DEVIATIONS * _DEVIATION * spread


def _examples(rows: Sequence[Sequence[object]]) -> tuple[Example, ...]:
    return tuple(Example(str(name), str(reason)) for name, reason, *_ in rows)


def _hours(hours: float) -> str:
    return f"{hours:,.4g} h" if hours < 48 else f"{hours / 24:,.1f} days"


def _last(queue: str) -> str:
    """Return the name of a queue, without the account in its URL."""
    return queue.rpartition("/")[2]


def _require_queue(queue: str) -> None:
    if not _last(queue):
        raise AlertInputError(f"queue {queue!r}: write the name or the URL of a queue")


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise AlertInputError(f"{name} {value!r}: write a number greater than 0")
