"""Splits text objects into raw rows, for a worker that must examine each row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import UNNAMED
from storeside.transfer.objects import strict_json
from storeside.transfer.objects.csv_quotes import ends_inside, quoting
from storeside.transfer.objects.json_array import peeked
from storeside.transfer.objects.streams import pieces
from storeside.transfer.request.known_formats import is_array
from storeside.transfer.request.object_format import Csv

# Maximum bytes of a row; longer text is not a row.
LONGEST_ROW = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
# How Excel states the delimiter in a line before the header.
_SEPARATOR = re.compile(rb'"?sep=(.)"?\s*', re.IGNORECASE | re.DOTALL)
_NO_NAME = re.compile(rb'""[ \t]*:')
_TOKEN = re.compile(rb'""[ \t]*+:|"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)

Record = tuple[int, bytes]


def json_rows(file: Any, *, joined: bool) -> Iterator[Record]:
    """Yield the documents of a JSON text, each with its number and a final line feed.

    The objects of an array, and `joined` documents, are the rows of a text that is not divided into lines. Blank
    lines are left out. A field without a name gets the name `UNNAMED`.
    """
    number = 0
    head, rest = peeked(pieces(file))
    if joined or is_array(head):
        yield from enumerate(strict_json.objects(rest))
        return
    for line in lines(rest):
        if line.strip(_BLANK):
            yield number, _ended(_named(line) if _NO_NAME.search(line) else line)
            number += 1


def csv_lines(file: Any, dialect: Csv, *, cut: bool = False) -> Iterator[tuple[int, int, bytes]]:
    """Yield the rows of CSV as `CsvText.records` does, each with its number and its first line, counted from 1.

    With `cut`, the last row is left out if it ends within quotes.
    Raises LoadObjectError if the first row states the delimiter.
    """
    number, line = 0, dialect.skip_rows + 1
    has_one = len(dialect.names) == 1
    for record in _joined(file, dialect, cut=cut):
        if not number:
            _refuse_separator(record, dialect)
        is_header = not number and not dialect.names
        if record.strip(_BLANK if is_header else b"\r\n") or has_one:
            has_one = one_column(record, dialect) if is_header else has_one
            yield number, line, _ended(_named_header(record, dialect) if is_header else record)
            number += 1
        line += record.count(b"\n")


def documents(file: Any) -> Iterator[tuple[int, int]]:
    """Yield the number of each document of JSON Lines, from 0, and its first line, from 1; none for an array."""
    head, rest = peeked(pieces(file))
    number = depth = begin = 0
    for line, raw in enumerate(() if is_array(head) else lines(rest), 1):
        if not begin and not raw.strip(_BLANK):
            continue
        begin = begin or line
        depth += strict_json.depth_of(raw)
        if depth <= 0:
            yield number, begin
            number, depth, begin = number + 1, 0, 0
    if begin:
        yield number, begin


def one_column(header: bytes, dialect: Csv) -> bool:
    """Return whether CSV with this header, or first row, has a single column."""
    return len(fields(header, dialect)) == 1


def fields(header: bytes, dialect: Csv) -> list[str]:
    """Return the names in a header; none if they cannot be parsed."""
    text = header.decode(dialect.encoding, "surrogateescape").strip("\r\n")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE
    reader = csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote or None, quoting=quoting)
    try:
        return next(reader, [])
    except csv.Error:
        return []


def _refuse_separator(row: bytes, dialect: Csv) -> None:
    """Raise LoadObjectError if the first row of CSV is Excel's statement of the delimiter."""
    if found := _SEPARATOR.fullmatch(row):
        delimiter = found[1].decode(dialect.encoding, "replace")
        shown = "a tab" if delimiter == "\t" else repr(delimiter)
        raise LoadObjectError(
            f"its first line states the delimiter, as Excel does: set csv.delimiter to {shown}, and csv.skip_rows to"
            f" {dialect.skip_rows + 1}"
        )


def _named_header(header: bytes, dialect: Csv) -> bytes:
    """Return a header in which each unnamed column gets a name."""
    names = fields(header, dialect)
    if "" not in names:
        return header
    quote = dialect.quote
    quoted = (quote + (name or UNNAMED).replace(quote, 2 * quote) + quote for name in names)
    return dialect.delimiter.join(quoted).encode(dialect.encoding, "surrogateescape")


def _named(line: bytes) -> bytes:
    """Return a line of JSON in which an unnamed field of the outermost object gets a name."""
    depth = 0

    def replaced(found: re.Match[bytes]) -> bytes:
        nonlocal depth
        token = found.group()
        depth += (token in b"{[") - (token in b"}]") if len(token) == 1 else 0
        return b'"%b"' % UNNAMED.encode() + token[2:] if depth == 1 and _NO_NAME.fullmatch(token) else token

    return _TOKEN.sub(replaced, line)


def has_unnamed(file: Any) -> bool:
    """Return whether JSON Lines have a field without a name, which ClickHouse refuses."""
    return any(_NO_NAME.search(line) for line in lines(pieces(file)))


def has_faults(file: Any, dialect: Csv) -> bool:
    """Return whether CSV has faults that ClickHouse refuses and `csv_lines` repairs."""
    for n, record in enumerate(_joined(file, dialect)):
        if not record.strip(b"\r\n"):
            return True
        if not n and not dialect.names and (not record.strip(_BLANK) or "" in fields(record, dialect)):
            return True
    return False


def _joined(file: Any, dialect: Csv, *, cut: bool = False) -> Iterator[bytes]:
    """Yield the rows of CSV after the skipped lines, each with all its lines; for `cut` see `records`."""
    quote = dialect.quote.encode()
    opening, escaped = quoting(dialect)
    pending: list[bytes] = []
    size = number = 0
    inside = False
    skip = dialect.skip_rows
    for line in lines(pieces(file)):
        if skip:
            skip -= 1
            continue
        pending.append(line)
        size += len(line)
        if quote and quote in line:
            inside = ends_inside(escaped.sub(b"\0\0", line) if escaped else line, opening, quote, inside)
        if size > LONGEST_ROW:
            raise LoadObjectError(f"row {number} does not end within {LONGEST_ROW >> 20} MB")
        if inside:
            continue
        yield b"".join(pending)
        number += 1
        pending, size = [], 0
    if pending and not cut:
        yield b"".join(pending)


def _ended(record: bytes) -> bytes:
    """Return a record with a line feed in place of its line ending."""
    return record.removesuffix(b"\n").removesuffix(b"\r") + b"\n"


def lines(given: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text with their line feeds, without a byte order mark. Raises LoadObjectError."""
    pending: list[bytes] = []  # pieces of an unfinished line: joining them at each piece takes quadratic time
    size = 0
    is_first = True
    for each in given:
        piece = each
        if is_first:
            piece, is_first = piece.removeprefix(_BYTE_ORDER_MARK), False
        first, *whole = piece.split(b"\n")
        pending.append(first)
        size += len(first)
        if whole:
            yield b"".join(pending) + b"\n"
            *whole, rest = whole
            for line in whole:
                yield line + b"\n"
            pending, size = [rest], len(rest)
        if size > LONGEST_ROW:
            raise LoadObjectError(f"a row does not end within {LONGEST_ROW >> 20} MB")
    if rest := b"".join(pending):
        yield rest
