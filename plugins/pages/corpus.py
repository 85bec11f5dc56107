"""Corpus: the hours of recordings that transforms kept, and that they left out by reason."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from storeside.pages import corpus, movement
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.render import render

router = APIRouter()


@router.get("/corpus")
def overview(request: Request, tables: TablesDep, bucket: str = "") -> Response:
    """Show the funnel of each pair of buckets."""
    return render(
        request, "corpus.html", title="Corpus", bucket=bucket, funnels=corpus.funnels(tables, bucket),
        places=movement.places(tables), most=corpus.MOST,
    )  # fmt: skip
