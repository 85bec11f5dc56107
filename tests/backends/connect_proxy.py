"""An HTTP proxy that answers every CONNECT with a connection to one port.

    python -m tests.backends.connect_proxy PORT TARGET

A client that asks for any host with HTTPS reaches the server behind `TARGET`, which needs that host's certificate.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from storeside.stack.settings import HOST

_CHUNK = 256 << 10


async def _connection(target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        there, to = await asyncio.open_connection(HOST, target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, to), _pump(there, writer))
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def serve(port: int, target: int) -> None:
    """Listen until cancelled."""
    server = await asyncio.start_server(lambda r, w: _connection(target, r, w), HOST, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
