"""Errors that prevent the doctor's checks; faults that the checks detect are findings, not errors."""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError


class DoctorInputError(StoresideError, BadInput):
    """No connection is set, or a connection cannot be parsed."""
