"""The results of Great Expectations over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storeside import sql
from storeside.pages.movement import read_detail
from storeside.pages.tables import FIRST, At, Page, Tables, directed

_SIZE = 25


@dataclass(frozen=True)
class Verdict:
    """One validation: the number of rows, the number of invalid rows, and its expectations."""

    run_id: str
    dag_id: str
    task_id: str
    source: str
    state: str
    rows: int
    invalid: int
    seconds: float
    recorded: float
    summary: str
    expectations: tuple[dict[str, Any], ...]

    @property
    def failed(self) -> tuple[dict[str, Any], ...]:
        """The expectations that are not met."""
        return tuple(e for e in self.expectations if not e.get("success"))


def verdicts(tables: Tables, at: At = FIRST, text: str = "") -> Page[Verdict]:
    """Return a page of validations, newest first; `text` is a part of the name of a DAG or of the validated data.

    Raises BadInput for an invalid cursor.
    """
    cursor = at.cursor(int, str, str)
    ms, run, task = cursor or (0, "", "")
    rows = tables.rows(
        directed(sql.query("pages_verdicts"), descending=not at.back),
        text=text, is_first=cursor is None, before_ms=ms, before_run=run, before_task=task, limit=_SIZE + 1,
    )  # fmt: skip
    found = [_verdict(row) for row in rows]
    return at.page(found, lambda v: (round(v.recorded * 1000), v.run_id, v.task_id), _SIZE)


def _verdict(row: dict[str, Any]) -> Verdict:
    detail = read_detail(row["detail"])
    expectations = tuple(e for e in detail.get("expectations", ()) if isinstance(e, dict))
    return Verdict(
        row["run_id"], row["dag_id"], row["task_id"], row["source"], row["state"], row["listed"], row["failed"],
        row["seconds"], row["recorded_ms"] / 1000, str(detail.get("summary", "")), expectations,
    )  # fmt: skip
