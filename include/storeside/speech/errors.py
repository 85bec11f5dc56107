"""Errors of the speech manifest.

ManifestError
├── MissingFactsError     a retry reads the facts again
└── UnreadableFactsError  the facts of an object are not those of a transformer
"""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError, Transient


class ManifestError(StoresideError):
    """The manifest cannot be completed; the message states the missing facts or rows."""


class MissingFactsError(ManifestError, Transient):
    """Some facts of the run are missing; a retry reads them again."""


class UnreadableFactsError(ManifestError, BadInput):
    """The facts of an object are not what a transformer writes; the message states the object."""
