"""Refuses values of JSON that ClickHouse would change; see `json_numbers`, `json_moments` and `json_lists`."""

from __future__ import annotations

from dataclasses import replace

from storeside.transfer.base.schema import arguments
from storeside.transfer.staging.json_lists import Lists
from storeside.transfer.staging.json_moments import Moments
from storeside.transfer.staging.json_numbers import Numbers
from storeside.transfer.staging.json_places import Documents
from storeside.transfer.statements.reading import Reading


def _without_variant(kind: str) -> str:
    """Return the type of lists, maps or structs whose column is read as a variant of it, because it may be NULL."""
    found = arguments(kind) if kind.startswith("Variant(") else []
    return found[0] if len(found) == 1 else kind


class JsonValues:
    """The values that the columns of a load refuse."""

    def __init__(self, reading: Reading) -> None:
        columns = [replace(c, type=_without_variant(c.type)) for c in reading.columns]
        self._checks = (Numbers(columns, reading.kept), Moments(columns, reading.zone), Lists(columns))
        self._documents = Documents(name for check in self._checks for name in check.names)

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a value in one of the columns; the worker then decides."""
        found = " OR ".join(filter(None, (check.condition for check in self._checks)))
        return f"({found})" if found else "0"

    def may_be_in(self, text: bytes) -> bool:
        """Return whether a text of one or more documents may have such a value; see `strict_json`."""
        return any(check.may_be_in(text) for check in self._checks)

    def fault(self, document: bytes) -> str:
        """Return which column has such a value in a document; empty if none has."""
        suspects = [check for check in self._checks if check.may_be_in(document)]
        if not suspects or (row := self._documents.row(document)) is None:
            return ""
        return next(filter(None, (check.fault(row) for check in suspects)), "")
