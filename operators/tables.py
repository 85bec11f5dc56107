"""The end of a task that loads many tables: a row in ``storeside.runs`` for each changed table, the log, failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.amounts import counted, others, size
from storeside.operators.outcome import known_detail

if TYPE_CHECKING:
    from storeside.ledger.objects import Ledger
    from storeside.transfer.many.report import TableOutcome, TablesReport
    from storeside.transfer.many.tables_transfer import TablesTransfer

# Rows that one INSERT writes.
_ROWS = 100


def transfer_of(given: tuple[Any, ...], run: str, allowed: Callable[[str], str]) -> TablesTransfer:
    """Return the engine's run for a request with clients for it; see `TablesTransfer`."""
    from storeside.transfer.many.tables_transfer import TablesTransfer

    request, client, reader, own_tables, servers = given
    return TablesTransfer(request, client, reader, run, own_tables, servers, allowed)


class TableRuns:
    """Records the load of each table as the pages show it: as a part ``task[database.table]`` of the task.

    `columns` are those of the task. The task's own row has the objects of no other row, so that sums are right.
    """

    def __init__(self, ledger: Ledger, columns: Mapping[str, str]) -> None:
        self.ledger, self.columns = ledger, columns
        self._waiting: list[dict[str, Any]] = []
        self._unchanged = self._unnamed = 0

    def add(self, outcome: TableOutcome) -> None:
        """Record the outcome of a table, unless it is unchanged."""
        if outcome.is_unchanged:
            self._unchanged += outcome.listed
        elif not outcome.table:
            self._unnamed += outcome.listed
        else:
            self._waiting.append(self._row(outcome))
            if len(self._waiting) >= _ROWS:
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        rows, self._waiting = self._waiting, []
        self.ledger.record_loads(rows)

    def _row(self, outcome: TableOutcome) -> dict[str, Any]:
        row = {
            **self.columns, "task_id": f"{self.columns['task_id']}[{outcome.table}]", "kind": "load",
            "source": outcome.source, "destination": f"clickhouse://{outcome.table}",
        }  # fmt: skip
        report = outcome.report
        if report is None:
            detail: dict[str, Any] = {"error": outcome.error[:500]}
            counts = {"listed": outcome.listed, "skipped": 0, "done": 0, "failed": outcome.listed, "bytes_in": 0}
            return {**row, "state": "failed", **counts, "seconds": 0.0, "detail": json.dumps(detail)}
        detail = {
            name: getattr(report, name) for name in ("rows", "rejected", "filtered", "handled", "left", "removed")
        }
        detail |= known_detail(vars(report))
        if report.verdict:
            detail["verdict"] = report.verdict
        return {
            **row, "state": "partial" if report.failed or report.known_bad else "done", "listed": report.listed,
            "skipped": report.skipped, "done": report.loaded, "failed": report.failed, "bytes_in": report.bytes,
            "seconds": report.seconds, "detail": json.dumps(detail),
        }  # fmt: skip

    def rest(self, source: str, table: str, report: TablesReport) -> dict[str, Any]:
        """Return the row of the task itself, with the objects of unchanged tables and of keys that name no table."""
        detail = {name: getattr(report, name) for name in ("tables", "changed", "unchanged", "failed_tables")}
        return {
            "kind": "load", "source": source, "destination": f"clickhouse://{table}",
            "state": "partial" if report.failed_tables else "done", "listed": self._unchanged + self._unnamed,
            "skipped": self._unchanged, "done": 0, "failed": self._unnamed, "bytes_in": 0,
            "seconds": report.seconds, "detail": json.dumps(detail),
        }  # fmt: skip

    def log(self, log: Any, report: TablesReport) -> None:
        """Log the totals, and the first failed tables."""
        log.info(
            "%s: %s changed%s; %s, %s, %s, %.1f s", counted(report.tables, "table"), f"{report.changed:,}",
            others((report.unchanged, "unchanged"), (report.failed_tables, "failed")),
            counted(report.loaded, "object"), counted(report.rows, "row"), size(report.bytes), report.seconds,
        )  # fmt: skip
        for table, reason in report.failures:
            log.warning("failed: %r: %s", table, reason, object=table)
        if (more := report.failed_tables - len(report.failures)) > 0:
            log.warning("failed: %s more", counted(more, "table"))


def fail_for_tables(report: TablesReport, run: str, *, must_be_complete: bool) -> None:
    """Raise AirflowException if a retry may load tables that failed, and AirflowFailException if none will.

    Without `must_be_complete`, failures for good are no failure of the task. `run` is the run's name in the ledger.
    """
    if not report.failed_tables or not (report.again or must_be_complete):
        return
    table, reason = report.failures[0]
    kind = AirflowException if report.again else AirflowFailException
    raise kind(
        f"{report.failed_tables} of {report.tables} tables failed, such as {table!r}: {reason}. The others are"
        " loaded. All of them: SELECT task_id, detail FROM storeside.runs FINAL WHERE state != 'done' AND run_id ="
        f" '{run}'; objects: SELECT destination, key, reason FROM storeside.loads FINAL WHERE state = 'failed' AND"
        f" run_id = '{run}'. Correct the cause, and clear this task."
    )
