"""Benchmarks: charts of whatever results there are."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from include.pages import benchmarks
from plugins.pages.access import TablesDep
from plugins.pages.render import render

router = APIRouter()


@router.get("/benchmarks")
def overview(request: Request, tables: TablesDep) -> Response:
    """Show the charts, and what would make those that are not there."""
    found = benchmarks.charts(tables)
    return render(request, "benchmarks.html", title="Benchmarks", charts=found, missing=benchmarks.missing(tables))
