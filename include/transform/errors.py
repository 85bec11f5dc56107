"""Errors of transforms and copies.

TransformError             configuration or input: trying again changes nothing
 ├─ StuckTargetError          a target answers no control call until it is restarted
 └─ TransientTransformError   the cluster or the network: trying again may help
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from include.storage.errors import EXPIRED


class TransformError(Exception):
    """The transform cannot be done as asked; the message names object, reason and remedy."""


class TransientTransformError(TransformError):
    """The transform failed for a reason that may pass."""


class StuckTargetError(TransformError):
    """A target of AIStore's answers no control call; the message names it and says how to restart it."""


def said(error: Any) -> str:
    """Return what an error of AIStore says; see `plain`."""
    return plain(str(getattr(error, "message", "") or error))


def is_passing_refusal(text: str) -> bool:
    """Return whether AIStore passes on a refusal of the S3 behind it that may be gone next time.

    It says which in its message, such as ``aws-error[RequestTimeTooSkewed: …]``. The answer to a HEAD has no body and
    is only ``aws-error[Forbidden``: that may be one too.
    """
    return any(code in text for code in (*EXPIRED, "aws-error[Forbidden"))


def plain(text: str) -> str:
    """Return a message in a line, without the JSON that AIStore's nodes and the transformer's server wrap it in."""
    with suppress(ValueError, TypeError, KeyError):  # not everything that fails on the way is AIStore
        text = str(json.loads(text)["message"])
    if found := re.search(r'"detail":\s*("(?:[^"\\]|\\.)*")', text):
        with suppress(ValueError):
            text = json.loads(found[1]).removeprefix("Processing error: ")
    return " ".join(text.split())[:1000]
