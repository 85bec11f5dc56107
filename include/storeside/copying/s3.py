"""A bucket behind the S3 API of AWS, of another server, or of AIStore."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError, said
from storeside.aistore.existence import require_bucket
from storeside.aistore.names import unfit
from storeside.aistore.places import Clusters, place
from storeside.aistore.stored_objects import StoredObject, list_aistore, list_s3
from storeside.copying.errors import CopyInputError, CopyObjectError, CopyTransientError, changed
from storeside.copying.multipart import S3_LIMITS, Limits
from storeside.copying.s3_errors import NO_REASON, s3_errors
from storeside.copying.store import Head, Upload

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from storeside.aistore.cluster import Cluster

_MD5 = re.compile(r"[0-9a-f]{32}")
_OF_PARTS = re.compile(r"[0-9a-f]{32}-\d+")


def client_config(connections: int, given: Mapping[str, Any] | None = None) -> Any:
    """Return botocore's configuration for a client that threads share, based on `given`.

    botocore's default checksums are left out (``when_required``), because not all servers accept them, and each body
    is sent with its MD5. Raises CopyInputError for a configuration that botocore refuses.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        return Config(**given or {}).merge(
            Config(
                max_pool_connections=connections,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries=(given or {}).get("retries", {"mode": "standard", "total_max_attempts": 5}),
            )
        )
    except (BotoCoreError, TypeError) as e:
        raise CopyInputError(f"config_kwargs of the connection: {e}") from e


def head_object(client: S3Client, bucket: str, key: str) -> Any:
    """Send a HEAD for an object; if the server refuses it, request one byte for the reason. Raises ClientError."""
    from botocore.exceptions import ClientError

    try:
        return client.head_object(Bucket=bucket, Key=key)
    except ClientError as e:
        if e.response["Error"]["Code"] in NO_REASON:
            client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
        raise


