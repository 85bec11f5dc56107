"""The server for all three channels, WebSocket, push and pull, on Starlette, the base of FastAPI.

Over WebSocket the server transforms several objects of one connection at the same time, but answers in the order of
the requests: AIStore assigns each answer to its oldest open request (ext/etl/websocket_comm.go).
"""

from __future__ import annotations

import asyncio
import os
import traceback
from http import HTTPStatus
from typing import NoReturn

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import BadRequestError, Job, from_control_message
from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.pipeline import NODE_URL
from storeside.transformers.settings import Settings
from storeside.transformers.shards.shard_pool import AnyPool
from storeside.transformers.workers.pool import Content, Delivered, Flow, Outcome, Streamed, Whole

from .http_exchange import answer, job_of, refusal, too_large
from .stream_exchange import StreamExchange, end

# Objects per connection, besides one per worker, that the server accepts before it has answered the oldest.
_AHEAD = 2
# Bytes of a stream's result that the server holds, because AIStore takes it as one message.
_LARGEST_FLOW = 64 << 20
_TOO_LARGE_FLOW = (
    f"its result has more than {_LARGEST_FLOW >> 20} MiB, and over ws AIStore takes it as one message if the target"
    " that sent the object also stores the result: use hpush"
)
_NOT_AIS = 1007  # the close code for invalid messages

Replies = asyncio.Queue[asyncio.Future[Outcome]]


class _Anything(Convertor[str]):
    """Object names, including line feeds, which Starlette's ``path`` convertor excludes."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


class AsgiServer:
    """Reads requests, submits them to the pool, and answers; `app` is the ASGI application."""

    def __init__(self, pool: AnyPool, settings: Settings, journal: Journal) -> None:
        self._pool = pool
        self._settings = settings
        self._journal = journal
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/{name:anything}", self._http, methods=["GET", "PUT"]),
                WebSocketRoute("/ws", self._websocket),
            ]
        )

    async def _health(self, _: Request) -> Response:
        return Response(b"Running")

    # ---- push and pull

    async def _http(self, request: Request) -> Response:
        pipeline = request.headers.get(NODE_URL, "")
        try:
            job = job_of(request.method, request.scope["raw_path"], request.scope["query_string"], pipeline)
        except BadRequestError as e:
            return self._failed(Job(e.object).failure(str(e), final=True))
        if self._pool.streams:
            return StreamExchange(self._pool, self._journal, job)
        body = await self._body(request) if job.needs_content else b""
        if body is None:
            return self._failed(too_large(job, self._settings), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        outcome = await self._outcome(await self._pool.submit(job, body))
        if isinstance(outcome, Failure):
            return self._failed(outcome)
        if isinstance(outcome, LeftOut):
            self._journal.record_left_out(outcome)
        else:
            self._record_facts(outcome)
        return answer(outcome, self._pool.mime_type)

    def _record_facts(self, outcome: Delivered | Content | Streamed) -> None:
        if not isinstance(outcome, Streamed) and outcome.facts is not None:
            self._journal.record_facts(outcome.facts)

    def _failed(self, failure: Failure, status: HTTPStatus | None = None) -> Response:
        self._journal.record(failure)
        return refusal(failure, status)

    async def _body(self, request: Request) -> bytearray | None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._settings.largest_body:
                return None
        return body

    # ---- WebSocket

    async def _websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        replies: Replies = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:
                places = asyncio.Semaphore(self._settings.workers + _AHEAD)
                group.create_task(self._requests(socket, replies, places))
                group.create_task(self._replies(socket, replies, places))
        except* (WebSocketDisconnect, ClientDisconnect):
            pass
        except* BadRequestError as e:
            print(f"storeside: {e.exceptions[0]}", flush=True)
            await _close(socket)
        except* Exception:
            # AIStore would wait forever for the outstanding answers of this connection. If the pod ends, AIStore
            # aborts the job at once, and the next job transforms the missing objects.
            _end_process()
        finally:
            while not replies.empty():
                end(replies.get_nowait())

    async def _requests(self, socket: WebSocket, replies: Replies, places: asyncio.Semaphore) -> None:
        while True:
            await places.acquire()
            job, content = await self._request(socket)
            if isinstance(job, Failure):
                outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                outcome.set_result(job)
            else:
                outcome = await self._pool.submit(job, content)
            replies.put_nowait(outcome)

    async def _request(self, socket: WebSocket) -> tuple[Job | Failure, bytes]:
        message = await _receive(socket)
        try:
            job = from_control_message(message)
        except BadRequestError as e:
            if not e.object:
                raise
            return Job(e.object).failure(str(e), final=True), b""
        if not job.needs_content:
            return job, b""
        content = await _receive(socket)
        if len(content) > self._settings.largest_body:
            return too_large(job, self._settings), b""
        return job, content

    async def _replies(self, socket: WebSocket, replies: Replies, places: asyncio.Semaphore) -> None:
        while True:
            outcome = await self._outcome(await replies.get())
            places.release()
            if isinstance(outcome, Streamed):  # a message of WebSocket is sent as a whole
                outcome = Content(await asyncio.to_thread(b"".join, outcome.pieces))
            if isinstance(outcome, Content | Delivered):
                self._record_facts(outcome)
            if isinstance(outcome, Content):
                await socket.send({"type": "websocket.send", "bytes": outcome.data})
            elif isinstance(outcome, Delivered):
                await socket.send_text(str(outcome.size))
            elif isinstance(outcome, LeftOut):
                self._journal.record_left_out(outcome)
                await socket.send_text("0")
            else:
                self._journal.record(outcome)
                # AIStore treats any text as success. The object is then missing or empty; the journal has the reason.
                await socket.send_text("failed")

    async def _outcome(self, reply: asyncio.Future[Outcome]) -> Whole:
        """Return an outcome without a flow: a message of WebSocket is sent as a whole."""
        try:
            outcome = await reply
            if not isinstance(outcome, Flow):
                return outcome
            found = await outcome.whole(_LARGEST_FLOW, _TOO_LARGE_FLOW)
            return found if isinstance(found, Failure) else Content(found)
        except asyncio.CancelledError:  # the connection is lost
            end(reply)
            raise


async def _receive(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    content = message.get("bytes")
    if content is None:
        raise BadRequestError("AIStore sends no text messages")
    return bytes(content)


async def _close(socket: WebSocket) -> None:
    if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
        await socket.close(_NOT_AIS)


def _end_process() -> NoReturn:
    traceback.print_exc()
    os._exit(70)
