"""Audio objects for the browser's player: through the cluster, in ranges, for users who may see the object."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from storeside.aistore.buckets import Bucket
from storeside.aistore.names import unfit
from storeside.pages.objects import Place, is_done, media_type
from storeside.plugins.pages.access import TablesDep
from storeside.plugins.pages.connections import aistore

log = logging.getLogger(__name__)
router = APIRouter()
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CHUNK = 256 * 1024


@router.get("/audio")
def listen(request: Request, tables: TablesDep, bucket: str, object: str) -> Response:
    """Stream an object, or the requested range of it. Only objects of done steps in the ledger are served."""
    from aistore.sdk.errors import AISError

    place, kind = Place(bucket, object), media_type(object)
    if kind is None or not place.is_audio or unfit(object) or not is_done(tables, place):
        raise HTTPException(404, "no audio object of AIStore that the ledger has as done")
    try:
        handle = Bucket.parse(bucket).object(aistore(patient=True), object)
        length = int(handle.head().size)
    except AISError as e:
        log.warning("AIStore did not return %s/%s: %s", bucket, object, e)
        raise HTTPException(
            404, "AIStore does not have this object any more, or cannot return it at the moment"
        ) from e
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Encoding": "identity",  # otherwise Airflow compresses it, which breaks ranges
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    asked = requested(request.headers.get("range", ""), length)
    if asked is None:
        headers["Content-Length"] = str(length)
        return StreamingResponse(_content(handle, None), media_type=kind, headers=headers)
    first, last = asked
    if first > last:
        raise HTTPException(416, "the range is not in the object", headers={"Content-Range": f"bytes */{length}"})
    headers |= {"Content-Range": f"bytes {first}-{last}/{length}", "Content-Length": str(last - first + 1)}
    return StreamingResponse(_content(handle, f"bytes={first}-{last}"), 206, headers, kind)


def requested(text: str, length: int) -> tuple[int, int] | None:
    """Return the first and last byte that a Range header asks for; None for all, and for anything but a single range.

    The first is greater than the last if the range is not within `length`.
    """
    match = _RANGE.fullmatch(text.strip())
    if not match or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return (max(length - int(last), 0), length - 1) if int(last) else (length, 0)
    if last and int(last) < int(first):
        return None
    return (int(first), min(int(last), length - 1) if last else length - 1)


def _content(handle: Any, byte_range: str | None) -> Iterator[bytes]:
    reader = handle.get_reader(byte_range=byte_range, chunk_size=_CHUNK)
    yield from reader
