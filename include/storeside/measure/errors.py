"""Errors of measurements of throughput and of transforms.

MeasureError
├── MeasureInputError       load, loader or bucket do not allow a measurement; no retry helps
├── MeasureTransientError   the cluster or its load generator failed; the same measurement may succeed later
├── VariantFailedError      one variant of a transform failed; the others are measured
│   └── BrokenRecordingsError   only because some of the recordings cannot be transcoded
└── MeasureCancelled        the measurement was cancelled
"""

from __future__ import annotations

from collections.abc import Mapping

from storeside.errors import BadInput, Cancelled, Partial, StoresideError, Transient


class MeasureError(StoresideError):
    """The measurement failed; the message states the reason and the remedy."""


class MeasureInputError(MeasureError, BadInput):
    """The requested load cannot be run."""


class MeasureTransientError(MeasureError, Transient):
    """The cluster does not answer, or requests failed, so the measurement is invalid."""


class VariantFailedError(MeasureError, Partial):
    """One variant of a transform failed; the other variants are not affected."""


class BrokenRecordingsError(VariantFailedError):
    """Some recordings cannot be transcoded, and all others have results. `reasons` has the reason of each by name."""

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class MeasureCancelled(MeasureError, Cancelled):
    """A user cancelled the measurement."""
