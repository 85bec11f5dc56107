"""Sidecars: small second results, which are stored separately just before the first result is delivered."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from storeside.transformers.contract.names import unfit

from .http_client import DeliveryError, HttpClient, reason

_AISTORE = "/v1/objects/"


class Sidecars:
    """Stores sidecars below a URL.

    For AIStore, `base` is ``http://proxy:51080/v1/objects/<bucket>/<prefix>``; its redirects to the targets are
    followed. It may be any other store that accepts PUT requests, with a query if needed, or ``file:///folder/`` for
    local runs. Only AIStore receives `token`.
    """

    def __init__(self, base: str, client: HttpClient, token: str = "") -> None:
        self._parts = urlsplit(base)
        self._client = client
        is_aistore = self._parts.path.startswith(_AISTORE)
        self._headers = {"Authorization": f"Bearer {token}"} if token and is_aistore else {}
        if base and self._parts.scheme not in ("http", "https", "file"):
            raise ValueError(f"SIDECAR_URL={base!r} must begin with http://, https:// or file://")

    def put(self, name: str, content: bytes) -> None:
        """Store the sidecar `name`, replacing an existing one.

        Raises DeliveryError, also for a name with which it would not be below the URL.
        """
        if not self._parts.scheme:
            raise DeliveryError("the transform returned a sidecar, but SIDECAR_URL is not set")
        if why := unfit(name):
            raise DeliveryError(f"sidecar {name!r}: {why}", final=True)
        path = self._parts.path + quote(os.fsencode(name))
        if self._parts.scheme == "file":
            file = Path(unquote(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            return
        answer = self._client.request("PUT", self._parts._replace(path=path).geturl(), content, self._headers)
        if answer.status not in (200, 201, 204):
            # AIStore refuses names that it cannot store with this status.
            raise DeliveryError(f"sidecar: {reason(answer)}", final=answer.status == HTTPStatus.BAD_REQUEST)
