"""A TCP link with a round trip time, a rate for each connection, and faults: the network between two places.

python -m tests.link PORT TARGET_PORT RTT_MS [MB/S]
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from storeside.stack.settings import HOST, free_ports

_CHUNK = 64 << 10
# Bytes in transit: the buffers of both ends of a connection.
_QUEUE = 64
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE|PATCH|OPTIONS) \S+ HTTP/1\.")
# Seconds that a refused client may continue to send before its connection is closed.
_REFUSED_SECONDS = 2.0


class Link:
    """Forwards connections to `target`; each direction of each has `rate` bytes per second, if it is not 0.

    `cut_after` is the number of bytes from the client after which a connection is broken, as long as `cuts` are left;
    `carried` counts those bytes, `most` is the maximum number of connections open at once.

    For HTTP: `answer` returns the answer to a request in place of the server's answer, or nothing; while `truncates`
    is set, bodies of answers end in the middle, after a whole line if there is one. `met` counts the requests and
    connections that a fault has affected.
    """

    def __init__(self, port: int, target: int, rtt: float, rate: float = 0) -> None:
        self.port, self.target, self.rtt, self.rate = port, target, rtt, rate
        self.cut_after = 0
        self.cuts = 0
        self.carried = 0
        self.connections = self.most = 0
        self.answer: Callable[[bytes], bytes] | None = None
        self.truncates = False
        self.met = 0
        self.listens = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self) -> None:
        """Listen until cancelled."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connection, HOST, self.port, limit=_CHUNK * 4)
        self.listens.set()
        async with server:
            await server.serve_forever()

    def reset(self) -> None:
        """Break all connections at once, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        self.met += self.connections
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.rtt)  # the handshake
        try:
            there, to = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        self.connections += 1
        self.most = max(self.most, self.connections)
        self._writers |= {writer, to}
        try:
            await asyncio.gather(self._pump(reader, to, writer), self._pump(there, writer, None))
        finally:
            self.connections -= 1
            self._writers -= {writer, to}
            writer.close()
            to.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        """Carry bytes to the other end; `client` is their sender, None if that is the server."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        read = self._read_server(reader, queue) if client is None else self._read(reader, queue, client, writer)
        reading = asyncio.create_task(read)
        try:
            while True:
                due, chunk = await queue.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)  # the time on the way
                if not chunk:
                    break
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            reading.cancel()
            with suppress(OSError):
                writer.close()

    async def _read(
        self,
        reader: asyncio.StreamReader,
        queue: asyncio.Queue[tuple[float, bytes]],
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
    ) -> None:
        """Read a client's bytes, up to its end or a fault."""
        free, carried = 0.0, 0
        while True:
            chunk = await _chunk(reader)
            if self.answer is not None and _REQUEST.match(chunk) and (answer := self.answer(chunk)):
                await self._refuse(answer, reader, client)
                chunk = b""
            free, due = self._due(free, len(chunk))
            carried += len(chunk)
            self.carried += len(chunk)
            if self.cuts and self.cut_after and carried > self.cut_after:
                self.cuts -= 1
                server.transport.abort()
                chunk = b""
            await queue.put((due, chunk))
            if not chunk:
                return

    async def _read_server(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Read a server's bytes, up to its end or a fault."""
        free, in_head = 0.0, False
        while True:
            chunk = await _chunk(reader)
            ends = not chunk
            body = _body_at(chunk, in_head)
            in_head = body < 0
            if self.truncates and not in_head and len(chunk) - body > 1:
                self.met += 1
                chunk, ends = _truncated(chunk, body), True
            free, due = self._due(free, len(chunk))
            if chunk:
                await queue.put((due, chunk))
            if ends:
                await queue.put((due, b""))
                return

    def _due(self, free: float, size: int) -> tuple[float, float]:
        """Return when the link is free again, and when these bytes arrive."""
        due = time.monotonic()
        if self.rate:
            free = due = max(free, due) + size / self.rate
        return free, due + self.rtt / 2

    async def _refuse(self, answer: bytes, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Answer a request in place of the server, and let the client finish: a reset would discard the answer."""
        self.met += 1
        with suppress(OSError, TimeoutError):
            client.write(answer)
            await client.drain()
            async with asyncio.timeout(_REFUSED_SECONDS):
                while await reader.read(_CHUNK):
                    pass


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK)
    except OSError:
        return b""


def _body_at(chunk: bytes, in_head: bool) -> int:
    """Return where the body of an answer begins or continues in a chunk, -1 if its head does not end there."""
    if not in_head and not chunk.startswith(b"HTTP/1."):
        return 0
    end = chunk.find(b"\r\n\r\n")
    return -1 if end < 0 else end + 4


def _truncated(chunk: bytes, body: int) -> bytes:
    """Return a chunk up to the middle of its part of the body, which begins at `body`."""
    middle = (body + len(chunk)) // 2
    return chunk[: chunk.rfind(b"\n", body, middle) + 1 or middle]


@contextmanager
def linked(target: int, rtt: float = 0, rate: float = 0) -> Iterator[Link]:
    """Run a link in a thread, on a free port."""
    (port,) = free_ports(1)
    link = Link(port, target, rtt, rate)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(link.serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert link.listens.wait(10)
        yield link
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(5)


if __name__ == "__main__":
    here, there, milliseconds, *megabytes = sys.argv[1:]
    asyncio.run(
        Link(int(here), int(there), float(milliseconds) / 1e3, float(megabytes[0]) * 1e6 if megabytes else 0).serve()
    )
