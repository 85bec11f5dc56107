"""A result that flows from a worker to the server's answer while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from storeside.transformers.contract.failures import Failure
from storeside.transformers.contract.job import Job


class Flow:
    """The pieces of a stream's result, of which at most two wait.

    `failure` is set when the iteration ends too early: the answer must then not look complete. The receiver calls
    `abandon` when it wants no more, also if it never begins: `wanted` is then False, and the worker is ended.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failure: Failure | None = None
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._free = asyncio.Event()
        self._free.set()
        self.wanted = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        while (piece := await self._pieces.get()) is not None:
            self._free.set()
            yield piece

    async def whole(self, most: int, too_large: str) -> bytes | Failure:
        """Return all pieces, or why there is no whole result: `too_large` if it has more than `most` bytes."""
        found = bytearray()
        async for piece in self:
            found += piece
            if len(found) > most:
                self.abandon()
                return self.job.failure(too_large, final=False)
        return self.failure or bytes(found)

    async def offer(self, piece: bytes) -> bool:
        """Pass on a piece when the receiver has taken the one before; return whether it wants more."""
        await self._free.wait()
        if self.wanted:
            self._free.clear()
            self._pieces.put_nowait(piece)
        return self.wanted

    def end(self, failure: Failure | None = None) -> None:
        """End the iteration: the result is complete, or the failure states the reason why it is not."""
        self.failure = failure
        self._pieces.put_nowait(None)

    def abandon(self) -> None:
        """Want no more pieces."""
        self.wanted = False
        self._free.set()
