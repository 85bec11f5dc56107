"""Rows of CSV whose quotes contain line feeds."""

from __future__ import annotations

import re

from storeside.transfer.request.object_format import Csv


def is_open(row: bytes, dialect: Csv, *, inside: bool = False) -> bool:
    """Return whether a row of CSV, or its next line that begins `inside` quotes, ends within quotes."""
    opening, escaped = quoting(dialect)
    text = escaped.sub(b"\0\0", row) if escaped else row
    return bool(dialect.quote) and ends_inside(text, opening, dialect.quote.encode(), inside)


def quoting(dialect: Csv) -> tuple[re.Pattern[bytes], re.Pattern[bytes] | None]:
    """Return the expressions for a quote that opens, and for an escaped character."""
    quote = dialect.quote.encode()
    opening = re.compile(rb"(?:^|%b)%b" % (re.escape(dialect.delimiter.encode()), re.escape(quote)))
    escaped = re.compile(rb"%b." % re.escape(dialect.escape.encode()), re.DOTALL) if dialect.escape else None
    return opening, escaped


def ends_inside(line: bytes, opening: re.Pattern[bytes], quote: bytes, inside: bool) -> bool:
    """Return whether a line ends within quotes. A quote opens only at the start of a field; elsewhere it is text."""
    at = 0
    while True:
        if inside:
            at = line.find(quote, at) + 1
            if not at:
                return True
            inside = line[at : at + 1] == quote  # a doubled quote is text
            at += inside
        else:
            found = opening.search(line, at)
            if not found:
                return False
            at, inside = found.end(), True
