"""Errors of transforms and copies.

TransformError             configuration or input: trying again changes nothing
 └─ TransientTransformError   the cluster or the network: trying again may help
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any


class TransformError(Exception):
    """The transform cannot be done as asked; the message names object, reason and remedy."""


class TransientTransformError(TransformError):
    """The transform failed for a reason that may pass."""


def said(error: Any) -> str:
    """Return what an error of AIStore says, in a line, without the JSON that its nodes wrap it in."""
    text = str(getattr(error, "message", "") or error)
    with suppress(ValueError, TypeError, KeyError):  # not everything that fails on the way is AIStore
        text = json.loads(text)["message"]
    return " ".join(text.split())[:1000]
