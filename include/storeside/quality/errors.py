"""The error of suites: QualityError."""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError


class QualityError(StoresideError, BadInput):
    """A suite cannot be applied, so there is no verdict on the data; the message states the reason."""
