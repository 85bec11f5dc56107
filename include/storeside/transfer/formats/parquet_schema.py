"""The columns that the footer of a Parquet object declares, and contradictions between their declarations.

A footer states several facts twice. pyarrow uses one of the statements, ClickHouse the other. Field ids are those of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.thrift import Struct

# A physical type.
BYTE_ARRAY = 6
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_DECIMAL, _UNKNOWN = 5, 11
_DEEPEST = 200


@dataclass(frozen=True)
class Leaf:
    """A column: its path, its physical type, and its maximum definition and repetition levels.

    `has_only_nulls` tells whether its logical type is UNKNOWN, which declares every value NULL.
    """

    path: tuple[str, ...]
    type: int
    definition: int
    repetition: int
    has_only_nulls: bool

    @property
    def name(self) -> str:
        """The path with dots between its parts, for messages."""
        return ".".join(self.path) or "?"


def leaves(elements: Sequence[Struct]) -> list[Leaf]:
    """Return the columns of a flattened schema, which begins with its root.

    Raises LoadObjectError for contradictions, and LookupError, TypeError or AttributeError for unexpected types.
    """
    rest = iter(elements)
    root = next(rest)
    found = [leaf for _ in range(root[5][1]) for leaf in _leaves(rest, (), 0, 0)]
    if next(rest, None) is not None:
        raise LoadObjectError("the schema in its footer has more elements than columns")
    return found


def _leaves(rest: Iterator[Struct], path: tuple[str, ...], definition: int, repetition: int) -> Iterator[Leaf]:
    element = next(rest, None)
    if element is None:
        raise LoadObjectError("the schema in its footer is cut off")
    if len(path) > _DEEPEST:
        raise LoadObjectError("the schema in its footer is nested too deeply")
    path = (*path, element[4][1].decode("utf-8", "replace"))
    _check(element, ".".join(path))
    kind = element[3][1]
    definition += kind != _REQUIRED
    repetition += kind == _REPEATED
    children = element[5][1] if 5 in element else 0
    if not children:
        has_only_nulls = 10 in element and _UNKNOWN in element[10][1]
        yield Leaf(path, element[1][1], definition, repetition, has_only_nulls)
    for _ in range(children):
        yield from _leaves(rest, path, definition, repetition)


def _check(element: Struct, name: str) -> None:
    if element[3][1] not in (_REQUIRED, _OPTIONAL, _REPEATED):
        raise LoadObjectError(f"column {name!r} has an invalid repetition {element[3][1]}: rewrite the file")
    if 6 not in element or 10 not in element:
        return
    ((logical, (_, details)),) = element[10][1].items()
    expected = _CONVERTED[logical](details) if logical in _CONVERTED else None
    if expected is not None and element[6][1] not in expected:
        raise LoadObjectError(
            f"column {name!r} has logical type {logical} and converted type {element[6][1]}, which contradict each"
            " other: rewrite the file"
        )
    if logical == _DECIMAL and {n: element[n][1] for n in (7, 8) if n in element} != {
        n + 6: details[n][1] for n in (1, 2) if n + 6 in element and n in details
    }:
        raise LoadObjectError(
            f"column {name!r} declares two different decimal scales or precisions: rewrite the file"
        )


def _of_unit(millis: int, micros: int) -> Callable[[Struct], tuple[int, ...]]:
    def expected(details: Struct) -> tuple[int, ...]:
        (unit,) = details[2][1]
        return {1: (millis,), 2: (micros,)}.get(unit, ())

    return expected


def _of_integer(details: Struct) -> tuple[int, ...]:
    width = {8: 0, 16: 1, 32: 2, 64: 3}[details[1][1]]
    return (15 + width if details[2][1] else 11 + width,)


def _always(*expected: int) -> Callable[[Any], tuple[int, ...]]:
    return lambda _: expected


# The converted types that older readers use in place of each logical type.
_CONVERTED: dict[int, Callable[[Any], tuple[int, ...]]] = {
    1: _always(0),  # STRING
    2: _always(1, 2),  # MAP
    3: _always(3),  # LIST
    4: _always(4),  # ENUM
    _DECIMAL: _always(5),
    6: _always(6),  # DATE
    7: _of_unit(7, 8),  # TIME
    8: _of_unit(9, 10),  # TIMESTAMP
    10: _of_integer,
    12: _always(19),  # JSON
    13: _always(20),  # BSON
}
