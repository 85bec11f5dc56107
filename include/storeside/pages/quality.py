"""The results of Great Expectations over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storeside import sql
from storeside.pages.movement import read_detail
from storeside.pages.tables import FIRST, At, Page, Tables, directed

_SIZE = 25
# The columns of the check of the whole speech manifest in earlier versions.
SUMMARY_COLUMNS = ("rows", "expected_rows", "distinct_objects", "distinct_buckets", "seconds")


@dataclass(frozen=True)
class Verdict:
    """One validation of rows.

    :param run_id: name of the run in the ledger
    :param dag_id: the DAG
    :param task_id: the task that validated
    :param source: URI of the source
    :param destination: URI of the table; empty for the speech manifest in runs of earlier versions
    :param state: passed, failed, or quarantined if the invalid rows were quarantined and the others published
    :param rows: rows checked
    :param invalid: invalid rows among them
    :param seconds: duration of the validation
    :param recorded: time when it was recorded, in seconds since the epoch
    :param suite: name of the suite; empty for the speech manifest in runs of earlier versions
    :param summary: the verdict in one sentence
    :param expectations: results of the expectations, as Great Expectations describes them
    :param by_object: only the objects with invalid rows failed, and the others were published
    """

    run_id: str
    dag_id: str
    task_id: str
    source: str
    destination: str
    state: str
    rows: int
    invalid: int
    seconds: float
    recorded: float
    suite: str
    summary: str
    expectations: tuple[dict[str, Any], ...]
    by_object: bool = False

    @property
    def failed(self) -> tuple[dict[str, Any], ...]:
        """The expectations that are not met."""
        return tuple(e for e in self.expectations if not e.get("success"))

    def is_summary(self, expectation: dict[str, Any]) -> bool:
        """Whether it is about the whole speech manifest: its examples are numbers of rows, not objects."""
        columns = expectation.get("columns") or ()
        return not self.suite and set(columns) <= set(SUMMARY_COLUMNS)

    @property
    def bucket(self) -> str:
        """The URI of the bucket of the validated objects."""
        return "/".join(self.source.split("/", 3)[:3])


def verdicts(tables: Tables, at: At = FIRST, text: str = "", size: int = _SIZE) -> Page[Verdict]:
    """Return a page of validations, newest first.

    `text` is a part of the name of a DAG, or of the source or destination of the validated data. Raises BadInput for
    an invalid cursor.
    """
    cursor = at.cursor(int, str, str)
    ms, run, task = cursor or (0, "", "")
    rows = tables.rows(
        directed(sql.query("pages_verdicts"), descending=not at.back),
        text=text, is_first=cursor is None, before_ms=ms, before_run=run, before_task=task, limit=size + 1,
        run_id="", dag_id="", task_id="",
    )  # fmt: skip
    found = [_verdict(row) for row in rows]
    return at.page(found, lambda v: (round(v.recorded * 1000), v.run_id, v.task_id), size)


def verdict(tables: Tables, run_id: str, dag_id: str, task_id: str) -> Verdict | None:
    """Return the validation of one task; None if there is none that the visitor may see."""
    rows = tables.rows(
        directed(sql.query("pages_verdicts"), descending=True),
        text="", is_first=True, before_ms=0, before_run="", before_task="", limit=1,
        run_id=run_id, dag_id=dag_id, task_id=task_id,
    )  # fmt: skip
    return _verdict(rows[0]) if rows else None


def _verdict(row: dict[str, Any]) -> Verdict:
    detail = read_detail(row["detail"])
    is_load = row["kind"] in ("load", "events")
    found = detail.get("verdict") if is_load else {**detail, "rows": row["listed"], "invalid": row["failed"]}
    found = found if isinstance(found, dict) else {}
    expectations = tuple(e for e in found.get("expectations", ()) if isinstance(e, dict))
    state = "passed" if (found.get("success") if is_load else row["state"] == "done") else "failed"
    if state == "failed" and found.get("quarantine"):
        state = "quarantined"
    return Verdict(
        row["run_id"], row["dag_id"], row["task_id"], row["source"], row["destination"], state,
        int(found.get("rows", 0)), int(found.get("invalid", 0)), row["seconds"], row["recorded_ms"] / 1000,
        str(found.get("suite", "")), str(found.get("summary", "")), expectations,
        bool(found.get("by_object", row["kind"] == "events")),  # earlier versions did not record it
    )  # fmt: skip
