"""Objects: find an object, and show its origin and where its rows are."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from storeside.pages import movement, objects
from storeside.pages.objects import Place
from storeside.pages.tables import At
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/objects")
def find(
    request: Request, tables: TablesDep, text: str = "", bucket: str = "", status: str = "", begins: bool = False,
    sort: str = "name", order: str = "asc", source: str = "", destination: str = "", reason: str = "",
    after: str = "", back: str = "", after_load: str = "", back_load: str = "",
) -> Response:  # fmt: skip
    """Show the objects that match the search."""
    wanted = objects.Search(text, bucket, status, not begins, sort, order, source, destination, reason)
    page, loads = (
        objects.search(tables, wanted, At(after, back)),
        objects.search_loads(tables, wanted, At(after_load, back_load)),
    )
    return render(
        request, "objects.html", title="Objects", wanted=wanted, places=movement.places(tables),
        same={
            "text": text, "bucket": bucket, "status": status, "begins": "true" if begins else "",
            "source": source, "destination": destination, "reason": reason,
            "sort": sort if sort != "name" else "", "order": order if order != "asc" else "",
        },
        here={"after": after, "back": back}, here_load={"after_load": after_load, "back_load": back_load},
        page=page, loads=loads, entries=objects.entries(page.rows, loads.rows), count=objects.count(tables, wanted),
        count_loads=objects.count_loads(tables, wanted), most=objects.MOST_COUNTED,
    )  # fmt: skip


@router.get("/object")
def one(request: Request, tables: TablesDep, bucket: str, object: str) -> Response:
    """Show the lineage of one object."""
    place = Place(bucket, object)
    found = objects.lineage(tables, place)
    return render(request, "object.html", title="Object", found=found, place=place, code=200 if found.known else 404)
