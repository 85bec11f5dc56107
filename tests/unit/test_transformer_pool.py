"""The pool of worker processes in the process of the test."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest

from storeside.transformers.contract.failures import Failure
from storeside.transformers.contract.job import Job
from storeside.transformers.settings import Settings
from storeside.transformers.workers import wire
from storeside.transformers.workers.pool import Content, Pool


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


def test_an_object_that_finds_no_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, errors = wire._memory, [OSError(errno.ENOMEM, "no memory")]

    def scarce(size: int) -> object:
        if errors:
            raise errors.pop()
        return memory(size)

    async def outcomes() -> list[object]:
        pool = Pool("tests.transformers:upper", Settings(workers=1))
        running = asyncio.create_task(pool.run())
        await pool.ready()
        monkeypatch.setattr(wire, "_memory", scarce)
        found: list[object] = [await (await pool.submit(Job(name), b"x" * 1_000_000)) for name in ("a", "b")]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return found

    first, second = asyncio.run(outcomes())
    assert isinstance(first, Failure)
    assert (first.final, "no memory" in first.reason) == (False, True)
    assert isinstance(second, Content)
