"""Errors of copies from one endpoint to another, and the rule for transient ones.

CopyError
├── CopyInputError       settings, credentials, endpoint or bucket: nothing can be copied, no retry helps
├── CopyObjectError      one object cannot be copied; the others can
│   ├── ChangedError     it was overwritten or deleted after it was listed
│   └── DeniedError      these credentials may not read or write it
├── CopyTransientError   the same request may succeed later
└── CopyCancelled        the copy was stopped
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from storeside.aistore.errors import EXPIRED
from storeside.errors import BadInput, Cancelled, Partial, StoresideError, Transient

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# Transient error codes with other statuses: expired keys, a slow or broken connection, too many requests.
_PASSING = EXPIRED | {"RequestTimeout", "BadDigest", "Throttling"}


def passes(error: ClientError) -> bool:
    """Return whether the same request may succeed later, mostly by its status, because codes differ by server."""
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code in _PASSING or status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def passing_errors() -> tuple[type[Exception], ...]:
    """Return botocore's errors of connections and of key renewal: the same request may succeed later."""
    from botocore import exceptions as boto

    return (
        boto.ConnectionError,
        boto.HTTPClientError,
        boto.IncompleteReadError,
        boto.CredentialRetrievalError,
        boto.MetadataRetrievalError,
    )


class CopyError(StoresideError):
    """Objects cannot be copied; the message states the object, the reason and the remedy."""


class CopyInputError(CopyError, BadInput):
    """The settings are wrong, or the endpoint refuses every request."""


class CopyObjectError(CopyError, Partial):
    """One object cannot be copied."""


class ChangedError(CopyObjectError):
    """An object has changed since it was listed."""


class DeniedError(CopyObjectError):
    """These credentials may not read or write an object."""


class CopyTransientError(CopyError, Transient):
    """An endpoint was unreachable or busy, or broke the connection."""


class CopyCancelled(CopyError, Cancelled):
    """The event `stop` was set."""


def changed(name: str) -> ChangedError:
    """Return the error of an object that was overwritten or deleted during the copy."""
    return ChangedError(f"{name} was overwritten or deleted while it was copied: the next run copies the new version")
