"""The results of Great Expectations over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storeside import sql
from storeside.pages.movement import read_detail
from storeside.pages.tables import Page, Tables, page_of, read_cursor

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


def verdicts(tables: Tables, before: str = "") -> Page[Verdict]:
    """Return a page of validations, newest first. Raises BadInput for an invalid cursor."""
    ms, run, task = read_cursor(before, int, str, str) or (1 << 62, "", "")
    rows = tables.rows(sql.query("pages_verdicts"), before_ms=ms, before_run=run, before_task=task, limit=_SIZE + 1)
    found = [_verdict(row) for row in rows]
    return page_of(found, lambda v: (round(v.recorded * 1000), v.run_id, v.task_id), _SIZE)


def _verdict(row: dict[str, Any]) -> Verdict:
    detail = read_detail(row["detail"])
    expectations = tuple(e for e in detail.get("expectations", ()) if isinstance(e, dict))
    return Verdict(
        row["run_id"], row["dag_id"], row["task_id"], row["source"], row["state"], row["listed"], row["failed"],
        row["seconds"], row["recorded_ms"] / 1000, str(detail.get("summary", "")), expectations,
    )  # fmt: skip
