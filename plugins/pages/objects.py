"""Objects: find one, and see where it came from and where its rows are."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from include.pages import objects
from include.pages.objects import Place
from plugins.pages.access import TablesDep
from plugins.pages.render import render

router = APIRouter()


@router.get("/objects")
def find(
    request: Request, tables: TablesDep, text: str = "", bucket: str = "", status: str = "", after: str = "",
    after_load: str = "",
) -> Response:  # fmt: skip
    """Show the objects with a text in their names."""
    return render(
        request, "objects.html", title="Objects", text=text, bucket=bucket, status=status,
        page=objects.search(tables, text, bucket, status, after),
        loads=objects.search_loads(tables, text, bucket, status, after_load),
        after=after, after_load=after_load,
    )  # fmt: skip


@router.get("/object")
def one(request: Request, tables: TablesDep, bucket: str, object: str) -> Response:
    """Show the lineage of one object."""
    place = Place(bucket, object)
    found = objects.lineage(tables, place)
    return render(request, "object.html", title="Object", found=found, place=place, code=200 if found.known else 404)
