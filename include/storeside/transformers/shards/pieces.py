"""Delivers a result that is made piece by piece, so that no server holds all of it in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data
from storeside.transformers.workers.direct_put import DirectPut
from storeside.transformers.workers.http_client import DeliveryError, HttpClient

_PIECE = 256 << 10


def deliver(job: Job, pieces: Iterator[Data], client: HttpClient, settings: Settings) -> bytes | None:
    """Deliver the pieces to the job's pipeline; return None after a direct put, or what the last ETL returned.

    Without a pipeline, return the joined pieces. Raises DeliveryError, and the errors of `pieces`; nothing is stored
    then.
    """
    with closing(joined(pieces)) as made:
        if not job.pipeline:
            return _collected(made, settings)
        delivered = DirectPut(client, settings).deliver(job, made)
    return None if isinstance(delivered, int) else delivered


def _collected(pieces: Iterator[Data], settings: Settings) -> bytes:
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) > settings.largest_body:
            most = f"{settings.largest_body} bytes ({settings.body_limit})"
            raise DeliveryError(f"without direct put, a result has at most {most}", final=True)
    return bytes(found)


def joined(pieces: Iterator[Data]) -> Generator[Data, None, None]:
    """Join small pieces, because each one that is sent costs several system calls."""
    small = bytearray()
    for piece in pieces:
        if len(piece) >= _PIECE:
            if small:
                yield small
                small = bytearray()
            yield piece
            continue
        small += piece
        if len(small) >= _PIECE:
            yield small
            small = bytearray()
    if small:
        yield small
