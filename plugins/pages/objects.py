"""Objects: find an object, and show its origin and where its rows are."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from storeside.pages import objects
from storeside.pages.objects import Place
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/objects")
def find(
    request: Request, tables: TablesDep, text: str = "", bucket: str = "", status: str = "", anywhere: bool = False,
    after: str = "", after_load: str = "",
) -> Response:  # fmt: skip
    """Show the objects that match the search."""
    wanted = objects.Search(text, bucket, status, anywhere)
    return render(
        request, "objects.html", title="Objects", wanted=wanted, after=after, after_load=after_load,
        same={"text": text, "bucket": bucket, "status": status, "anywhere": "true" if anywhere else ""},
        page=objects.search(tables, wanted, after), loads=objects.search_loads(tables, wanted, after_load),
    )  # fmt: skip


@router.get("/object")
def one(request: Request, tables: TablesDep, bucket: str, object: str) -> Response:
    """Show the lineage of one object."""
    place = Place(bucket, object)
    found = objects.lineage(tables, place)
    return render(request, "object.html", title="Object", found=found, place=place, code=200 if found.known else 404)
