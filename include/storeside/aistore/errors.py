"""Errors of AIStore, and of the transforms and copies that it runs.

AIStoreError
├── AIStoreInputError       configuration or input: a retry changes nothing
│   └── StuckTargetError    a target answers no control call until it is restarted
└── AIStoreTransientError   the cluster or the network: a retry may help
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from storeside.errors import BadInput, StoresideError, Transient

# Codes of S3 with status 403 or 400, during the renewal of keys or for a wrong clock: the request may succeed later.
EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestExpired", "RequestTimeTooSkewed"})
# Refusals that pass: a time-out, a busy bucket, and the limit of a rate.
PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
# The reason of an object that is missing after a job, if no report has another reason.
NO_REASON = "AIStore ended the job without this object and gave no reason"


class AIStoreError(StoresideError):
    """AIStore cannot do the work; the message states the object, the reason and the remedy."""


class AIStoreInputError(AIStoreError, BadInput):
    """The request, a bucket, an ETL or the connection is wrong."""


class AIStoreTransientError(AIStoreError, Transient):
    """The cluster is busy or unreachable."""


class StuckTargetError(AIStoreInputError):
    """A target of AIStore answers no control call; the message states the target and how to restart it."""


def said(error: Any) -> str:
    """Return the message of an AIStore error; see `plain`."""
    return plain(str(getattr(error, "message", "") or error))


def is_refusal(status: int | None) -> bool:
    """Return whether an HTTP status is a refusal of the request, not a failure of the server."""
    return HTTPStatus.BAD_REQUEST <= (status or 0) < HTTPStatus.INTERNAL_SERVER_ERROR


def is_passing(status: int | None) -> bool:
    """Return whether the same request may succeed later, judged by its HTTP status; a missing one is a failure."""
    return (status or HTTPStatus.INTERNAL_SERVER_ERROR) >= HTTPStatus.INTERNAL_SERVER_ERROR or status in PASSING


def is_passing_refusal(text: str) -> bool:
    """Return whether AIStore reports a temporary refusal by the S3 service behind it.

    AIStore's message has the code, such as ``aws-error[RequestTimeTooSkewed: …]``. The answer to a HEAD request has
    no body, so its ``aws-error[Forbidden`` may be a temporary refusal too.
    """
    return any(code in text for code in (*EXPIRED, "aws-error[Forbidden"))


def plain(text: str) -> str:
    """Return a message on one line, without the JSON that AIStore's nodes and the transformer add around it."""
    with suppress(ValueError, TypeError, KeyError):  # not every error is from AIStore
        text = str(json.loads(text)["message"])
    if found := re.search(r'"detail":\s*("(?:[^"\\]|\\.)*")', text):
        with suppress(ValueError):
            text = json.loads(found[1]).removeprefix("Processing error: ")
    return " ".join(text.split())[:1000]
