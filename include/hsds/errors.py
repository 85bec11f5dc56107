"""What can go wrong between HSDS and S3, and what is done about it.

HsdsError
├── RequestError     what was asked for cannot be done; no retry helps
└── TransientError   the same again may succeed
"""

from __future__ import annotations


class HsdsError(Exception):
    """An export or import cannot go on; the message names object, reason and remedy."""


class RequestError(HsdsError):
    """The request is wrong, not allowed, or contradicts what is there; `status` is HSDS's where it said so."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TransientError(HsdsError):
    """A server could not be reached, was busy, or broke off."""
