"""The pool of worker processes in the process of the test."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from storeside.transformers.pool import Pool
from storeside.transformers.settings import Settings


def test_a_pool_that_ends_closes_its_sockets() -> None:
    async def ended() -> list[int]:
        pool = Pool("tests.transformers:upper", Settings(workers=2))
        running = asyncio.create_task(pool.run())
        await pool.ready()
        workers = list(pool._workers.values())
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return [worker._channel.socket.fileno() for worker in workers]

    assert asyncio.run(ended()) == [-1, -1]
