"""A TCP link with a round trip time, a rate for each connection, and faults: what stands between two places.

python -m tests.link PORT TARGET_PORT RTT_MS [MB/S]
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from include.stack.settings import HOST, free_ports

_CHUNK = 64 << 10
# What is on its way at once: the buffers of both ends of a connection.
_QUEUE = 64


class Link:
    """Forwards connections to `target`; each direction of each has `rate` bytes per second, if it is not 0.

    `cut_after` breaks every connection that has carried so many bytes from the client, as long as `cuts` are left;
    `carried` counts those bytes, `most` the connections that were open at once.
    """

    def __init__(self, port: int, target: int, rtt: float, rate: float = 0) -> None:
        self.port, self.target, self.rtt, self.rate = port, target, rtt, rate
        self.cut_after = 0
        self.cuts = 0
        self.carried = 0
        self.connections = self.most = 0

    async def serve(self) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_server(self._connection, HOST, self.port, limit=_CHUNK * 4)
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.rtt)  # the handshake
        try:
            there, to = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        self.connections += 1
        self.most = max(self.most, self.connections)
        try:
            await asyncio.gather(self._pump(reader, to, True), self._pump(there, writer, False))
        finally:
            self.connections -= 1
            writer.close()
            to.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_client: bool) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        reading = asyncio.create_task(self._read(reader, queue, from_client, writer))
        try:
            while True:
                due, chunk = await queue.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
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
        from_client: bool,
        writer: asyncio.StreamWriter,
    ) -> None:
        free, carried = 0.0, 0
        while True:
            try:
                chunk = await reader.read(_CHUNK)
            except OSError:
                chunk = b""
            due = time.monotonic()
            if self.rate:
                free = due = max(free, due) + len(chunk) / self.rate
            if from_client:
                carried += len(chunk)
                self.carried += len(chunk)
                if self.cuts and self.cut_after and carried > self.cut_after:
                    self.cuts -= 1
                    writer.transport.abort()
                    chunk = b""
            await queue.put((due + self.rtt / 2, chunk))
            if not chunk:
                return


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
        yield link
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(5)


if __name__ == "__main__":
    here, there, milliseconds, *megabytes = sys.argv[1:]
    asyncio.run(
        Link(int(here), int(there), float(milliseconds) / 1e3, float(megabytes[0]) * 1e6 if megabytes else 0).serve()
    )
