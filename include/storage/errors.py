"""What can go wrong when objects are moved from endpoint to endpoint.

StorageError
├── UsageError        settings, credentials, endpoint or bucket: nothing can be moved, no retry helps
├── ObjectError       one object cannot be moved; the others are
│   ├── ChangedError  it was overwritten or deleted after it was listed
│   └── DeniedError   these credentials may not read or write it
└── TransientError    the same again may succeed
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# What S3 answers, as 403 or 400, while keys are being renewed or a clock is wrong: the same again may succeed.
EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestExpired", "RequestTimeTooSkewed"})
# What else it answers with such a status, and which passes: a connection was slow or broke, or there was too much.
_PASSING = EXPIRED | {"RequestTimeout", "BadDigest", "Throttling"}


def passes(error: ClientError) -> bool:
    """Tell whether the same request may succeed later: by the status, as servers have codes of their own."""
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code in _PASSING or status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def passing_errors() -> tuple[type[Exception], ...]:
    """Return botocore's errors of connections, and of keys that are fetched anew: the same again may succeed."""
    from botocore import exceptions as boto

    return (
        boto.ConnectionError,
        boto.HTTPClientError,
        boto.IncompleteReadError,
        boto.CredentialRetrievalError,
        boto.MetadataRetrievalError,
    )


class StorageError(Exception):
    """Objects cannot be moved; the message names what, why, and what to do about it."""


class UsageError(StorageError):
    """The request is wrong, or the endpoint refuses all of it."""


class ObjectError(StorageError):
    """One object cannot be moved."""


class ChangedError(ObjectError):
    """An object is not any more what it was when it was listed."""


class DeniedError(ObjectError):
    """An object may not be read or written with these credentials."""


class TransientError(StorageError):
    """An endpoint could not be reached, was busy, or broke off."""


def changed(name: str) -> ChangedError:
    """Return the error of an object that somebody overwrote or deleted meanwhile."""
    return ChangedError(f"{name} was overwritten or deleted while it was copied: the next run takes the new version")
