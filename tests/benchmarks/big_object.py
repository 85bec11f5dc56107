"""An S3 server with one object of any size, which it generates while it is read: the same megabyte of CSV repeated.

``python -m tests.benchmarks.big_object --size BYTES`` prints the endpoint and the rows of the object.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from storeside.stack.settings import HOST
from tests.benchmarks.serving import serving

KEY, ETAG, MODIFIED = "stream/rows.csv", "0" * 32, "2026-01-01T00:00:00.000Z"
HEADER = b"n,word\n"
WORD = "speech" * 14
NUMBERS = 10_000  # rows of a block, numbered from 0
BLOCK = "".join(f"{n:09},{WORD}\n" for n in range(NUMBERS)).encode()
ROW = len(BLOCK) // NUMBERS
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def rows_of(size: int) -> int:
    """Return how many whole rows an object of at most this size has."""
    return max(size - len(HEADER), 0) // ROW


def total(rows: int) -> int:
    """Return the sum of the numbers of the first rows."""
    blocks, rest = divmod(rows, NUMBERS)
    return blocks * (NUMBERS * (NUMBERS - 1) // 2) + rest * (rest - 1) // 2


def content(begin: int, end: int) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the object from `begin` up to, without, `end`."""
    if begin < len(HEADER):
        yield HEADER[begin:end]
        begin = len(HEADER)
    block = memoryview(BLOCK)
    while begin < end:
        at = (begin - len(HEADER)) % len(BLOCK)
        piece = block[at : at + end - begin]
        yield piece
        begin += len(piece)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    size = 0

    def do_GET(self) -> None:
        if urlsplit(self.path).path.partition("/")[2].partition("/")[2] != KEY:
            entry = (
                f"<Contents><Key>{KEY}</Key><LastModified>{MODIFIED}</LastModified><ETag>&quot;{ETAG}&quot;</ETag>"
                f"<Size>{self.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
            listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>".encode()
            self._head(200, len(listing))
            self.wfile.write(listing)
            return
        asked = RANGE.match(self.headers.get("Range", ""))
        begin, last = (int(asked[1]), int(asked[2] or self.size - 1)) if asked else (0, self.size - 1)
        end = min(last + 1, self.size)
        self._head(206 if asked else 200, end - begin, f"bytes {begin}-{end - 1}/{self.size}" if asked else "")
        for piece in content(begin, end):
            self.wfile.write(piece)

    def do_HEAD(self) -> None:
        self._head(200, self.size)

    def _head(self, status: int, length: int, part: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", f'"{ETAG}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(size: int) -> Iterator[tuple[str, int]]:
    """Serve an object of about `size` bytes from a new process; yields the endpoint and the object's rows."""
    with serving("tests.benchmarks.big_object", "--size", size) as printed:
        endpoint, rows = printed.split()
        yield endpoint, int(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, required=True, help="bytes")
    rows = rows_of(parser.parse_args().size)
    handler = type("Handler", (_Handler,), {"size": len(HEADER) + rows * ROW})
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        print(f"http://{HOST}:{server.server_port} {rows}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
