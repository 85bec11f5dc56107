"""The ETL server that runs beside each AIStore target.

``python -m storeside.transformers.serve --transform audio_transcode`` listens at the address that AIStore expects.
The parameters of a transform are environment variables, because bucket transforms pass no arguments. The server's own
variables are in `Settings`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import resource
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.members import Members
from storeside.transformers.server.sender import Senders
from storeside.transformers.shards.gathering import Gathering
from storeside.transformers.workers import worker_process
from storeside.transformers.workers.worker_process import BrokenTransformError

from .settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from storeside.transformers.shards.shard_pool import AnyPool

# Seconds that running requests get after the pod must end.
_GRACE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until terminated; return the exit status, which is 0 after SIGTERM."""
    try:
        options = _parser().parse_args(arguments)
        settings = Settings.from_environment()
        if options.workers is not None:
            settings = dataclasses.replace(settings, workers=options.workers)
        senders = Senders(settings)
        Members.from_environment()
        Gathering.from_environment()
        worker_process.prepare(options.transform)
    except ValueError as e:
        return _failed(str(e))
    _allow_open_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, settings, senders))
    except BrokenTransformError as e:
        return _failed(f"transform {options.transform}: {e}")
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(options: argparse.Namespace, settings: Settings, senders: Senders) -> None:
    import uvicorn

    from storeside.transformers.server.asgi import AsgiServer
    from storeside.transformers.server.guard import Guard
    from storeside.transformers.shards.shard_pool import pool_for

    journal = Journal()
    pool = pool_for(options.transform, settings, journal)
    config = uvicorn.Config(
        Guard(AsgiServer(pool, settings, journal).app, senders),
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="warning",
        lifespan="off",
        # No compression: it costs CPU time, and objects are compressed already.
        ws_per_message_deflate=False,
        # An object up to this size gets a refusal for its name; a larger one closes the connection.
        ws_max_size=2 * settings.largest_body,
        ws_ping_interval=None,
        timeout_graceful_shutdown=_GRACE,
    )
    running = asyncio.create_task(pool.run())
    answering = asyncio.create_task(_answer(uvicorn.Server(config), pool))
    # If one of the two ends, the pod must end: AIStore notices the end of a pod at once, but not of half a pod.
    ended, left = await asyncio.wait({running, answering}, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    ended.pop().result()


async def _answer(server: uvicorn.Server, pool: AnyPool) -> None:
    await pool.ready()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn handles it, and raises it again after its shutdown
    await server.serve()


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr, flush=True)
    return 1


def _allow_open_files() -> None:
    """Raise the limit of open files: container runtimes start with 1024, too few for many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _workers(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("choose a number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transform", required=True, help="a built-in transform, or package.module:attribute")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - a pod's own network
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=_workers, help="worker processes (default: NUM_WORKERS, else usable CPUs)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
