"""``python -m storeside.stack.supervision.tls_relay PORT TO CERTIFICATE KEY [HOST]`` terminates TLS for a server.

It accepts TLS connections at PORT of the address HOST, by default the loopback address, and passes their bytes to and
from the port TO of the loopback address.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress

from storeside.stack.settings import HOST

_CHUNK_BYTES = 1 << 18


async def serve(port: int, to: int, context: ssl.SSLContext, host: str = HOST) -> None:
    """Relay connections until the process ends."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection(HOST, to)
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(reader, their_writer))
            group.create_task(_pass(their_reader, writer))

    server = await asyncio.start_server(relay, host, port, ssl=context)
    await server.serve_forever()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side closes, then close the other."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


def main(port: str, to: str, certificate: str, key: str, host: str = HOST) -> None:
    """Serve with the arguments of the command line."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    asyncio.run(serve(int(port), int(to), context, host))


if __name__ == "__main__":
    main(*sys.argv[1:])
