"""Quality: the results of Great Expectations over time."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response

from storeside.pages import charts, movement, quality
from storeside.pages.tables import At
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/quality")
def overview(request: Request, tables: TablesDep, text: str = "", after: str = "", back: str = "") -> Response:
    """Show validations, newest first, with the expectations that were not met."""
    page = quality.verdicts(tables, At(after, back), text)
    points = [(v.recorded, 100 * v.invalid / v.rows if v.rows else 0.0) for v in reversed(page.rows)]
    return render(
        request, "quality.html", title="Quality", page=page, text=text,
        known=[*movement.dags(tables), *movement.places(tables)],
        line=charts.line("% of rows that are not valid", points, every=0),
    )  # fmt: skip


@router.get("/verdict")
def verdict(request: Request, tables: TablesDep, run: str, dag: str, task: str) -> Response:
    """Show all expectations of one validation, with counts and examples."""
    if (found := quality.verdict(tables, run, dag, task)) is None:
        raise HTTPException(404, "there is no validation of this task that you may see")
    return render(request, "verdict.html", title="Validation", v=found)
