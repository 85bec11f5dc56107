"""Errors that prevent the doctor's checks; faults that the checks detect are findings, not errors."""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError


class DoctorInputError(StoresideError, BadInput):
    """There is no connection to check, or none that can be read."""
