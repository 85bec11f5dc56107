"""An HTTP proxy that runs in a pod, so that the tests reach the cluster's names and addresses through one port.

It forwards each request on a separate connection: the source of this module is the pod's program.
"""

import asyncio

PORT = 8080
_HEAD_BYTES = 1 << 16


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything that arrives, until the end."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


def forwarded(head: bytes) -> tuple[str, int, bytes]:
    """Return host and port of a request to a proxy, and its head as the server expects it."""
    line, *fields = head.split(b"\r\n")
    method, url, version = line.split(b" ", 2)
    authority, _, path = url.removeprefix(b"http://").partition(b"/")
    host, _, port = authority.decode().partition(":")
    kept = [f for f in fields if not f.lower().startswith((b"connection:", b"proxy-connection:", b"keep-alive:"))]
    lines = [b" ".join((method, b"/" + path, version)), b"Connection: close", *kept]
    return host, int(port or 80), b"\r\n".join(lines)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one request, and everything that follows on its connection, in both directions."""
    try:
        host, port, head = forwarded(await reader.readuntil(b"\r\n\r\n"))
        there_reader, there_writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        text = f"{type(error).__name__}: {error}".encode()
        writer.write(
            b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        )
        writer.close()
        return
    there_writer.write(head)
    upward = asyncio.ensure_future(copy(reader, there_writer))
    await copy(there_reader, writer)
    upward.cancel()
    for end in (there_writer, writer):
        end.close()


async def main() -> None:
    """Serve until the pod ends."""
    server = await asyncio.start_server(serve, "0.0.0.0", PORT, limit=_HEAD_BYTES)  # noqa: S104 - the pod's address
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
