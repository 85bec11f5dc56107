"""A bucket of S3, of a server that speaks its API, or of AIStore's S3 API."""

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

from include.storage.buckets import Bucket, StoredObject, list_aistore, list_s3
from include.storage.errors import (
    DeniedError,
    ObjectError,
    StorageError,
    TransientError,
    UsageError,
    changed,
    passes,
    passing_errors,
)
from include.storage.multipart import S3_LIMITS, Limits
from include.storage.names import unfit
from include.storage.places import Clusters, place
from include.storage.store import Head, Upload
from include.transform.errors import said

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from include.storage.cluster import Cluster

_MD5 = re.compile(r"[0-9a-f]{32}")
_OF_PARTS = re.compile(r"[0-9a-f]{32}-\d+")
_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})
_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
_GONE = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion"})
# The answer to a HEAD has no body: botocore gives its status as the code, and the reason may be one that passes.
_NO_REASON = frozenset({"400", "403"})
_CHANGED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
# request -> what allows it, where that is called otherwise
_PERMISSIONS = {
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
}


def client_config(connections: int, given: Mapping[str, Any] | None = None) -> Any:
    """Return botocore's configuration of a client that threads share, on top of what is `given`.

    Checksums that S3's own clients add by themselves are left out (``when_required``): not all servers take them, and
    each body goes with its MD5. Raises UsageError for a configuration that botocore refuses.
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
        raise UsageError(f"config_kwargs of the connection: {e}") from e


def head_object(client: S3Client, bucket: str, key: str) -> Any:
    """HEAD an object; where that is refused, a GET of one byte says why. Raises ClientError."""
    from botocore.exceptions import ClientError

    try:
        return client.head_object(Bucket=bucket, Key=key)
    except ClientError as e:
        if e.response["Error"]["Code"] in _NO_REASON:
            client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
        raise


class S3Store:
    """One bucket behind a boto3 client; see `include.storage.store.Store`."""

    limits: Limits = S3_LIMITS

    def __init__(self, client: S3Client, bucket: str) -> None:
        self.client = client
        self.bucket = bucket

    @property
    def name(self) -> str:
        """Return ``s3://bucket``, with the server where it is not AWS's."""
        host = urlsplit(self.client.meta.endpoint_url).netloc
        return f"s3://{self.bucket}" if host.endswith(".amazonaws.com") else f"s3://{host}/{self.bucket}"

    @property
    def endpoint(self) -> str:
        """Return the API and the server."""
        return f"s3 {self.client.meta.endpoint_url}"

    def refused(self, key: str) -> str | None:
        """Return why S3 cannot hold an object of this name."""
        return "the name is longer than S3's 1,024 bytes" if len(key.encode()) > 1024 else None

    def fronts(self) -> str:
        """Return nothing: S3 has no buckets that are fronts."""
        return ""

    def check(self) -> None:
        """Ask for one name of the bucket: that needs its region, its style and the right to list it."""
        with self._errors():
            self.client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Stream the bucket's objects; their version is the ETag."""
        with self._errors():
            yield from list_s3(self.client, self.bucket, prefix)

    def head(self, key: str) -> Head:
        """Ask for an object without its content."""
        with self._errors(key):
            return self._head(head_object(self.client, self.bucket, key))

    def fetch(self, key: str) -> tuple[Head, bytes]:
        """Read an object in one request."""
        with self._errors(key):
            answer = self.client.get_object(Bucket=self.bucket, Key=key)
            head, body = self._head(answer), answer["Body"].read()
        return head, self._whole(key, body, head.size)

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Read a range with If-Match; the tag is compared as well, as AIStore does not look at the condition."""
        with self._errors(key):
            answer = self.client.get_object(
                Bucket=self.bucket, Key=key, Range=f"bytes={start}-{start + size - 1}", IfMatch=head.tag
            )
            if answer["ETag"] != head.tag:
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
            raise TransientError(f"{self.name}/{key}: {len(body)} of {size} bytes came")
        return body

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object with its MD5, which the server compares, and compare the ETag that it answers."""
        digest = hashlib.md5(body, usedforsecurity=False)
        with self._errors(key):
            answer = self.client.put_object(
                Bucket=self.bucket, Key=key, Body=body, ContentMD5=b64encode(digest.digest()).decode(), **_kept(head)
            )
        tag = answer["ETag"].strip('"')
        if not self._stored(tag, body, digest.hexdigest(), answer):
            raise TransientError(f"{self.name}/{key}: the server stored other bytes (ETag {tag}) than were sent")
        return tag

    def _stored(self, tag: str, body: bytes, md5: str, answer: Any) -> bool:
        """Tell whether an answer's tag is that of the content; encrypted objects have tags of another kind."""
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
            raise TransientError(f"{self.name}/{key}: the server stored other bytes of part {number} than were sent")
        return answer["ETag"]

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Complete an upload; where tags are MD5s, the object's has to be the MD5 of them all."""
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
                raise ObjectError(f"{self.name}/{key}: the server made another object (ETag {version}) of the parts")
        return version

    def abort(self, key: str, upload: str) -> None:
        """Drop an upload and its parts; servers have several codes for one that is gone."""
        from botocore.exceptions import ClientError

        with self._errors(key):
            try:
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            except ClientError as e:
                missing = e.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.NOT_FOUND
                if not missing or e.response["Error"]["Code"] == "NoSuchBucket":
                    raise

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield the uploads of a key that were not completed."""
        with self._errors(key):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=key)
            for page in pages:
                for found in page.get("Uploads", []):
                    if found["Key"] == key:
                        yield Upload(key, found["UploadId"], found["Initiated"])

    def delete(self, key: str) -> None:
        """Delete an object; AIStore's API says when there is none."""
        with self._errors(key), suppress(self.client.exceptions.NoSuchKey):
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def _errors(self, key: str = "") -> AbstractContextManager[None]:
        return s3_errors(self.client, self.name, self.bucket, key)


