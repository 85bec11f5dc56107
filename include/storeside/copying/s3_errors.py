"""Converts boto3's errors to errors with the object, the reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storeside.copying.errors import (
    CopyError,
    CopyInputError,
    CopyObjectError,
    CopyTransientError,
    DeniedError,
    changed,
    passes,
    passing_errors,
)

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})
_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
_GONE = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion"})
# The answer to a HEAD has no body, so botocore reports the status as the code. The reason may be transient.
NO_REASON = frozenset({"400", "403"})
_CHANGED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
# The permission for a request, if it has another name.
_PERMISSIONS = {
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
}


@contextmanager
def s3_errors(client: S3Client, name: str, bucket: str, key: str = "") -> Iterator[None]:
    """Convert botocore's errors to CopyErrors with a remedy."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except client.exceptions.NoSuchUpload as e:
        raise CopyTransientError(f"{name}/{key}: another client aborted its upload") from e
    except ClientError as e:
        raise _refusal(client, name, key, e) from e
    except BotoCoreError as e:
        raise _failure(client, name, bucket, key, e) from e


def _refusal(client: S3Client, name: str, key: str, error: Any) -> CopyError:
    code, answer = error.response["Error"]["Code"], error.response["ResponseMetadata"]
    status = answer.get("HTTPStatusCode", 0)
    where = f"{name}/{key}" if key else name
    text = f"{where}: {error.response['Error'].get('Message') or code} ({code})"
    permission = f"s3:{_PERMISSIONS.get(error.operation_name, error.operation_name)}"
    kinds: tuple[tuple[bool, CopyError], ...] = (
        (
            code == "NoSuchBucket",
            CopyInputError(f"{text}: create it at {client.meta.endpoint_url}, or correct its name"),
        ),
        (code in _REGION, CopyInputError(f"{text}: set the connection's region_name to {_region(error)}")),
        (code in _KEYS or status == 401, CopyInputError(f"{text}: correct the connection's keys")),
        (passes(error), CopyTransientError(text)),
        (status == 307, CopyInputError(f"{text}: turn on AIStore's features S3-API-via-Root and S3-Reverse-Proxy")),
        (code == "EntityTooSmall", CopyInputError(f"{text}: raise part_size")),
        (code in _CHANGED or bool(key and code in _GONE), changed(where)),
        (error.operation_name == "HeadObject" and code in NO_REASON, CopyTransientError(text)),
        (
            code == "InvalidObjectState",  # S3 answers 403
            CopyObjectError(f"{text}: restore it from its archive, or select other objects with a prefix"),
        ),
        (
            code == "AccessDenied" or status == 403,
            (DeniedError if key else CopyInputError)(
                f"{text}: give the connection's keys the permission {permission}"
            ),
        ),
    )
    return next((kind for applies, kind in kinds if applies), (CopyObjectError if key else CopyInputError)(text))


def _region(error: Any) -> str:
    headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or error.response["Error"].get("Region") or "that of the bucket")


def _failure(client: S3Client, name: str, bucket: str, key: str, error: Any) -> CopyError:
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError, PartialCredentialsError

    where = f"{name}/{key}" if key else name
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return CopyInputError(f"{where}: {error}: set the keys of the connection")
    if isinstance(error, EndpointConnectionError):
        host = urlsplit(str(error.kwargs.get("endpoint_url"))).hostname or ""
        if host.startswith(f"{bucket}."):
            return CopyInputError(
                f"{where}: no server at {host}, the address with the bucket's name in it (virtual-host style):"
                " set addressing_style to 'path'"
            )
        return CopyTransientError(f"{where}: no server answers at {client.meta.endpoint_url}: {error}")
    if isinstance(error, passing_errors()):
        return CopyTransientError(f"{where}: {error}")
    return (CopyObjectError if key else CopyInputError)(f"{where}: {error}")
