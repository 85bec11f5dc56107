"""Tables: the tables into which tasks load data, with their rows, size and freshness."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from storeside.pages import destinations, movement
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/tables")
def overview(request: Request, tables: TablesDep, text: str = "") -> Response:
    """Show the tables, the freshest first."""
    rows = destinations.destinations(tables, text)
    return render(
        request, "tables.html", title="Tables", text=text, rows=rows, days=destinations.DAYS, most=destinations.MOST,
        known=[*movement.dags(tables), *(row["table"] for row in rows)],
    )  # fmt: skip
