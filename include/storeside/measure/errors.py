"""Errors of throughput measurements.

MeasureError
├── MeasureInputError       load, loader or bucket do not allow a measurement; no retry helps
├── MeasureTransientError   the cluster or its load generator failed: the same measurement may succeed later
└── MeasureCancelled        the measurement was cancelled
"""

from __future__ import annotations

from storeside.errors import BadInput, Cancelled, StoresideError, Transient


class MeasureError(StoresideError):
    """The measurement failed; the message names reason and remedy."""


class MeasureInputError(MeasureError, BadInput):
    """The load cannot be run as requested."""


class MeasureTransientError(MeasureError, Transient):
    """The cluster does not answer, or requests failed, which makes the measurement void."""


class MeasureCancelled(MeasureError, Cancelled):
    """A user cancelled the measurement."""
