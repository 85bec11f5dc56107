"""Push and pull on the SDK's Flask and multithreaded HTTP servers: a thread per request and the same worker pool.

These servers exist for comparisons of the SDK's three servers: see the DAG ``transform_benchmark`` and
docs/benchmarks.md. By default transforms run on `asgi`, the only server with WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import IO, Any

from storeside.transformers.contract.failures import Failure, LeftOut
from storeside.transformers.contract.job import BadRequestError, Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.pipeline import NODE_URL
from storeside.transformers.settings import Settings
from storeside.transformers.shards.shard_pool import AnyPool, pool_for
from storeside.transformers.workers.pool import Content, Outcome, Streamed

from .http_exchange import HttpAnswer, answer, job_of, refusal, too_large
from .sender import HEADER, Senders

_CLOSE = {"Connection": "close"}
# Statuses for requests whose bodies the server does not read.
_UNREAD = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def serve(server: str, transform: str, settings: Settings, senders: Senders, address: tuple[str, int]) -> None:
    """Serve until terminated. Raises BrokenTransformError if the transform cannot be built."""
    service = _Service(transform, settings, senders)
    {"flask": _serve_flask, "http": _serve_http}[server](service, *address)


class _Service:
    """Runs a pool in its own thread, and lets request threads wait for its outcomes."""

    def __init__(self, transform: str, settings: Settings, senders: Senders) -> None:
        self._transform = transform
        self._settings = settings
        self._journal = Journal()
        self._senders = senders
        started: Future[tuple[asyncio.AbstractEventLoop, AnyPool]] = Future()
        threading.Thread(target=lambda: asyncio.run(self._run(started)), daemon=True).start()
        self._loop, self._pool = started.result()

    async def _run(self, started: Future[tuple[asyncio.AbstractEventLoop, AnyPool]]) -> None:
        pool = pool_for(self._transform, self._settings, self._journal)
        running = asyncio.create_task(pool.run())
        ready = asyncio.create_task(pool.ready())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            started.set_exception(running.exception())
            return
        started.set_result((asyncio.get_running_loop(), pool))
        try:
            await running
        except Exception:  # the server cannot work without its pool; AIStore notices the end of the pod
            traceback.print_exc()
            os._exit(70)

    def answer(
        self, method: str, target: str, address: str, headers: Mapping[str, str], body: IO[bytes]
    ) -> HttpAnswer:
        """Return the answer to one request from an address."""
        if reason := self._senders.refusal(address, headers.get(HEADER, ""), target.encode("latin-1")):
            return HttpAnswer(HTTPStatus.FORBIDDEN, _CLOSE, reason.encode())
        pipeline, length = headers.get(NODE_URL, ""), headers.get("Content-Length", "0")
        if not length.isdecimal():
            return HttpAnswer(HTTPStatus.BAD_REQUEST, _CLOSE, b"the body's length is missing")
        size = int(length)
        path, _, query = target.partition("?")
        try:
            job = job_of(method, path.encode("latin-1"), query.encode("latin-1"), pipeline)
        except BadRequestError as e:
            return self._failed(Job(e.object).failure(str(e), final=True))
        if job.needs_content and size > self._settings.largest_body:
            return self._failed(too_large(job, self._settings), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        content = body.read(size) if job.needs_content else b""
        return self._transformed(job, content, size)

    def _transformed(self, job: Job, content: bytes, size: int) -> HttpAnswer:
        if job.needs_content and len(content) < size:
            reason = f"the connection ended after {len(content)} of {size} bytes"
            return self._failed(job.failure(reason, final=False), HTTPStatus.BAD_REQUEST)
        outcome = asyncio.run_coroutine_threadsafe(self._outcome(job, content), self._loop).result()
        if isinstance(outcome, Failure):
            return self._failed(outcome)
        if isinstance(outcome, LeftOut):
            self._journal.record_left_out(outcome)
        if isinstance(outcome, Streamed):
            outcome = Content(b"".join(outcome.pieces))
        return answer(outcome, self._pool.mime_type)

    def _failed(self, failure: Failure, status: HTTPStatus | None = None) -> HttpAnswer:
        self._journal.record(failure)
        return refusal(failure, status)

    async def _outcome(self, job: Job, content: bytes) -> Outcome:
        return await (await self._pool.submit(job, content))


def _not_here(*_: Any) -> bytes:
    raise NotImplementedError("worker processes transform")


def _serve_flask(service: _Service, host: str, port: int) -> None:
    from aistore.sdk.etl.webserver.flask_server import FlaskServer
    from flask import Response, request
    from werkzeug.routing import PathConverter

    class Anything(PathConverter):
        """Object names, including line feeds."""

        regex = "[^/](?s:.*?)"

    class Server(FlaskServer):  # type: ignore[misc]
        transform = _not_here

        def _register_routes(self) -> None:
            self.app.url_map.converters["path"] = Anything
            super()._register_routes()

        def _handle_request(self, path: str) -> Response:
            target, address = request.environ["RAW_URI"], request.remote_addr or ""
            made = service.answer(request.method, target, address, dict(request.headers), request.stream)
            return Response(bytes(made.content), made.status, dict(made.headers))

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # by default it logs a line for every object
    Server(host, port).start()


def _serve_http(service: _Service, host: str, port: int) -> None:
    from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer, ThreadedHTTPServer

    ThreadedHTTPServer.daemon_threads = True  # connections that AIStore keeps open must not delay the end

    class Server(HTTPMultiThreadedServer):  # type: ignore[misc]
        transform = _not_here

        class RequestHandler(HTTPMultiThreadedServer.RequestHandler):  # type: ignore[misc]
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/health":
                    self._send(HttpAnswer(HTTPStatus.OK, {}, b"Running"))
                else:
                    self._answer()

            def do_PUT(self) -> None:
                self._answer()

            def _answer(self) -> None:
                address = self.client_address[0]
                self._send(service.answer(self.command, self.path, address, self.headers, self.rfile))

            def _send(self, made: HttpAnswer) -> None:
                if made.status in _UNREAD:
                    self.close_connection = True  # the server has not read the body
                self.send_response(made.status)
                for name, value in {**made.headers, "Content-Length": str(len(made.content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(made.content)

    Server(host, port).start()