class S3Store:
    """One bucket behind a boto3 client; see `storeside.copying.store.Store`."""

    limits: Limits = S3_LIMITS

    def __init__(self, client: S3Client, bucket: str) -> None:
        self.client = client
        self.bucket = bucket

    @property
    def name(self) -> str:
        """Return ``s3://bucket``, with the server if it is not AWS."""
        host = urlsplit(self.client.meta.endpoint_url).netloc
        return f"s3://{self.bucket}" if host.endswith(".amazonaws.com") else f"s3://{host}/{self.bucket}"

    @property
    def endpoint(self) -> str:
        """Return the API and the server."""
        return f"s3 {self.client.meta.endpoint_url}"

    def refused(self, key: str) -> str | None:
        """Return why S3 cannot store an object of this name; None when it can."""
        return "the name is longer than S3's 1,024 bytes" if len(key.encode()) > 1024 else None

    def fronts(self) -> str:
        """Return an empty name, because a bucket of S3 has no backend bucket."""
        return ""

    def check(self, *, is_source: bool = False) -> None:
        """List one object, which checks the region, the addressing style and the permission to list."""
        with self._errors():
            self.client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Stream the bucket's objects; the version is the ETag."""
        with self._errors():
            yield from list_s3(self.client, self.bucket, prefix)

    def head(self, key: str) -> Head:
        """Return an object's metadata."""
        with self._errors(key):
            return self._head(head_object(self.client, self.bucket, key))

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        """Read an object in one request."""
        with self._errors(key):
            answer = self.client.get_object(Bucket=self.bucket, Key=key)
            head = self._head(answer)
            if head.size != size:
                answer["Body"].close()
                raise changed(f"{self.name}/{key}")
            body = answer["Body"].read()
        return head, self._whole(key, body, size)

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Read a range with If-Match, and compare the tag as well, because AIStore ignores the condition."""
        with self._errors(key):
            answer = self.client.get_object(
                Bucket=self.bucket, Key=key, Range=f"bytes={start}-{start + size - 1}", IfMatch=head.tag
            )
            if answer["ETag"] != head.tag:
                answer["Body"].close()
                raise changed(f"{self.name}/{key}")
            body = answer["Body"].read()
        return self._whole(key, body, size)

    def _head(self, answer: Any) -> Head:
        tag = answer["ETag"]
        plain = tag.strip('"')
        encrypted = str(answer.get("ServerSideEncryption", "AES256")) != "AES256" or "SSECustomerAlgorithm" in answer
        return Head(
            size=answer["ContentLength"],
            version=plain,
            tag=tag,
            md5=plain if _MD5.fullmatch(plain) and not encrypted else "",
            content_type=answer.get("ContentType", ""),
            metadata=answer.get("Metadata", {}),
        )

    def _whole(self, key: str, body: bytes, size: int) -> bytes:
        if len(body) != size:
            raise CopyTransientError(f"{self.name}/{key}: received {len(body)} of {size} bytes")
        return body

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object with its MD5, which the server verifies, and compare the ETag in the answer."""
        digest = hashlib.md5(body, usedforsecurity=False)
        with self._errors(key):
            answer = self.client.put_object(
                Bucket=self.bucket, Key=key, Body=body, ContentMD5=b64encode(digest.digest()).decode(), **_kept(head)
            )
        tag = answer["ETag"].strip('"')
        if not self._stored(tag, body, digest.hexdigest(), answer):
            raise CopyTransientError(
                f"{self.name}/{key}: the server stored other bytes (ETag {tag}) than the worker sent"
            )
        return tag

    def _stored(self, tag: str, body: bytes, md5: str, answer: Any) -> bool:
        """Return whether an answer's tag matches the content; True for encrypted objects, whose tags are no MD5."""
        return tag == md5 or not _MD5.fullmatch(tag) or "ServerSideEncryption" in answer

    def begin(self, key: str, head: Head) -> str:
        """Begin a multipart upload."""
        with self._errors(key):
            return self.client.create_multipart_upload(Bucket=self.bucket, Key=key, **_kept(head))["UploadId"]

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Write a part with its MD5."""
        digest = hashlib.md5(body, usedforsecurity=False)
        with self._errors(key):
            answer = self.client.upload_part(
                Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body,
                ContentMD5=b64encode(digest.digest()).decode(),
            )  # fmt: skip
        if not self._stored(answer["ETag"].strip('"'), body, digest.hexdigest(), answer):
            raise CopyTransientError(
                f"{self.name}/{key}: the server stored other bytes of part {number} than the worker sent"
            )
        return answer["ETag"]

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Complete an upload; if all tags are MD5s, compare the object's tag with the MD5 of all of them."""
        with self._errors(key):
            answer = self.client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload,
                MultipartUpload={"Parts": [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]},
            )  # fmt: skip
        version = answer["ETag"].strip('"')
        plain = [tag.strip('"') for tag in tags]
        if "ServerSideEncryption" not in answer and all(map(_MD5.fullmatch, plain)) and _OF_PARTS.fullmatch(version):
            whole = hashlib.md5(bytes.fromhex("".join(plain)), usedforsecurity=False).hexdigest()
            if version != f"{whole}-{len(plain)}":
                raise CopyObjectError(f"{self.name}/{key}: the object (ETag {version}) does not consist of its parts")
        return version

    def abort(self, key: str, upload: str) -> None:
        """Delete an upload and its parts. Servers have several error codes for an upload that does not exist."""
        from botocore.exceptions import ClientError

        with self._errors(key):
            try:
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            except ClientError as e:
                missing = e.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.NOT_FOUND
                if not missing or e.response["Error"]["Code"] == "NoSuchBucket":
                    raise

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield the uncompleted uploads of a key."""
        with self._errors(key):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=key)
            for page in pages:
                for found in page.get("Uploads", []):
                    if found["Key"] == key:
                        yield Upload(found["UploadId"], found["Initiated"])

    def delete(self, key: str) -> None:
        """Delete an object; AIStore's API returns an error if it does not exist."""
        with self._errors(key), suppress(self.client.exceptions.NoSuchKey):
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def _errors(self, key: str = "") -> AbstractContextManager[None]:
        return s3_errors(self.client, self.name, self.bucket, key)


