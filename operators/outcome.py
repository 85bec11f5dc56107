"""The end of a task that moves objects: its row in ``storeside.runs``, its log, and failure for failed objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.amounts import counted, others, rate, size
from storeside.operators.errors import OperatorInputError
from storeside.operators.shared import plain, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.ledger.objects import Ledger
    from storeside.operators.movement import MovementOperator
    from storeside.transfer.many.report import TableOutcome, TablesReport
    from storeside.transfer.many.tables_transfer import TablesTransfer
    from storeside.transfer.run.previewed import Preview
    from storeside.transform.state import Summary

# Characters of a reason that the detail of a run keeps for the pages.
_LONGEST_REASON = 300
_ROWS = 100  # of runs that one INSERT writes
_KNOWN = "failed before, and not tried again"


# The end of a task with failed objects.
OnFailed = Literal["fail", "report"]


def check_policy(value: str, name: str = "on_failed_objects") -> None:
    """Raise OperatorInputError unless the value of the argument `name` is ``fail`` or ``report``."""
    if value not in get_args(OnFailed):
        raise OperatorInputError(f"{name} {value!r}: use 'fail' or 'report'")


def log_load(log: Any, source: str, table: str, report: dict[str, Any]) -> None:
    """Log the outcome of a load, and its failures; `report` is the engine's `Report` as a dictionary."""
    not_loaded = others(
        (report["failed"], "failed"),
        (report["known_bad"], "failed for good before"),
        (report["skipped"], "loaded before"),
    )
    not_rows = others((report["rejected"], "rejected"), (report["filtered"], "filtered"))
    log.info(
        "%s -> %s: %s loaded%s; %s%s, %s, %.1f s%s",
        source, table, counted(report["loaded"], "object"), not_loaded, counted(report["rows"], "row"), not_rows,
        size(report["bytes"]), report["seconds"], rate(report["rows"], report["seconds"], "rows"),
    )  # fmt: skip
    _log_objects(log, "failed", report["failures"], report["failed"])
    _log_objects(log, _KNOWN, report["known_failures"], report["known_bad"])


def log_preview(log: Any, found: Preview) -> dict[str, Any]:
    """Log what a load would do, and return it as plain values."""
    from storeside.transfer.run.preview_text import preview_text, preview_values

    for line in preview_text(found).splitlines():
        log.info("%s", line)
    return dict(plain(preview_values(found)))


def log_drained(log: Any, report: dict[str, Any]) -> None:
    """Log the outcome of the messages of a queue; `report` is the engine's `Drained` as a dictionary."""
    log.info(
        "%s with %s: %d loaded (%s, %s)%s%s; the oldest message waited %.1f s",
        counted(report["messages"], "message"), counted(report["events"], "event"), report["loaded"],
        counted(report["rows"], "row"), size(report["bytes"]), others((report["skipped"], "skipped")),
        others((report["released"], "messages released"), (report["dead"], "sent to the dead-letter queue")),
        report["oldest_seconds"],
    )  # fmt: skip


