"""Objects beside the result that answers a request: sidecars, several results of an object, members of shards."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from storeside.transformers.contract.names import unfit
from storeside.transformers.transformer import Data

from .http_client import DeliveryError, HttpClient, reason

_AISTORE = "/v1/objects/"
# Headers of AIStore's answer to a PUT request, in lower case.
_COUNTER, _CHECKSUM = "ais-version", "ais-checksum-value"


class Sidecars:
    """Stores objects below a URL, the value of `variable`.

    For AIStore, `base` is ``http://proxy:51080/v1/objects/<bucket>/<prefix>``; its redirects to the targets are
    followed. It may be any other store that accepts PUT requests, with a query if needed, or ``file:///folder/`` for
    local runs. Only AIStore receives `token`.
    """

    def __init__(self, base: str, client: HttpClient, token: str = "", variable: str = "SIDECAR_URL") -> None:
        self._parts = urlsplit(base)
        self._kind = "sidecar" if variable == "SIDECAR_URL" else "result"
        self._client = client
        is_aistore = self._parts.path.startswith(_AISTORE)
        self._headers = {"Authorization": f"Bearer {token}"} if token and is_aistore else {}
        if base and self._parts.scheme not in ("http", "https", "file"):
            raise ValueError(f"{variable}={base!r} must begin with http://, https:// or file://")

    @property
    def scheme(self) -> str:
        """The scheme of the URL; empty if there is no URL."""
        return self._parts.scheme

    def put(self, name: str, content: Data) -> str:
        """Store the object `name`, replacing an existing one; return its version as AIStore lists it.

        Without a checksum, the version has the size instead (see `storeside.aistore.stored_objects`). Raises
        DeliveryError, also for a name with which it would not be below the URL.
        """
        if not self._parts.scheme:
            raise DeliveryError("the transform returned a sidecar, but SIDECAR_URL is not set")
        if why := unfit(name):
            raise DeliveryError(f"{self._kind} {name!r}: {why}", final=True)
        path = self._parts.path + quote(os.fsencode(name))
        if self._parts.scheme == "file":
            file = Path(unquote(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            return f"/{len(content)}"
        answer = self._client.request("PUT", self._parts._replace(path=path).geturl(), content, self._headers)
        if answer.status not in (200, 201, 204):
            # AIStore refuses names that it cannot store with this status.
            raise DeliveryError(f"{self._kind}: {reason(answer)}", final=answer.status == HTTPStatus.BAD_REQUEST)
        return f"{answer.headers.get(_COUNTER, '')}/{answer.headers.get(_CHECKSUM) or len(content)}"
