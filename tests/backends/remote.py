"""Buckets of GCS, Azure and OCI as their other users see them: requests to the emulators, not through AIStore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests

from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.store import Head
from storeside.stack.settings import HOST
from tests import oci_double
from tests.backends import azure
from tests.backends.emulators import ACCOUNT, Emulators


@dataclass(frozen=True)
class Remote:
    """One bucket: its URI, and functions that write, read and delete an object of it."""

    uri: str
    put: Callable[[str, bytes], Any] = field(repr=False)
    read: Callable[[str], bytes] = field(repr=False)
    delete: Callable[[str], Any] = field(repr=False)


def remote(emulators: Emulators, scheme: str, bucket: str) -> Remote:
    """Return a bucket by the scheme of its URI: ``gs``, ``az`` or ``oci``."""
    return {"gs": _gcs, "az": _azure, "oci": _oci}[scheme](emulators, bucket)


def _gcs(emulators: Emulators, bucket: str) -> Remote:
    url = f"http://{HOST}:{emulators.gcs}"

    def ask(method: str, path: str, **request: Any) -> bytes:
        answer = requests.request(method, f"{url}{path}", timeout=30, **request)
        answer.raise_for_status()
        return answer.content

    def put(name: str, body: bytes) -> None:
        ask("POST", f"/upload/storage/v1/b/{bucket}/o", params={"uploadType": "media", "name": name}, data=body)

    def path(name: str) -> str:
        return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"

    return Remote(
        f"gs://{bucket}",
        put,
        lambda name: ask("GET", path(name), params={"alt": "media"}),
        lambda name: ask("DELETE", path(name)),
    )


def _azure(emulators: Emulators, bucket: str) -> Remote:
    def ask(method: str, name: str, body: bytes = b"", **headers: str) -> bytes:
        kind = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {}
        answer = azure.request(
            emulators.azure, ACCOUNT, emulators.azure_key, method, f"/{bucket}/{name}", body=body, headers=kind
        )
        answer.raise_for_status()
        return answer.content

    return Remote(
        f"az://{bucket}",
        lambda name, body: ask("PUT", name, body),
        lambda name: ask("GET", name),
        lambda name: ask("DELETE", name),
    )


def _oci(emulators: Emulators, bucket: str) -> Remote:
    client = oci_client(oci_double.config(emulators.oci_key), 4, f"http://{HOST}:{emulators.oci}")
    store = OCIStore(client, oci_double.NAMESPACE, bucket)
    return Remote(
        f"oci://{bucket}",
        lambda name, body: store.put(name, body, Head(len(body), "", "")),
        lambda name: store.fetch(name, store.head(name).size)[1],
        store.delete,
    )