def with_short_verdict(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a load for XCom: of the verdict on its rows, only the result and the numbers of rows."""
    if not (verdict := report.get("verdict")):
        return report
    return {**report, "verdict": {name: verdict[name] for name in ("success", "rows", "invalid", "suite")}}


def fail_for_objects(report: dict[str, Any], run: str) -> None:
    """Raise AirflowFailException if a load could not load objects, or not change source objects afterwards.

    `report` is the engine's `Report` as a dictionary, `run` the name of the run in the ledger.
    """
    if report["failed"]:
        key, reason = report["failures"][0]
        tried = report["loaded"] + report["failed"]
        others = "The others are loaded; clear" if report["loaded"] else "Clear"
        raise AirflowFailException(
            f"{report['failed']} of {tried} objects failed, such as {key!r}: {reason}."
            " All of them: SELECT key, reason FROM storeside.loads FINAL WHERE state = 'failed' AND run_id ="
            f" '{run}'. {others} this task to try the failed ones again."
        )
    if report["known_bad"]:
        raise _known_failures(report["known_bad"], report["listed"], report["known_failures"], "loaded")
    if report["left"]:
        key, reason = report["left_objects"][0]
        raise AirflowFailException(
            f"{counted(report['left'], 'object')} loaded, but unchanged in the source, such as {key!r}: {reason}."
            " All of them: SELECT key, reason FROM storeside.source_objects FINAL WHERE state = 'failed' AND run_id ="
            f" '{run}'. Correct the cause; then clear this task, or wait for the next run. No object is loaded again."
        )


def fail_for_messages(report: dict[str, Any], queue: str, bucket: str) -> None:
    """Raise AirflowFailException if messages went to the dead-letter queue, or S3 refused to change loaded objects.

    `report` is the engine's `Drained` as a dictionary.
    """
    if report["dead"]:
        raise AirflowFailException(
            f"{counted(report['dead'], 'message')} went to the dead-letter queue of {queue};"
            " storeside.events and the messages' attributes contain the reasons: fix the cause, then send the"
            " messages back with SqsRedriveDeadLettersOperator"
        )
    if report["left"]:
        raise AirflowFailException(
            f"{counted(report['left'], 'object')} loaded, but unchanged in s3://{bucket}: correct the cause,"
            " and the next run tries again. Reasons: SELECT key, reason FROM storeside.source_objects FINAL WHERE"
            " state = 'failed'"
        )


def known_detail(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``storeside.runs`` keeps, for the pages, of the objects that failed for good before the run.

    `report` is a `Report` or `Summary` of the engine as a dictionary.
    """
    known = [[name, reason[:_LONGEST_REASON]] for name, reason in report["known_failures"]]
    return {"known_bad": report["known_bad"], **({"known_failures": known} if known else {})}


def _left_out_detail(summary: Summary) -> dict[str, Any]:
    """Return what ``storeside.runs`` keeps, for the pages, of the objects that the transformer left out."""
    if not summary.left_out:
        return {}
    return {"left_out": summary.left_out, "left_out_reasons": dict(summary.left_out_reasons)}


def _log_objects(log: Any, what: str, first: Sequence[Sequence[str]], count: int) -> None:
    """Log the first of `count` objects, as (name, reason), and how many more there are."""
    for name, reason in first:
        log.warning("%s: %r: %s", what, name, reason, object=name)
    if count > len(first):
        log.warning("%s: %s more", what, counted(count - len(first), "object"))


def _known_failures(count: int, listed: int, known: Sequence[Sequence[str]], done: str) -> AirflowFailException:
    """Return the error of a task that left out objects because they failed for good in earlier runs.

    `known` has the first of them. It is empty if another run has processed all of them meanwhile.
    """
    such = "".join(f", such as {name!r}: {reason}" for name, reason in known[:1])
    return AirflowFailException(
        f"{count} of {listed} objects are not {done}, because they failed for good in earlier runs{such}. Correct the"
        " cause and set `retry_failed`, or accept that they are missing with the command storeside load"
        " --accept-failed, or on the page of the run."
    )


def finish(
    operator: MovementOperator, context: Context, tables: Ledger, kind: str, summary: Summary,
    on_failed_objects: str, done: str = "done", **told: Any,
) -> dict[str, Any]:  # fmt: skip
    """Record, log and return the outcome of a bucket's objects.

    `done` is the participle for processed objects in the log, and `told` overrides columns in metrics and assets.
    Raises AirflowFailException if objects failed, now or for good in earlier runs, and `on_failed_objects` is
    ``fail``.
    """
    row = {
        name: getattr(summary, name)
        for name in (
            "source", "destination", "listed", "skipped", "done", "failed", "bytes_in", "bytes_out", "seconds",
            "job_seconds",
        )
    }  # fmt: skip
    operator.record_end(
        context, tables,
        {
            "kind": kind, "state": "partial" if summary.failed or summary.known_bad else "done", **row,
            "detail": json.dumps(
                known_detail(asdict(summary)) | {"prepend": summary.prepend} | _left_out_detail(summary)
            ),
        },
        **told,
    )  # fmt: skip
    operator.log.info("%s", summary.line(done))
    if summary.ignored:
        operator.log.info("ignored markers: %s", ", ".join(f"{n} of {kind}" for kind, n in summary.ignored.items()))
    for reason, count in summary.left_out_reasons.items():
        operator.log.info("left out: %s: %s", counted(count, "object"), reason)
    _log_objects(operator.log, "failed", summary.examples, summary.failed)
    _log_objects(operator.log, _KNOWN, summary.known_failures, summary.known_bad)
    if summary.failed and on_failed_objects == "fail":
        name, reason = summary.examples[0]
        raise AirflowFailException(
            f"{summary.failed} of {summary.done + summary.failed} objects failed, such as {name!r}: {reason}."
            " All of them: SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed' AND run_id ="
            f" '{run_key(context)}'. The others are {done}; clear this task to try the failed ones again."
        )
    if summary.known_bad and on_failed_objects == "fail":
        raise _known_failures(summary.known_bad, summary.listed, summary.known_failures, done)
    return dict(plain(summary.to_dict()))


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
