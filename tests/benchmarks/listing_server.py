"""An S3 server that generates listings (ListObjectsV2) of a bucket with a million objects that do not exist.

``python -m tests.benchmarks.listing_server --count 1000000`` prints its endpoint and serves until it is stopped. Each
bucket has the same objects, listed as in S3: in the order of their keys, at most 1,000 per page, with prefix,
start-after and continuation tokens. With ``--answer-ms`` an answer takes this number of milliseconds, as in a
cloud. The server does not check signatures and refuses all other requests.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

from storeside.stack.settings import HOST
from tests.benchmarks.serving import serving

PAGE = 1000
FOLDER = 1000
SIZE = 20_000
BEGIN = datetime(2022, 7, 1, tzinfo=UTC)
AFTER_ALL = "\U0010ffff"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Entry(NamedTuple):
    """The entry of one object in the listing."""

    key: str
    etag: str
    size: int
    modified: datetime


def key(number: int) -> str:
    """Return the key of an object; keys sort as their numbers do."""
    return f"trips/2022/{number // FOLDER:06}/yellow-{number:010}.parquet"


def entry(number: int) -> Entry:
    """Return the entry of an object in the listing."""
    # Multiplied by an odd constant, so that neighbours have nothing in common, as with a digest.
    etag = f"{(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
    return Entry(key(number), etag, SIZE + number % 997, BEGIN + timedelta(seconds=number))


class BadRequest(Exception):
    """The parameters are not those of a listing."""


def page(count: int, query: dict[str, str], bucket: str) -> str:
    """Return one page of the listing of `count` objects as S3 answers it."""
    if query.get("list-type") != "2" or query.get("delimiter"):
        raise BadRequest("only ListObjectsV2 without delimiter is served")
    prefix, start_after = query.get("prefix", ""), query.get("start-after", "")
    token = query.get("continuation-token", "")
    after = max(start_after, _decoded(token)) if token else start_after
    limit = min(int(query.get("max-keys", PAGE)), PAGE)
    numbers = range(count)
    begin = max(bisect_left(numbers, prefix, key=key), bisect_right(numbers, after, key=key) if after else 0)
    end = bisect_left(numbers, prefix + AFTER_ALL, key=key)
    listed = range(begin, max(begin, min(end, begin + limit)))
    truncated = listed.stop < end
    say = (lambda text: quote(text, safe="/")) if query.get("encoding-type") == "url" else escape
    parts = [
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="{NAMESPACE}"><Name>{escape(bucket)}</Name>'
        f"<Prefix>{say(prefix)}</Prefix><KeyCount>{len(listed)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
        f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
    ]
    if "encoding-type" in query:
        parts.append(f"<EncodingType>{escape(query['encoding-type'])}</EncodingType>")
    if start_after:
        parts.append(f"<StartAfter>{say(start_after)}</StartAfter>")
    if token:
        parts.append(f"<ContinuationToken>{escape(token)}</ContinuationToken>")
    if truncated and listed:
        last = base64.urlsafe_b64encode(key(listed[-1]).encode()).decode()
        parts.append(f"<NextContinuationToken>{last}</NextContinuationToken>")
    parts += [_element(entry(number), say) for number in listed]
    return "".join([*parts, "</ListBucketResult>"])


def _element(found: Entry, say: Callable[[str], str]) -> str:
    return (
        f"<Contents><Key>{say(found.key)}</Key><LastModified>{found.modified.isoformat()[:19]}.000Z</LastModified>"
        f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{found.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _decoded(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError) as error:
        raise BadRequest("the continuation token is not one of this server's") from error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open between pages
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one piece
    count = 0
    answer_seconds = 0.0

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, object_key = parts.path.strip("/").partition("/")
        try:
            if not bucket or object_key:
                raise BadRequest("objects are only listed here, they have no content")
            self._answer(200, page(self.count, query, bucket))
        except (BadRequest, ValueError) as error:
            self._answer(400, f"<Error><Code>InvalidRequest</Code><Message>{escape(str(error))}</Message></Error>")

    def do_HEAD(self) -> None:
        """Every bucket exists, no object does."""
        self._answer(404 if urlsplit(self.path).path.strip("/").count("/") else 200, "")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        time.sleep(self.answer_seconds)
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(count: int, answer_ms: float = 0) -> Iterator[str]:
    """Serve from a new process; yields the endpoint."""
    with serving("tests.benchmarks.listing_server", "--count", count, "--answer-ms", answer_ms) as endpoint:
        yield endpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="objects (default: %(default)s)")
    parser.add_argument("--answer-ms", type=float, default=0, help="milliseconds of an answer (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    options = parser.parse_args()
    handler = type("Handler", (_Handler,), {"count": options.count, "answer_seconds": options.answer_ms / 1000})
    with ThreadingHTTPServer((HOST, options.port), handler) as server:
        print(f"http://{HOST}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
