"""Shared by tests of HSDS: a client's login, and datasets."""

from __future__ import annotations

from typing import Any

from storeside.hsds.client import Client, Server
from storeside.hsds.plan import Slab
from storeside.stack.servers import hsds
from storeside.stack.settings import Stack


def server(stack: Stack, user: str = "storeside", part: str = "hsds") -> Server:
    return Server(*vars(hsds.login(stack, user, part)).values())


def write(client: Client, domain: str, path: str, values: Any, chunks: tuple[int, ...], **given: Any) -> None:
    """Create a dataset, which may grow, and fill it."""
    filters = [{"class": "H5Z_FILTER_DEFLATE", "id": 1, "name": "deflate", "level": given["gzip"]}] if given else []
    client.create(
        domain,
        path,
        {
            "type": "H5T_STD_I64LE",
            "shape": values.shape,
            "maxdims": [0, *values.shape[1:]],
            "creationProperties": {"layout": {"class": "H5D_CHUNKED", "dims": chunks}, "filters": filters},
        },
    )
    put(client, domain, path, values)


def put(client: Client, domain: str, path: str, values: Any) -> None:
    dataset = client.dataset(domain, path)
    whole = Slab(tuple(map(range, values.shape)))
    client.write(dataset, whole, values.tobytes())
