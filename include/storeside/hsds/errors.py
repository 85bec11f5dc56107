"""Errors of exports and imports between HSDS, S3 and files.

HsdsError
├── HsdsInputError       the request cannot be carried out; no retry helps
├── HsdsTransientError   the same request may succeed later
└── HsdsCancelled        the export or import was stopped
"""

from __future__ import annotations

from storeside.errors import BadInput, Cancelled, StoresideError, Transient


class HsdsError(StoresideError):
    """An export or import cannot continue; the message names object, reason and remedy."""


class HsdsInputError(HsdsError, BadInput):
    """The request is wrong, not allowed, or contradicts existing data; `status` is HSDS's status if it answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HsdsTransientError(HsdsError, Transient):
    """A server was unreachable or busy, or broke the connection."""


class HsdsCancelled(HsdsError, Cancelled):
    """The event `stop` was set. Written data stay, and the same run, started again, continues after them."""
