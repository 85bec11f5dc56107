"""Errors of exports and imports between HSDS, S3 and files.

HsdsError
├── HsdsInputError       the request cannot be carried out; no retry helps
├── HsdsTransientError   the same request may succeed later
└── HsdsCancelled        the export or import was stopped
"""

from __future__ import annotations

from storeside.errors import BadInput, Cancelled, StoresideError, Transient


class HsdsError(StoresideError):
    """An export or import cannot continue; the message states object, reason and remedy."""


class HsdsInputError(HsdsError, BadInput):
    """The request is invalid, denied, or contradicts existing data; `status` is HSDS's HTTP status, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HsdsTransientError(HsdsError, Transient):
    """A server was unreachable or busy, or closed the connection early."""


class HsdsCancelled(HsdsError, Cancelled):
    """The event `stop` was set. Written data stay; the same run continues after them when it is started again."""
