"""Benchmarks: charts of the results that exist."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from storeside.pages import benchmarks
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/benchmarks")
def overview(request: Request, tables: TablesDep) -> Response:
    """Show the charts, and how to produce missing charts."""
    found = benchmarks.charts(tables)
    return render(request, "benchmarks.html", title="Benchmarks", charts=found, missing=benchmarks.missing(tables))
