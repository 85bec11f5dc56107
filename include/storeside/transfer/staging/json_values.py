"""Refuses values of JSON that ClickHouse would change; see `json_numbers`, `json_moments` and `json_lists`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import arguments
from storeside.transfer.objects.strict_json import depth_of
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

    def fault(self, document: bytes) -> str:
        """Return which column has such a value in a document; empty if none has."""
        suspects = [check for check in self._checks if check.may_be_in(document)]
        if not suspects or (row := self._documents.row(document)) is None:
            return ""
        return next(filter(None, (check.fault(row) for check in suspects)), "")

    def checked(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces of JSON Lines unchanged, after their check. Raises LoadObjectError with row and column."""
        if not any(check.names for check in self._checks):
            yield from pieces
            return
        row, rest = 0, b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            row, rest = self._check(lines, row, rest)
            yield piece
        self._check([rest], row, b"")

    def _check(self, lines: Sequence[bytes], row: int, rest: bytes) -> tuple[int, bytes]:
        """Check the documents in lines; return the next row, and the beginning of a document with the `rest`."""
        pending: list[bytes] = []
        depth = 0
        for line in lines:
            pending.append(line)
            depth += depth_of(line) if len(pending) > 1 or line.count(b"{") != line.count(b"}") else 0
            if depth > 0:
                continue
            document = b"\n".join(pending)
            if reason := self.fault(document):
                raise LoadObjectError(f"row {row}, {reason}")
            row += bool(document.strip())
            pending, depth = [], 0
        return row, b"\n".join([*pending, rest])