class AIStoreStore(S3Store):
    """An ``ais://`` bucket, created if missing, behind the cluster's S3 API (feature ``S3-Reverse-Proxy``).

    AIStore's native API lists it, because the S3 API omits ETags. The S3 API accepts parts of any size. It does not
    verify the MD5s that it receives, so the client verifies its answers.
    """

    limits = Limits(1, S3_LIMITS.most_part, S3_LIMITS.most_parts, S3_LIMITS.most_put)

    def __init__(self, cluster: Cluster, bucket: str, connections: int) -> None:
        import boto3
        from botocore import UNSIGNED

        client = boto3.client(
            "s3",
            endpoint_url=f"{cluster.endpoint.rstrip('/')}/s3",
            region_name="us-east-1",  # botocore requires a region
            verify=cluster.ca_cert or cluster.verify,
            config=client_config(
                connections,
                {
                    "signature_version": UNSIGNED,
                    "s3": {"addressing_style": "path"},
                    "client_cert": cluster.certificate,
                },
            ),
        )
        if (credential := cluster.credential) is not None:
            client.meta.events.register(
                "before-send.s3",
                lambda request, **_: request.headers.__setitem__("Authorization", f"Bearer {credential}"),
            )
        super().__init__(client, bucket)
        self._cluster = cluster.client()

    @property
    def name(self) -> str:
        """Return ``ais://bucket``."""
        return f"ais://{self.bucket}"

    @property
    def endpoint(self) -> str:
        """Return the API and the server."""
        return f"ais {self.client.meta.endpoint_url}"

    def fronts(self) -> str:
        """Return the name of the backend bucket (``backend_bck``); empty if there is none."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        own = Bucket("ais", self.bucket)
        try:
            where = place(self._cluster, own, Clusters.of(self._cluster))
            return where.name if where != own else ""
        except (AISError, RequestException) as e:
            raise CopyTransientError(f"{self.name}: AIStore did not return its properties: {said(e)}") from e

    def check(self, *, is_source: bool = False) -> None:
        """Create the bucket if it does not exist; a source that does not exist is an error."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        own = Bucket("ais", self.bucket)
        try:
            if is_source:
                require_bucket(self._cluster, own)
            else:
                own.handle(self._cluster).create(exist_ok=True)
        except (AISError, RequestException) as e:
            what, right = ("did not return it", "read") if is_source else ("did not create it", "create")
            text = f"{self.name}: AIStore at {self.endpoint} {what}: {said(e)}"
            if getattr(e, "status_code", 0) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise CopyInputError(
                    f"{text}: give the connection a token (its password) that may {right} buckets"
                ) from e
            raise CopyTransientError(text) from e

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """List the bucket through AIStore's native API."""
        return list_aistore(self._cluster, Bucket("ais", self.bucket), prefix)

    def refused(self, key: str) -> str | None:
        """Return why AIStore cannot store an object of this name; None when it can."""
        return unfit(key)

    def _head(self, answer: Any) -> Head:
        return replace(super()._head(answer), version="", metadata={})  # both would contain AIStore's checksum

    def _stored(self, tag: str, body: bytes, md5: str, answer: Any) -> bool:
        if _MD5.fullmatch(tag):
            return tag == md5
        import xxhash

        # v1-<XXH64 of the content>-<time>, see LOM.ETag of AIStore 5.0
        found = re.match(r"v1-([0-9a-f]+)-", tag)
        return found is None or int(found[1], 16) == xxhash.xxh64_intdigest(body)

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object; returns no version, because the listing's version differs from the S3 API's tag."""
        super().put(key, body, head)
        return ""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Complete an upload; returns no version, because the listing's version differs from the S3 API's tag."""
        super().complete(key, upload, tags)
        return ""

    @contextmanager
    def _errors(self, key: str = "") -> Iterator[None]:
        """Convert the errors of AuthN, too, which the client raises when it needs another token."""
        with super()._errors(key):
            try:
                yield
            except AIStoreInputError as e:
                raise CopyInputError(f"{self.name}: {e}") from e
            except AIStoreTransientError as e:
                raise CopyTransientError(f"{self.name}: {e}") from e


def _kept(head: Head) -> dict[str, Any]:
    kept: dict[str, Any] = {"Metadata": dict(head.metadata)} if head.metadata else {}
    return {**kept, "ContentType": head.content_type} if head.content_type else kept
