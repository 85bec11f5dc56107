"""Requests to Azure's Blob service, signed with a shared key, as Azurite and Azure accept them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

import requests

from storeside.stack.settings import HOST

_VERSION = "2021-12-02"


def request(
    port: int,
    account: str,
    key: str,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> requests.Response:
    """Send a request. `path` begins with the container: ``/container/blob``.

    The signature is that of Microsoft's "Authorize with Shared Key", for a server whose URL contains the account.
    """
    query = query or {}
    path = f"/{account}{quote(path)}"
    given = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-ms-version": _VERSION,
        **(headers or {}),
    }
    length = str(len(body)) if body else ""
    canonical = "".join(
        f"{name.lower()}:{given[name]}\n" for name in sorted(given, key=str.lower) if name.lower().startswith("x-ms-")
    )
    resource = f"/{account}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}\n\n\n{length}\n\n\n\n\n\n\n\n\n{canonical}{resource}"
    signature = b64encode(hmac.new(b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
    return requests.request(
        method, f"http://{HOST}:{port}{path}", params=query, data=body, timeout=30,
        headers={**given, "Authorization": f"SharedKey {account}:{signature}"},
    )  # fmt: skip
