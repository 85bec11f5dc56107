"""AIStore's pipelines: the list of destinations that comes with a request, and the address for a direct put.

The rules are those of AIStore's SDK (``aistore/sdk/etl/webserver/utils.py``), and a test compares the two. Servers
and workers do not import the SDK, because the import takes two thirds of their start and half of their memory.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit

# Header of a request: the destinations of its result, separated by commas.
NODE_URL = "Ais-Node-Url"
# Header of an answer: the number of bytes that a direct put has stored.
DIRECT_PUT_LENGTH = "Ais-Direct-Put-Length"
_ARGUMENTS = "etl_args"


def first_of(pipeline: str) -> tuple[str, str]:
    """Return the first destination and the remaining pipeline, which is empty after the last one.

    Raises ValueError if a destination is missing between two commas.
    """
    destinations = [destination.strip() for destination in pipeline.split(",")]
    if len(destinations) > 1 and not all(destinations):
        raise ValueError("a destination is empty")
    return destinations[0], pipeline.partition(",")[2].strip()


def put_address(destination: str, target_url: str, path: bytes, arguments: str) -> str:
    """Return the address to which a result is put.

    A destination with a path is AIStore's: its path follows that of `target_url`, which contains the ETL's secret.
    One without a path is the next ETL: it gets the object's `path` (``bucket/name``). The scheme is that of
    `target_url`. The `arguments` of an inline request replace those in the destination.
    """
    put, target = urlsplit(destination), urlsplit(target_url)
    query = put.query
    if arguments:
        others = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != _ARGUMENTS]
        query = urlencode([*others, (_ARGUMENTS, arguments)])
    at = target.path + put.path if put.path else quote(path, safe="/@")
    return target._replace(netloc=put.netloc, path=at, query=query).geturl()
