"""A client of HSDS's REST API that keeps its connections open.

h5pyd reads a response in pieces of 4 KiB and copies it twice; this client reads it into a reusable buffer. h5json,
which h5pyd and HSDS also use, defines the types and the format of variable-length values.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from storeside.errors import BadInput
from storeside.hsds.errors import HsdsError, HsdsInputError, HsdsTransientError
from storeside.hsds.plan import Slab

if TYPE_CHECKING:
    import numpy as np
    import requests

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 180
_READ_BYTES = 1 << 18
# Seconds to wait after each failed request. A killed node that is restarted answers again within their sum.
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_BUSY = frozenset({429, 500, 502, 503, 504})
_T = TypeVar("_T")


class OversizeError(HsdsError, BadInput):
    """A response is longer than the allowed number of bytes."""


@dataclass(frozen=True)
class Server:
    """The address of HSDS, the user, and the bucket of the domains if it is not HSDS's default."""

    endpoint: str
    username: str = ""
    password: str = field(default="", repr=False)
    bucket: str = ""

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://", "http+unix://")):
            raise HsdsInputError(f"HSDS endpoint {self.endpoint!r}: use http://, https:// or http+unix://")


@dataclass(frozen=True)
class Dataset:
    """HSDS's description of a dataset; `most_bytes` is the maximum size of a request."""

    domain: str
    path: str
    id: str
    type: Mapping[str, Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    most_bytes: int = 100 << 20

    def __str__(self) -> str:
        return f"dataset {self.path!r} of {self.domain!r}"

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements. Raises HsdsInputError for a type that NumPy cannot express."""
        from h5json.hdf5dtype import createDataType

        try:
            kind: np.dtype[Any] = createDataType(self.type)
        except (TypeError, KeyError, ValueError) as e:
            raise HsdsInputError(f"{self}: its type {self.type} has no counterpart in NumPy: {e}") from e
        return kind

    @cached_property
    def item_bytes(self) -> int | None:
        """The size of an element in bytes; None if elements differ in size."""
        from h5json.hdf5dtype import getItemSize

        size = getItemSize(self.type)
        return None if size == "H5T_VARIABLE" else int(size)


class Client:
    """Sends the HSDS requests that exports and imports need; threads may share a client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._threads = threading.local()

    def dataset(self, domain: str, path: str) -> Dataset:
        """Return the description of a dataset.

        Raises:
            HsdsInputError: the domain or dataset does not exist, has no values, or may not be read.
            HsdsTransientError: HSDS does not answer.
        """
        about = self.json("/", f"domain {domain!r}", domain=domain)
        if about.get("class") == "folder":
            raise HsdsInputError(f"domain {domain!r}: is a folder: choose a domain in it")
        found = self.json("/datasets/", f"dataset {path!r} of {domain!r}", domain=domain, h5path=path)
        shape = found["shape"]
        if shape["class"] == "H5S_NULL":
            raise HsdsInputError(f"dataset {path!r} of {domain!r}: has a null dataspace and therefore no values")
        layout = found.get("creationProperties", {}).get("layout", {}) | found.get("layout", {})
        dims = tuple(shape.get("dims", ()))
        chunks = tuple(layout.get("dims", ())) if "CHUNKED" in layout.get("class", "") else ()
        most = about.get("limits", {}).get("max_request_size", Dataset.most_bytes)
        return Dataset(domain, path, found["id"], found["type"], dims, chunks or tuple(max(n, 1) for n in dims), most)

    def json(self, path: str, what: str, **params: str) -> dict[str, Any]:
        """Return the JSON answer to a GET; `what` is the object's name in errors."""

        def get() -> dict[str, Any]:
            with self._request("GET", path, what, params) as response:
                found: dict[str, Any] = response.json()
                return found

        return self._patiently(get)

    def read_into(self, dataset: Dataset, slab: Slab, buffer: memoryview) -> None:
        """Read a slab of fixed-size elements into `buffer`, which must have exactly the slab's size."""

        def read() -> None:
            with self._read(dataset, slab) as response:
                done = _fill(response, buffer)
                if done != len(buffer):
                    raise HsdsTransientError(f"{dataset}: HSDS stopped after {done} of {len(buffer)} bytes")
                if response.raw.read(1):
                    raise HsdsInputError(
                        f"{dataset}, {slab.select}: the answer has more than the slab's {len(buffer)} bytes: see the"
                        f" logs of HSDS at {self.server.endpoint}, and of a proxy in front of it"
                    )

        self._patiently(read)

    def read(self, dataset: Dataset, slab: Slab, most: int) -> bytes:
        """Read a slab of variable-size elements. Raises OversizeError if it has more than `most` bytes."""

        def read() -> bytes:
            content = bytearray()
            with self._read(dataset, slab) as response:
                for piece in response.iter_content(_READ_BYTES):
                    content += piece
                    if len(content) > most:
                        raise OversizeError
            return bytes(content)

        return self._patiently(read)

    def write(self, dataset: Dataset, slab: Slab, content: bytes | memoryview) -> None:
        """Write a slab. HSDS then has the data, but has not necessarily stored them; see `flush`."""
        params = {"domain": dataset.domain, **({"select": slab.select} if slab.select else {})}

        def put() -> None:
            headers = {"Content-Type": "application/octet-stream"}
            with self._request("PUT", f"/datasets/{dataset.id}/value", str(dataset), params, content, headers):
                pass

        self._patiently(put)

    def flush(self, domain: str) -> None:
        """Wait until HSDS has stored all data that were written to a domain."""

        def put() -> None:
            with self._request("PUT", "/", f"domain {domain!r}", {"domain": domain, "flush": "1"}):
                pass

        self._patiently(put)

    def attribute(self, dataset: Dataset, name: str) -> str | None:
        """Return the text of a dataset's attribute; None if it does not exist."""
        path = f"/datasets/{dataset.id}/attributes/{name}"
        try:
            return str(self.json(path, f"attribute {name!r} of {dataset}", domain=dataset.domain)["value"])
        except HsdsInputError as e:
            if e.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def put_attribute(self, dataset: Dataset, name: str, text: str) -> None:
        """Write a text as an attribute of a dataset."""
        kind = {
            "class": "H5T_STRING",
            "charSet": "H5T_CSET_UTF8",
            "strPad": "H5T_STR_NULLTERM",
            "length": "H5T_VARIABLE",
        }
        content = json.dumps({"type": kind, "value": text})
        headers = {"Content-Type": "application/json"}
        path = f"/datasets/{dataset.id}/attributes/{name}"

        def put() -> None:
            params = {"domain": dataset.domain, "replace": "1"}
            with self._request("PUT", path, str(dataset), params, content, headers):
                pass

        self._patiently(put)

    def create(self, domain: str, path: str, body: Mapping[str, Any]) -> None:
        """Create a dataset from HSDS's JSON `body`, and create the domain and groups that are missing."""
        what = f"dataset {path!r} of {domain!r}"
        headers = {"Content-Type": "application/json"}

        def make_domain() -> None:
            with self._request("PUT", "/", f"domain {domain!r}", {"domain": domain}, "{}", headers):
                pass

        def make_dataset() -> None:
            content = json.dumps({**body, "h5path": path})
            with self._request("POST", "/datasets", what, {"domain": domain, "implicit": "1"}, content, headers):
                pass

        def unless_exists(make: Callable[[], None]) -> None:
            try:
                self._patiently(make)
            except HsdsInputError as e:
                if e.status != HTTPStatus.CONFLICT:  # an earlier answer was lost, or another client created it
                    raise

        try:
            self.json("/", f"domain {domain!r}", domain=domain)
        except HsdsInputError as e:
            if e.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                raise
            unless_exists(make_domain)
        unless_exists(make_dataset)

    def _read(self, dataset: Dataset, slab: Slab) -> requests.Response:
        params = {"domain": dataset.domain, **({"select": slab.select} if slab.select else {})}
        # The client reads uncompressed responses; by default requests would accept gzip.
        headers = {"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
        response = self._request("GET", f"/datasets/{dataset.id}/value", str(dataset), params, headers=headers)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            with response:
                raise HsdsInputError(
                    f"{dataset}: the answer is compressed ({encoding}), against the request: turn off the"
                    f" compression of HSDS at {self.server.endpoint}, or of a proxy in front of it"
                )
        return response

    def _request(
        self,
        method: str,
        path: str,
        what: str,
        params: Mapping[str, str],
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        import requests

        bucket = {"bucket": self.server.bucket} if self.server.bucket else {}
        response: requests.Response
        try:
            response = self._session().request(
                method,
                self.server.endpoint.rstrip("/") + path,
                params={**params, **bucket},
                data=data,
                headers=headers,
                stream=True,
                timeout=(10, TIMEOUT_SECONDS),
                allow_redirects=False,  # requests would follow some with a GET, which writes nothing
            )
        except requests.RequestException as e:
            raise self._lost(e, what) from e
        if HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
            with response:
                place = urlsplit(response.headers.get("Location", ""))
                to = f"{place.scheme}://{place.hostname}{place.path}" if place.hostname else "another address"
                raise HsdsInputError(
                    f"{what}: {self.server.endpoint} redirects to {to} ({response.status_code}): set the connection's"
                    " host and schema to the address that it redirects to",
                    response.status_code,
                )
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            with response:
                raise self._refusal(response.status_code, response.reason, what)
        return response

    def _session(self) -> Any:
        """Return this thread's HTTP session."""
        import requests
        import requests_unixsocket

        if not hasattr(self._threads, "session"):
            unix = self.server.endpoint.startswith("http+unix://")
            session = requests_unixsocket.Session() if unix else requests.Session()
            if self.server.username:
                session.auth = (self.server.username, self.server.password)
            self._threads.session = session
        return self._threads.session

    def _patiently(self, action: Callable[[], _T]) -> _T:
        """Run an action; retry it after transient errors."""
        import requests
        import urllib3

        for wait in (*_WAITS, None):
            try:
                try:
                    return action()
                except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as e:
                    raise self._lost(e, "a response") from e
            except HsdsTransientError as e:
                if wait is None:
                    raise
                log.warning("%s; retrying in %g s", e, wait)
                time.sleep(wait)
        raise AssertionError

    def _lost(self, error: Exception, what: str) -> HsdsTransientError:
        return HsdsTransientError(
            f"{what}: the connection to HSDS at {self.server.endpoint} failed ({type(error).__name__}):"
            " check that its nodes run"
        )

    def _refusal(self, status: int, reason: str, what: str) -> HsdsInputError | HsdsTransientError:
        """Return the error for a refusal by HSDS."""
        said = {
            401: f"HSDS refuses user {self.server.username!r} with this password: correct the connection",
            403: f"user {self.server.username!r} lacks the permission: ask the owner to grant it with 'hsacl'",
            404: "HSDS has no object of this name: correct domain and path, or wait until it is written",
            410: "it was deleted: write it again, or omit it",
            413: "the request is larger than HSDS accepts: choose smaller slabs, or raise its max_request_size",
        }
        if status in said:
            return HsdsInputError(f"{what}: {said[status]} ({status})", status)
        if status in _BUSY:
            return HsdsTransientError(f"{what}: HSDS is busy or has lost a node ({status} {reason}): see its logs")
        return HsdsInputError(f"{what}: HSDS refuses the request ({status} {reason})", status)


def _fill(response: requests.Response, buffer: memoryview) -> int:
    done = 0
    while done < len(buffer):
        if not (count := response.raw.readinto(buffer[done : done + _READ_BYTES])):
            break
        done += count
    return done
