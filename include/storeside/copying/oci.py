"""A bucket of OCI Object Storage behind its native API, with Oracle's SDK (the optional package ``oci``)."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storeside.aistore.entries import PAGE
from storeside.aistore.stored_objects import StoredObject
from storeside.copying.errors import CopyError, CopyInputError, CopyObjectError, CopyTransientError, changed
from storeside.copying.multipart import OCI_LIMITS, Limits
from storeside.copying.store import Head, Upload

if TYPE_CHECKING:
    from oci.object_storage import ObjectStorageClient

_CONFIG = ("user", "tenancy", "fingerprint", "region")
_ATTEMPTS = 5


def oci_client(config: Mapping[str, Any], connections: int, endpoint: str = "") -> Any:
    """Return an SDK client that threads can share.

    `config` has the keys of ``~/.oci/config``, with the private key as ``key_content`` or ``key_file``. Raises
    CopyInputError when the SDK is missing or the configuration is incomplete.
    """
    try:
        import oci
        from oci.object_storage import ObjectStorageClient
    except ImportError as e:
        raise CopyInputError("OCI's native API needs Oracle's SDK: pip install oci; or use OCI's S3 API") from e
    missing = [name for name in _CONFIG if not config.get(name)]
    if not config.get("key_content") and not config.get("key_file"):
        missing.append("key_content or key_file")
    if missing:
        raise CopyInputError(f"OCI connection: {', '.join(missing)} missing")
    try:
        client = ObjectStorageClient(
            dict(config),
            timeout=(10, 60),
            retry_strategy=oci.retry.RetryStrategyBuilder(
                max_attempts=_ATTEMPTS, retry_max_wait_between_calls_seconds=8, retry_base_sleep_time_seconds=0.5
            ).get_retry_strategy(),
            circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
            enable_strict_url_encoding=True,
            **({"service_endpoint": endpoint} if endpoint else {}),
        )
    except (oci.exceptions.ClientError, OSError, ValueError) as e:
        raise CopyInputError(f"OCI connection: {' '.join(str(e).split())}") from e
    session = client.base_client.session
    for scheme in ("https://", "http://"):
        # the SDK's own adapter, with one connection per thread
        adapter = type(session.get_adapter(scheme))(pool_connections=1, pool_maxsize=connections)
        session.mount(scheme, adapter)
    return client


class OCIStore:
    """One bucket behind an SDK client; see `storeside.copying.store.Store`.

    Versions are the MD5s of contents in the form of S3's ETags, so that either API recognizes a copy.
    """

    limits: Limits = OCI_LIMITS

    def __init__(self, client: ObjectStorageClient, namespace: str, bucket: str) -> None:
        self.client = client
        self.namespace = namespace
        self.bucket = bucket

    @property
    def name(self) -> str:
        """Return ``oci://namespace/bucket``."""
        return f"oci://{self.namespace}/{self.bucket}"

    @property
    def endpoint(self) -> str:
        """Return the API and the server."""
        # the SDK fills in the parts in braces for each request
        return f"oci {re.sub('{[^{}]*}', '', self.client.base_client.endpoint)}"

    def refused(self, key: str) -> str | None:
        """Return why OCI cannot store an object of this name; None when it can."""
        if len(key.encode()) > 1024 or any(character in key for character in "\n\r\0"):
            return "OCI's names have at most 1,024 bytes, without line feeds and NUL"
        return None

    def fronts(self) -> str:
        """Return an empty name, because a bucket of OCI has no backend bucket."""
        return ""

    def check(self, *, is_source: bool = False) -> None:
        """List one object of the bucket."""
        with self._errors():
            self.client.list_objects(self.namespace, self.bucket, limit=1)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Stream the bucket's objects."""
        start = None
        while True:
            with self._errors():
                page = self.client.list_objects(
                    self.namespace, self.bucket, prefix=prefix, start=start, limit=PAGE, fields="name,size,md5,etag"
                ).data
            for entry in page.objects:
                yield StoredObject(entry.name, entry.size, _hex(entry.md5) or entry.etag)
            start = page.next_start_with
            if not start:
                return

    def head(self, key: str) -> Head:
        """Return an object's metadata."""
        with self._errors(key):
            return _head(self.client.head_object(self.namespace, self.bucket, key).headers)

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        """Read an object in one request."""
        with self._errors(key):
            answer = self.client.get_object(self.namespace, self.bucket, key)
            head = _head(answer.headers)
            if head.size != size:
                answer.data.close()
                raise changed(f"{self.name}/{key}")
            return head, self._body(key, answer, size)

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Read a range with If-Match."""
        span = f"bytes={start}-{start + size - 1}"
        with self._errors(key):
            answer = self.client.get_object(self.namespace, self.bucket, key, range=span, if_match=head.tag)
            return self._body(key, answer, size)

    def _body(self, key: str, answer: Any, size: int) -> bytes:
        # One read returns the whole body in one object; a join of pieces would hold it twice.
        body: bytes = answer.data.raw.read(size + 1, decode_content=False)
        if len(body) != size:
            answer.data.close()
            more = "more than " if len(body) > size else f"{len(body)} of "
            raise CopyTransientError(f"{self.name}/{key}: received {more}{size} bytes")
        return body

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object with its MD5, which OCI verifies."""
        with self._errors(key):
            answer = self.client.put_object(
                self.namespace, self.bucket, key, body, content_md5=_md5(body),
                content_type=head.content_type or None, opc_meta=dict(head.metadata),
            )  # fmt: skip
        self._compare(key, answer.headers, body)
        return _hex(answer.headers["opc-content-md5"])

    def begin(self, key: str, head: Head) -> str:
        """Begin a multipart upload."""
        from oci.object_storage.models import CreateMultipartUploadDetails

        details = CreateMultipartUploadDetails(
            object=key,
            content_type=head.content_type or None,
            metadata={f"opc-meta-{name}": value for name, value in head.metadata.items()} or None,
        )
        with self._errors(key):
            return str(self.client.create_multipart_upload(self.namespace, self.bucket, details).data.upload_id)

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Write a part with its MD5."""
        with self._errors(key):
            answer = self.client.upload_part(
                self.namespace, self.bucket, key, upload, number, body, content_md5=_md5(body)
            )
        self._compare(key, answer.headers, body)
        return f"{answer.headers['etag']} {_hex(answer.headers['opc-content-md5'])}"

    def _compare(self, key: str, headers: Mapping[str, str], body: bytes) -> None:
        if headers["opc-content-md5"] != _md5(body):
            raise CopyTransientError(f"{self.name}/{key}: OCI stored other bytes than the worker sent")

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Commit an upload, and compare the object's MD5 with that of its parts."""
        from oci.object_storage.models import CommitMultipartUploadDetails, CommitMultipartUploadPartDetails

        parts = [tag.split() for tag in tags]
        details = CommitMultipartUploadDetails(
            parts_to_commit=[
                CommitMultipartUploadPartDetails(part_num=number, etag=etag)
                for number, (etag, _) in enumerate(parts, 1)
            ]
        )
        with self._errors(key):
            answer = self.client.commit_multipart_upload(self.namespace, self.bucket, key, upload, details)
        version = _hex(answer.headers["opc-multipart-md5"])
        whole = hashlib.md5(bytes.fromhex("".join(md5 for _, md5 in parts)), usedforsecurity=False).hexdigest()
        if version != f"{whole}-{len(parts)}":
            raise CopyObjectError(f"{self.name}/{key}: the object (MD5 {version}) does not consist of its parts")
        return version

    def abort(self, key: str, upload: str) -> None:
        """Delete an upload and its parts."""
        with self._unless_gone(key):
            self.client.abort_multipart_upload(self.namespace, self.bucket, key, upload)

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield the uncommitted uploads of an object, from OCI's list for the whole bucket."""
        page = None
        while True:
            with self._errors(key):
                answer = self.client.list_multipart_uploads(self.namespace, self.bucket, limit=PAGE, page=page)
            for found in answer.data:
                if found.object == key:
                    yield Upload(found.upload_id, found.time_created)
            page = answer.headers.get("opc-next-page")
            if not page:
                return

    def delete(self, key: str) -> None:
        """Delete an object."""
        with self._unless_gone(key):
            self.client.delete_object(self.namespace, self.bucket, key)

    @contextmanager
    def _unless_gone(self, key: str) -> Iterator[None]:
        from oci.exceptions import ServiceError

        with self._errors(key):
            try:
                yield
            except ServiceError as e:
                if e.status != 404 or e.code == "BucketNotFound":
                    raise

    @contextmanager
    def _errors(self, key: str = "") -> Iterator[None]:
        import oci
        from urllib3.exceptions import HTTPError

        try:
            yield
        except oci.exceptions.ServiceError as e:
            raise self._refusal(key, e) from e
        except (oci.exceptions.RequestException, oci.exceptions.ClientError, HTTPError, OSError) as e:
            where = f"{self.name}/{key}" if key else self.name
            raise CopyTransientError(
                f"{where}: {self.endpoint} does not answer: {' '.join(str(e).split())[:300]}"
            ) from e

    def _refusal(self, key: str, error: Any) -> CopyError:
        where = f"{self.name}/{key}" if key else self.name
        said = f"{where}: {error.message} ({error.code})"
        if error.status == 401:
            return CopyInputError(f"{said}: correct user, tenancy, fingerprint, key and region of the connection")
        if error.code in ("BucketNotFound", "NamespaceNotFound"):
            return CopyInputError(
                f"{where}: namespace {self.namespace} has no bucket {self.bucket} at {self.endpoint}, or these"
                " credentials may not see it: correct the name, or set the region of the bucket"
            )
        if error.code == "NoSuchUpload":
            return CopyTransientError(f"{where}: another client aborted its upload")
        if error.status == 412 or (error.status == 404 and key):
            return changed(where)
        if error.status in (409, 429) or error.status >= 500 or error.code == "UnmatchedContentMD5":
            return CopyTransientError(said)
        return (CopyObjectError if key else CopyInputError)(said)


def _md5(body: bytes) -> str:
    return b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _hex(md5: str | None) -> str:
    """Convert OCI's MD5 (base64, followed by the number of parts) to the form of S3."""
    if not md5:
        return ""
    digest, dash, parts = md5.partition("-")
    return b64decode(digest).hex() + dash + parts


def _head(headers: Mapping[str, str]) -> Head:
    md5 = _hex(headers.get("content-md5"))
    span = headers.get("content-range", "").rpartition("/")[2]
    return Head(
        size=int(span or headers["content-length"]),
        version=md5 or _hex(headers.get("opc-multipart-md5")) or headers["etag"],
        tag=headers["etag"],
        md5=md5,
        content_type=headers.get("content-type", ""),
        metadata={n.removeprefix("opc-meta-"): value for n, value in headers.items() if n.startswith("opc-meta-")},
    )
