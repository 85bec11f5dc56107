"""A request for a stream: its body flows to the worker while it is received, and the result into the answer."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, closing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.shards.shard_pool import AnyPool
from storeside.transformers.workers import pipe
from storeside.transformers.workers.flow import Flow
from storeside.transformers.workers.pool import Outcome, Pool

from .http_exchange import answer, refusal


def end(reply: asyncio.Future[Outcome]) -> None:
    """End the work on an object whose result is not wanted any more; only work on a stream ends at once."""
    if not reply.cancel() and not reply.cancelled() and not reply.exception():
        outcome = reply.result()
        if isinstance(outcome, Flow):
            outcome.abandon()


class StreamExchange(Response):
    """The answer for a request, which also reads the request's body: an ASGI application.

    A result that fails when its answer has begun ends the connection within the body, so that AIStore stores nothing.
    If AIStore ends the request, the worker is ended, which also ends its direct put.
    """

    def __init__(self, pool: AnyPool, journal: Journal, job: Job) -> None:
        assert isinstance(pool, Pool)  # noqa: S101 - a pool for shards has no streams
        self._pool = pool
        self._journal = journal
        self._job = job
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        with ExitStack() as stack:
            body = stack.enter_context(closing(_Body())) if self._job.needs_content else None
            reply = await self._pool.submit(self._job, body.reader if body else b"")
            reading = asyncio.create_task(_read(receive, body, reply))
            try:
                await asyncio.wait({reply})
                if not reply.cancelled():
                    await self._answer(reply.result(), scope, receive, send)
            finally:
                end(reply)
                reading.cancel()
                await asyncio.wait({reading})

    async def _answer(self, outcome: Outcome, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(outcome, Flow):
            await self._flow(outcome, send)
        elif isinstance(outcome, Failure):
            self._journal.record(outcome)
            await refusal(outcome)(scope, receive, send)
        else:
            if isinstance(outcome, LeftOut):
                self._journal.record_left_out(outcome)
            await answer(outcome, self._pool.mime_type)(scope, receive, send)

    async def _flow(self, flow: Flow, send: Send) -> None:
        headers = [(b"content-type", self._pool.mime_type.encode("latin-1"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in flow:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if flow.failure is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif flow.wanted:  # uvicorn closes the connection of an answer without an end
            self._journal.record(flow.failure)


class _Body:
    """The body of a request, on its way through a pipe to the worker."""

    def __init__(self) -> None:
        self.reader, self._writer = pipe.new_pipe()

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[pipe.write(self._writer, view) :]
            if view:
                await self._room()

    async def _room(self) -> None:
        loop = asyncio.get_running_loop()
        room = loop.create_future()
        loop.add_writer(self._writer, lambda: None if room.done() else room.set_result(None))
        try:
            await room
        finally:
            loop.remove_writer(self._writer)

    def finish(self) -> None:
        """End the body: it is complete."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        self.finish()
        os.close(self.reader)


async def _read(receive: Receive, body: _Body | None, reply: asyncio.Future[Outcome]) -> None:
    """Pass on the body; when AIStore ends the request, end the work on it before the body seems to be complete."""
    try:
        while (message := await receive())["type"] != "http.disconnect":
            if body is not None:
                await body.write(message.get("body", b""))
                if not message.get("more_body", False):
                    body.finish()
                    body = None
    finally:
        end(reply)
