"""The footer of a Parquet object, field by field, with a check that each column's declarations are consistent.

pyarrow can open such a footer, but crashes the process if some declarations of a column contradict each other; see
docs/decisions/0011-isolation-of-readers.md. Field ids are those of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from storeside.transfer.base.damage import AGAIN
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.parquet_schema import BYTE_ARRAY, Leaf, leaves
from storeside.transfer.formats.thrift import Decoder, Struct
from storeside.transfer.objects.content import Content

# The count of NULLs in a column whose footer does not count them.
UNKNOWN = 1 << 60
OTHER_ROWS = "its footer declares {} rows, but its row groups have {}: rewrite the file"
# Most footers fit into this number of last bytes.
_TAIL = 64 << 10
_MAGIC = b"PAR1"
# Compression codecs: all except LZO, which neither pyarrow nor ClickHouse reads.
_CODECS = frozenset({0, 1, 2, 4, 5, 6, 7})


def last_bytes(content: Content) -> bytes:
    """Return the last bytes of an object, with the whole footer of Parquet. Most objects need one request."""
    tail = content.range(max(0, content.size - _TAIL), _TAIL)
    size = _length(tail)
    if len(tail) < size <= content.size and tail.endswith(_MAGIC):
        tail = content.range(content.size - size, size)
    return tail


def _length(tail: bytes) -> int:
    """Return the number of bytes from the footer's first one to the end of the object."""
    return int.from_bytes(tail[-8:-4], "little") + 8


class Footer:
    """The declarations in the footer within the last bytes of an object. Raises LoadObjectError if it is corrupt."""

    def __init__(self, tail: bytes) -> None:
        try:
            footer = Decoder(tail, max(0, len(tail) - _length(tail))).struct()
            self.rows = int(footer[3][1])
            self.writer = str(_field(footer, 6) or b"", "utf-8", "replace")
            self.leaves = leaves([dict(element) for element in footer[2][1][1]])
            self._groups: list[tuple[int, list[Struct]]] = [
                (int(group[3][1]), [dict(chunk[3][1]) for chunk in group[1][1][1]]) for group in footer[4][1][1]
            ]
        except (LookupError, TypeError, AttributeError) as e:
            raise LoadObjectError(f"its footer is broken: a field is missing or has another type: {AGAIN}") from e
        except ValueError as e:
            raise LoadObjectError(f"its footer is broken: {e}: {AGAIN}") from e

    def check(self) -> None:
        """Compare numbers of rows and values, types and levels. Raises LoadObjectError for a contradiction."""
        rows = sum(count for count, _ in self._groups)
        if rows != self.rows:
            raise LoadObjectError(OTHER_ROWS.format(self.rows, rows))
        for count, chunks in self._groups:
            if len(chunks) != len(self.leaves):
                raise LoadObjectError(
                    f"it has {len(self.leaves)} columns, but a row group has {len(chunks)}: rewrite the file"
                )
            for chunk, leaf in zip(chunks, self.leaves, strict=True):
                _check_chunk(chunk, count, leaf)

    def null_counts(self) -> tuple[int, ...]:
        """Return how many values of each column are NULL; UNKNOWN if the writer did not count them."""
        found = [0] * len(self.leaves)
        for _, chunks in self._groups:
            for n, chunk in enumerate(chunks):
                statistics = _field(chunk, 12)
                count = _field(statistics, 3) if isinstance(statistics, dict) else None
                found[n] += count if isinstance(count, int) else UNKNOWN
        return tuple(found)

    def at_level(self, columns: Sequence[int], level: int) -> int | None:
        """Return how many definition levels in one of these columns are `level`; None if no column has counts.

        Newer writers count them: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift,
        SizeStatistics.
        """
        total = 0
        for _, chunks in self._groups:
            counts = next(filter(None, (_histogram(chunks[n]) for n in columns)), None)
            if counts is None or level >= len(counts):
                return None
            total += counts[level]
        return total

    def without_value(self, column: int) -> int | None:
        """Return how many of a column's values are missing, by its levels; None if the writer did not count them."""
        total = 0
        for _, chunks in self._groups:
            counts = _histogram(chunks[column])
            if not counts:
                return None
            total += sum(counts[:-1])
        return total

    def has_dictionary(self, column: int) -> bool:
        """Return whether a column has a dictionary page."""
        return any(_number(chunks[column], 11) for _, chunks in self._groups)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the compressed size of the pages of each column in each row group."""
        for _, chunks in self._groups:
            for chunk in chunks:
                yield _number(chunk, 11) or _number(chunk, 9), _number(chunk, 7)

    def sizes(self, columns: Sequence[int]) -> dict[int, int]:
        """Return the compressed size of each of these columns in bytes, over all row groups."""
        return {n: sum(_number(chunks[n], 7) for _, chunks in self._groups) for n in columns}


def _field(struct: Struct, number: int) -> Any:
    return struct[number][1] if number in struct else None


def _number(struct: Struct, number: int) -> int:
    value = _field(struct, number)
    return value if isinstance(value, int) else 0


def _histogram(chunk: Struct) -> list[int] | None:
    sizes = _field(chunk, 16)
    counts = _field(sizes, 3) if isinstance(sizes, dict) else None
    return counts[1] if isinstance(counts, tuple) and all(isinstance(n, int) for n in counts[1]) else None


def _check_chunk(chunk: Struct, rows: int, leaf: Leaf) -> None:
    values, codec, kind = _number(chunk, 5), _number(chunk, 4), _number(chunk, 1)
    if values < rows if leaf.repetition else values != rows:
        raise _contradiction(leaf, f"has {values} values in a row group of {rows} rows")
    if codec not in _CODECS:
        raise LoadObjectError(f"column {leaf.name!r} is compressed by codec {codec}, which ClickHouse does not read")
    if _number(chunk, 7) < 0 or _number(chunk, 9) < 0:
        raise _contradiction(leaf, "has a negative size or offset")
    if kind != leaf.type:
        raise _contradiction(leaf, f"has physical type {leaf.type}, but {kind} in a row group")
    statistics = _field(chunk, 12)
    has_bounds = isinstance(statistics, dict) and any(n in statistics for n in (1, 2, 5, 6))
    if leaf.has_only_nulls and (has_bounds or any((_histogram(chunk) or [0])[-1:])):
        raise _contradiction(leaf, "has values, but its type declares that all are NULL")
    sizes = _field(chunk, 16)
    if not isinstance(sizes, dict):
        return
    for number, most in ((2, leaf.repetition), (3, leaf.definition)):
        counts = _field(sizes, number)
        if isinstance(counts, tuple) and len(counts[1]) not in (0, most + 1):
            raise _contradiction(leaf, f"has levels from 0 to {most}, but counts of {len(counts[1])} levels")
    if 1 in sizes and leaf.type != BYTE_ARRAY:
        raise _contradiction(leaf, f"has physical type {leaf.type}, but a size of byte arrays")


def _contradiction(leaf: Leaf, what: str) -> LoadObjectError:
    return LoadObjectError(f"column {leaf.name!r} {what}: rewrite the file")
