"""An S3 server in this process that only lists: any keys, in pages of any size, also as no S3 server would."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


class Bucket:
    """The keys of the server's only bucket; `begins` are the keys after which pages began.

    `order` is the key function of a server that sorts keys in another order.
    """

    def __init__(self, keys: Sequence[str], page: int, *, takes_start: bool = True) -> None:
        self.keys, self.page, self.takes_start = list(keys), page, takes_start
        self.begins: list[str] = []
        self.order: Callable[[str], Any] | None = None

    def answer(self, query: dict[str, str]) -> str:
        """Return a page. A token is the number of the first key of the next page."""
        keys = [key for key in self.keys if key.startswith(query.get("prefix", ""))]
        start = query.get("start-after", "") if self.takes_start else ""
        self.begins.append(start)
        if "continuation-token" in query:
            first = int(query["continuation-token"])
        elif (order := self.order) is not None and start:
            first = bisect_right(keys, (order(start), start), key=lambda key: (order(key), key))
        else:
            first = bisect_right(keys, start)
        page, more = keys[first : first + self.page], first + self.page < len(keys)
        token = f"<NextContinuationToken>{first + self.page}</NextContinuationToken>" if more else ""
        entries = (
            f"<Contents><Key>{quote(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;e&quot;</ETag><Size>{'0' if key.endswith('/') else '1'}</Size></Contents>"
            for key in page
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult'
            ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(entries)}</ListBucketResult>"
        )


@contextmanager
def serve(bucket: Bucket) -> Iterator[S3Client]:
    """Serve the bucket; yields a boto3 client of the server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            body = bucket.answer({name: values[0] for name, values in query.items()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield boto3.client(
                "s3", endpoint_url=f"http://127.0.0.1:{server.server_port}", aws_access_key_id="a",
                aws_secret_access_key="b", region_name="us-east-1", config=Config(max_pool_connections=16),
            )  # fmt: skip
        finally:
            server.shutdown()
