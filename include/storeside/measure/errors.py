"""Errors of throughput measurements.

MeasureError
├── MeasureInputError       load, loader or bucket do not allow a measurement; no retry helps
├── MeasureTransientError   the cluster or its load generator failed; the same measurement may succeed later
└── MeasureCancelled        the measurement was cancelled
"""

from __future__ import annotations

from storeside.errors import BadInput, Cancelled, StoresideError, Transient


class MeasureError(StoresideError):
    """The measurement failed; the message states the reason and the remedy."""


class MeasureInputError(MeasureError, BadInput):
    """The requested load cannot be run."""


class MeasureTransientError(MeasureError, Transient):
    """The cluster does not answer, or requests failed, so the measurement is invalid."""


class MeasureCancelled(MeasureError, Cancelled):
    """A user cancelled the measurement."""
