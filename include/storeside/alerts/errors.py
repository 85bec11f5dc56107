"""Errors of alerts."""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError, Transient


class AlertError(StoresideError):
    """An error of an alert."""


class AlertInputError(AlertError, BadInput):
    """A condition has an invalid argument."""


class AlertTransientError(AlertError, Transient):
    """A notifier could not send; the others have sent, and a retry does not repeat their messages."""
