"""A worker's part of a stream: the object flows into the decoder, and the pieces of its result flow out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain

from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data, ObjectError

from .decoder_process import DecoderProcess
from .direct_put import DirectPut
from .given import GivenEntries
from .http_client import DeliveryError, HttpClient
from .source import Sources
from .stream_sender import NEXT, PIECE
from .wire import Channel, Head


class _LeftOutError(Exception):
    """The transformer left the object out; `head` is the decoder's reply with the reason, and perhaps facts."""

    def __init__(self, head: Head) -> None:
        super().__init__(head["left_out"])
        self.head = head


class StreamWorker:
    """Passes objects to the decoder and delivers each result while it is made.

    The pieces of a result go to its destination by direct put, or to the server through `server`. A result without an
    end, because the transformer or the source failed, ends the connection to the destination within the body, so
    nothing is stored.
    """

    def __init__(self, decoder: DecoderProcess, settings: Settings, server: Channel) -> None:
        client = HttpClient(settings)
        self._sources = Sources(settings, client, decoder.takes)
        self._given = GivenEntries(settings, client)
        self._direct_put = DirectPut(client, settings)
        self._decoder = decoder
        self._server = server
        self._settings = settings
        # Bytes of the current result, and those that went to the server.
        self._made = self._returned = 0

    def work(self, job: Job, content: int | bytes | memoryview) -> tuple[Head, Data]:
        """Transform one object, which may come through a pipe; return the reply's head, and the result of a member.

        Raises ObjectError and DeliveryError.
        """
        if self._settings.results_url.startswith("http"):
            raise ObjectError("the transform is a stream, which has one result: leave out several_results")
        if self._given.url:
            self._decoder.give(self._given.entry(job.object))
        self._made = self._returned = 0
        try:
            with closing(self._pieces(job, content)) as pieces:
                begun = self._counted(chain([next(pieces)], pieces))
                if job.is_member:
                    result = self._joined(begun)
                    return {"content": len(result)}, result
                stored = self._put(job, begun)
        except _LeftOutError as e:
            return e.head, b""
        if self._returned:
            return {"streamed": self._returned}, b""
        return {"delivered": self._made if stored is None else stored}, b""

    def _pieces(self, job: Job, content: int | bytes | memoryview) -> Generator[Data, None, None]:
        """Yield at least one piece. Raises an error at the end if the result is not complete."""
        with self._sources.stream(job, content) as source:
            head = yield from self._decoder.stream(job, source, self._settings.object_timeout)
            if "left_out" in head:
                raise _LeftOutError(head)
            if "failed" in head:
                if head["final"]:
                    raise ObjectError(str(head["failed"]))
                raise DeliveryError(str(head["failed"]))

    def _counted(self, pieces: Iterator[Data]) -> Iterator[Data]:
        for piece in pieces:
            self._made += len(piece)
            yield piece

    def _put(self, job: Job, pieces: Iterator[Data]) -> int | None:
        """Deliver a result to its destination or to the server; return the bytes that a later ETL has stored."""
        if job.pipeline:
            return self._direct_put.deliver_stream(job, pieces, self._pass_on)
        for piece in pieces:
            self._pass_on(piece)
        return None

    def _pass_on(self, piece: Data) -> None:
        self._decoder.pass_on({PIECE: len(piece)}, piece, self._server)
        answer = self._server.receive()
        if answer is None or NEXT not in answer[0]:
            raise SystemExit(0)  # the server ended
        self._returned += len(piece)

    def _joined(self, pieces: Iterator[Data]) -> bytes:
        found = bytearray()
        for piece in pieces:
            found += piece
            if len(found) > self._settings.largest_body:
                most = f"{self._settings.largest_body} bytes ({self._settings.body_limit})"
                raise ObjectError(f"the result of a member of a shard has at most {most}")
        return bytes(found)