class AIStoreStore(S3Store):
    """One of AIStore's own buckets, made where missing, through the cluster's S3 API (feature ``S3-Reverse-Proxy``).

    The cluster lists it, as the S3 API leaves out ETags. It takes parts of any size, and does not compare the MD5s
    that it is sent; what it answers is.
    """

    limits = Limits(1, S3_LIMITS.most_part, S3_LIMITS.most_parts, S3_LIMITS.most_put)

    def __init__(self, cluster: Cluster, bucket: str, connections: int) -> None:
        import boto3
        from botocore import UNSIGNED

        client = boto3.client(
            "s3",
            endpoint_url=f"{cluster.endpoint.rstrip('/')}/s3",
            region_name="us-east-1",  # botocore wants one
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
        """Return the name of the bucket behind this one (``backend_bck``), if there is one."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        own = Bucket("ais", self.bucket)
        try:
            where = place(self._cluster, own, Clusters.of(self._cluster))
            return where.name if where != own else ""
        except (AISError, RequestException) as e:
            raise TransientError(f"{self.name}: AIStore does not tell its properties: {said(e)}") from e

    def check(self) -> None:
        """Make the bucket where it is missing."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        try:
            Bucket("ais", self.bucket).handle(self._cluster).create(exist_ok=True)
        except (AISError, RequestException) as e:
            text = f"{self.name}: AIStore at {self.endpoint} cannot make it: {said(e)}"
            if getattr(e, "status_code", 0) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise UsageError(f"{text}: give the connection a token (its password) that may make buckets") from e
            raise TransientError(text) from e

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Have the cluster list the bucket."""
        return list_aistore(self._cluster, Bucket("ais", self.bucket), prefix)

    def refused(self, key: str) -> str | None:
        """Return why AIStore cannot hold an object of this name."""
        return unfit(key)

    def _head(self, answer: Any) -> Head:
        return replace(super()._head(answer), version="", metadata={})  # it would show its own checksum there

    def _stored(self, tag: str, body: bytes, md5: str, answer: Any) -> bool:
        if _MD5.fullmatch(tag):
            return tag == md5
        import xxhash

        # v1-<XXH64 of the content>-<time>, see LOM.ETag of AIStore 5.0
        found = re.match(r"v1-([0-9a-f]+)-", tag)
        return found is None or int(found[1], 16) == xxhash.xxh64_intdigest(body)

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object; the listing's version is another than the S3 API's tag."""
        super().put(key, body, head)
        return ""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Complete an upload; the listing's version is another than the S3 API's tag."""
        super().complete(key, upload, tags)
        return ""


def _kept(head: Head) -> dict[str, Any]:
    kept: dict[str, Any] = {"Metadata": dict(head.metadata)} if head.metadata else {}
    return {**kept, "ContentType": head.content_type} if head.content_type else kept


@contextmanager
def s3_errors(client: S3Client, name: str, bucket: str, key: str = "") -> Iterator[None]:
    """Turn botocore's errors into ours, with what is to be done about them."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except client.exceptions.NoSuchUpload as e:
        raise TransientError(f"{name}/{key}: its upload was aborted by somebody else") from e
    except ClientError as e:
        raise _refusal(client, name, key, e) from e
    except BotoCoreError as e:
        raise _failure(client, name, bucket, key, e) from e


def _refusal(client: S3Client, name: str, key: str, error: Any) -> StorageError:
    code, answer = error.response["Error"]["Code"], error.response["ResponseMetadata"]
    status = answer.get("HTTPStatusCode", 0)
    where = f"{name}/{key}" if key else name
    text = f"{where}: {error.response['Error'].get('Message') or code} ({code})"
    permission = f"s3:{_PERMISSIONS.get(error.operation_name, error.operation_name)}"
    kinds: tuple[tuple[bool, StorageError], ...] = (
        (code == "NoSuchBucket", UsageError(f"{text}: create it at {client.meta.endpoint_url}, or correct its name")),
        (code in _REGION, UsageError(f"{text}: set the connection's region_name to {_region(error)}")),
        (code in _KEYS or status == 401, UsageError(f"{text}: correct the connection's keys")),
        (passes(error), TransientError(text)),
        (status == 307, UsageError(f"{text}: turn on AIStore's features S3-API-via-Root and S3-Reverse-Proxy")),
        (code == "EntityTooSmall", UsageError(f"{text}: raise part_size")),
        (code in _CHANGED or bool(key and code in _GONE), changed(where)),
        (error.operation_name == "HeadObject" and code in _NO_REASON, TransientError(text)),
        (
            code == "AccessDenied" or status == 403,
            (DeniedError if key else UsageError)(f"{text}: give the connection's keys the permission {permission}"),
        ),
    )
    return next((kind for applies, kind in kinds if applies), (ObjectError if key else UsageError)(text))


def _region(error: Any) -> str:
    headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or error.response["Error"].get("Region") or "that of the bucket")


def _failure(client: S3Client, name: str, bucket: str, key: str, error: Any) -> StorageError:
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError, PartialCredentialsError

    where = f"{name}/{key}" if key else name
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return UsageError(f"{where}: {error}: give the connection its keys")
    if isinstance(error, EndpointConnectionError):
        host = urlsplit(str(error.kwargs.get("endpoint_url"))).hostname or ""
        if host.startswith(f"{bucket}."):
            return UsageError(
                f"{where}: no server at {host}, which is the bucket's name in the server's (virtual-host style):"
                " set addressing_style to 'path'"
            )
        return TransientError(f"{where}: no server answers at {client.meta.endpoint_url}: {error}")
    if isinstance(error, passing_errors()):
        return TransientError(f"{where}: {error}")
    return (ObjectError if key else UsageError)(f"{where}: {error}")
