"""The servers of AIStore's SDK with a transform of Storeside, to compare them with `serve`.

``python -m storeside.transformers.sdk_servers --server flask --transform audio_transcode`` starts a server as AIStore
documents it: FastAPI on uvicorn, Flask on gunicorn, or the multithreaded HTTP server. The SDK reads the requests and
sends the results; only the transform itself runs in the isolated processes of `serve`, of which each server has
``NUM_WORKERS``. As in `serve`, the server refuses requests that AIStore did not send. It has no journal and no
sidecars, and does not transform the members of shards.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp

from storeside.transformers.contract.job import Job
from storeside.transformers.registry import TRANSFORM_VARIABLE
from storeside.transformers.server.guard import Guard
from storeside.transformers.server.sender import HEADER, Senders
from storeside.transformers.workers import worker_process
from storeside.transformers.workers.pool import Content, Outcome, Pool

from .settings import Settings

SERVERS = ("fastapi", "flask", "http")
_MODULE = "storeside.transformers.sdk_servers"
# Bytes of a message of WebSocket; uvicorn's default of 16 MiB is less than an object may have.
_LARGEST_MESSAGE = 1 << 34
# Seconds that gunicorn gives to an object beyond the transform's own time-out, whose error states the reason.
_LATER = 30

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until terminated; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=SERVERS, required=True)
    parser.add_argument("--transform", required=True, help="a built-in transform, or package.module:attribute")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - a pod's own network
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    os.environ[TRANSFORM_VARIABLE] = options.transform
    settings = Settings.from_environment()
    if options.server == "http":
        _serve_http(settings, options.host, options.port)
        return 0
    program = _programs(settings, options.host, options.port)[options.server]
    os.execv(sys.executable, [sys.executable, "-m", *program])  # noqa: S606 - a fixed command


def _programs(settings: Settings, host: str, port: int) -> dict[str, list[str]]:
    """Return the programs that run the two applications, with one process for each worker."""
    workers, seconds = str(settings.workers), str(math.ceil(settings.object_timeout) + _LATER)
    return {
        "fastapi": [
            "uvicorn", f"{_MODULE}:fastapi_app", "--factory", "--host", host, "--port", str(port),
            "--workers", workers, "--no-access-log", "--log-level", "warning",
            "--ws-max-size", str(_LARGEST_MESSAGE),
        ],
        "flask": [
            "gunicorn", f"{_MODULE}:flask_app()", "--bind", f"{host}:{port}", "--workers", workers,
            "--log-level", "warning", "--timeout", seconds, "--graceful-timeout", "1",
            "--no-control-socket",
        ],
    }  # fmt: skip


class _Workers:
    """Passes objects from the SDK's threads to a pool of isolated processes, which runs in another thread."""

    def __init__(self, settings: Settings) -> None:
        transform = os.environ[TRANSFORM_VARIABLE]
        worker_process.prepare(transform)
        self._pool = Pool(transform, settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._pool.run(), self._loop).add_done_callback(_end)
        asyncio.run_coroutine_threadsafe(self._pool.ready(), self._loop).result()

    def transform(self, source: str | bytes, path: str, arguments: str) -> bytes:
        """Transform an object, which is the path of its file or its content; the SDK's servers call this.

        Raises RuntimeError, with the reason, for an object without a result.
        """
        file, content = (source, b"") if isinstance(source, str) else ("", source)
        job = Job(path, file=file, arguments=arguments)
        outcome = asyncio.run_coroutine_threadsafe(self._outcome(job, content), self._loop).result()
        if not isinstance(outcome, Content):
            raise RuntimeError(getattr(outcome, "reason", "the object has no result as a whole: it is a stream"))
        return bytes(outcome.data)

    async def _outcome(self, job: Job, content: bytes) -> Outcome:
        return await (await self._pool.submit(job, content))


def _end(pool: Future[None]) -> None:
    """End the process, because the server cannot work without its pool; AIStore notices the end of the pod."""
    print(f"error: {pool.exception()}", file=sys.stderr, flush=True)
    os._exit(1)


def fastapi_app() -> ASGIApp:
    """Return the application of one process of uvicorn."""
    from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

    settings = Settings.from_environment()

    class Server(FastAPIServer):  # type: ignore[misc]
        transform = _Workers(dataclasses.replace(settings, workers=1)).transform

    # It logs the address of each result, which contains the ETL's secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return Guard(Server().app, Senders(settings))


def flask_app() -> WsgiApp:
    """Return the application of one process of gunicorn."""
    from aistore.sdk.etl.webserver.flask_server import FlaskServer

    settings = Settings.from_environment()
    senders = Senders(settings)

    class Server(FlaskServer):  # type: ignore[misc]
        transform = _Workers(dataclasses.replace(settings, workers=1)).transform

    app: WsgiApp = Server().app

    def guarded(environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        target, given = environ["RAW_URI"], environ.get(f"HTTP_{HEADER.upper().replace('-', '_')}", "")
        if target != "/health" and (
            reason := senders.refusal(environ["REMOTE_ADDR"], given, target.encode("latin-1"))
        ):
            respond("403 Forbidden", [("Content-Type", "text/plain"), ("Connection", "close")])
            return [reason.encode()]
        return app(environ, respond)

    return guarded


def _serve_http(settings: Settings, host: str, port: int) -> None:
    """Serve with one process, and as many workers as the settings have."""
    from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer

    senders = Senders(settings)

    class Server(HTTPMultiThreadedServer):  # type: ignore[misc]
        transform = _Workers(settings).transform

        class RequestHandler(HTTPMultiThreadedServer.RequestHandler):  # type: ignore[misc]
            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                given, target = self.headers.get(HEADER, ""), self.path.encode("latin-1")
                reason = self.path != "/health" and senders.refusal(self.client_address[0], given, target)
                if reason:
                    self.send_error(HTTPStatus.FORBIDDEN, explain=reason)
                return not reason

    Server(host, port).start()


if __name__ == "__main__":
    sys.exit(main())
