"""How ClickHouse reads objects of AIStore: with ``url()``, from the targets to which a proxy redirects each request.

No address of a target, no signature and no token is part of a statement. The named collection of a secure cluster
has the header with the token, and ClickHouse follows the proxy's redirect, which AIStore signs for this request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_OBJECTS = "/v1/objects/"
# A proxy redirects once. It signs the redirect for the method of the request, and ClickHouse would send GET to the
# address to which HEAD was redirected. Without HEAD, one response has the whole object, and one version of it.
SETTINGS: Mapping[str, str] = {
    "max_http_get_redirects": "1",
    "http_make_head_request": "0",
    "http_max_tries": "3",
    "glob_expansion_max_elements": "1000000",
}
# ClickHouse keeps the whole body of a Parquet response in memory: all that a statement reads at a time together have
# at most this number of bytes.
_AT_ONCE = 1 << 30
# An object that does not exist: AIStore's answer shows that ClickHouse reaches a target and may read.
PROBE = ".storeside/probe"
_ABSENT = re.compile(r"HTTP status code: 404\b")


def object_path(bucket: str, key: str) -> str:
    """Return the path of an object in the URLs of its bucket, such as ``ais://results``; also ClickHouse's `_path`.

    It has none of the characters that ClickHouse interprets as a pattern: ``..`` in braces would be a range.
    """
    return f"{root(bucket)}{quote(key, safe='/').replace('..', '%2E%2E')}"


def root(bucket: str) -> str:
    """Return what the paths of all objects of a bucket begin with."""
    return f"{_OBJECTS}{quote(bucket.partition('://')[2], safe='')}/"


def objects_url(endpoint: str, bucket: str, keys: Sequence[str]) -> str:
    """Return the URL of objects for ClickHouse, with the URL of AIStore that it reaches."""
    names = [object_path(bucket, key).removeprefix(root(bucket)) for key in keys]
    listed = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
    return f"{endpoint.rstrip('/').removesuffix('/s3')}{root(bucket)}{listed}?provider=ais"


def key_of_url(bucket: str, url: str) -> str:
    """Return the key of the object whose URL an error of ClickHouse names; empty for other texts."""
    return unquote(url.partition(root(bucket))[2].partition("?")[0])


def configure(client: Client) -> None:
    """Make a client's statements read from AIStore. Raises ProgrammingError if the user's profile forbids it."""
    for name, value in SETTINGS.items():
        client.set_client_setting(name, value)


def fewer_readers(client: Client, largest: int) -> dict[str, int]:
    """Return the setting that bounds the memory of a statement that reads objects of up to `largest` bytes."""
    known = client.server_settings.get("max_threads")
    cores = re.search(r"\d+", known.value) if known is not None and not known.readonly else None
    most = max(1, _AT_ONCE // max(1, largest))
    return {"max_threads": most} if cores and most < int(cores[0]) else {}


def is_absent(error: BaseException) -> bool:
    """Return whether AIStore answered ClickHouse that an object does not exist."""
    return _ABSENT.search(str(error)) is not None
