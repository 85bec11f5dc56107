"""The problems that an alert has sent, so that it does not repeat a standing problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.alerts.facts import Facts, Problem
from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

_COLUMNS = {
    "alert": "String", "notifier": "String", "condition": "String", "problem": "String",
    "state": "Enum8('sent' = 1, 'over' = 2)", "level": "Float64", "run_id": "String", "sent_at": "DateTime64(3)",
}  # fmt: skip


@dataclass(frozen=True)
class _Sent:
    level: float
    run: str
    hours: float  # since then
    at: datetime


class Memory:
    """The open problems of one alert, by notifier, in ``storeside.alerts``.

    A problem is due if the notifier has not sent it; if it got larger since; or, with `repeat_hours`, if the notifier
    sent it that long ago. A problem that its condition no longer finds is over; after that, it is a new one.
    """

    def __init__(self, facts: Facts, alert: str, repeat_hours: float = 0.0) -> None:
        self.facts = facts
        self.client: HttpClient = facts.client
        self.alert = alert
        self.repeat_hours = repeat_hours
        rows = self.client.query(sql.query("alerts_sent"), parameters={"alert": alert}).result_rows
        self._sent = {
            (str(notifier), str(condition), str(problem)): _Sent(
                float(level), str(run), float(hours), datetime.fromtimestamp(int(ms) / 1000, UTC)
            )
            for notifier, condition, problem, level, run, hours, ms in rows
        }

    def is_news(self, notifier: str, problem: Problem) -> bool:
        """Return whether the problem is new or larger than this notifier has sent."""
        sent = self._sent.get((notifier, problem.condition, problem.key))
        if sent is None or problem.level > sent.level:
            return True
        return problem.by_objects and sent.run != self.facts.run and self._has_new_failures(sent.run)

    def is_due(self, notifier: str, problem: Problem) -> bool:
        """Return whether this notifier has to send the problem, for the first time or again."""
        if self.is_news(notifier, problem):
            return True
        sent = self._sent[notifier, problem.condition, problem.key]
        return bool(self.repeat_hours) and sent.hours >= self.repeat_hours

    def _has_new_failures(self, before: str) -> bool:
        answer = self.client.query(
            sql.query("alerts_new_failures"), parameters={"run": self.facts.run, "before": before}
        )
        return bool(first_row(answer)[0])

    def record(
        self, notifier: str, found: Iterable[Problem], sent: Collection[Problem], judged: Collection[str]
    ) -> None:
        """Record the problems that a notifier has sent now, the standing problems, and the ended ones.

        `judged` are the conditions with a result: only their problems can be over.
        """
        now, found = datetime.now(UTC), list(found)
        rows: list[list[Any]] = []
        for problem in found:
            key = (notifier, problem.condition, problem.key)
            at = now if problem in sent or key not in self._sent else self._sent[key].at
            rows.append([self.alert, *key, "sent", problem.level, self.facts.run, at])
        standing = {(notifier, problem.condition, problem.key) for problem in found}
        for key, before in self._sent.items():
            if key[0] == notifier and key not in standing and key[1] in judged:
                rows.append([self.alert, *key, "over", before.level, self.facts.run, before.at])
        if rows:
            self.client.insert(
                "storeside.alerts", rows, column_names=list(_COLUMNS), column_type_names=list(_COLUMNS.values()),
                settings={"async_insert": 0},
            )  # fmt: skip
