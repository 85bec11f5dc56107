"""The raw rows of a sample of text, and texts that only look as if they had no row."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.encoding import in_utf8, refuse_encoding
from storeside.transfer.formats.text_columns import NO_HEADER
from storeside.transfer.formats.text_rows import fields, records
from storeside.transfer.formats.text_types import TEXT, held
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.request.object_format import Format, is_array

_BLANK = b" \t\r\n"
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def headers(form: Format) -> int:
    """Return the number of rows of a text that are no data."""
    return 1 if form.clickhouse == "CSVWithNames" else 0


def sample_rows(sample: bytes, form: Format, *, is_whole: bool = False) -> list[bytes]:
    """Return the rows of a sample, those of CSV in UTF-8.

    Unless it `is_whole`, a sample may end within a quoted value of CSV, or within an array of JSON objects. Raises
    LoadObjectError if it ends within its first row, or is not in the encoding of the load.
    """
    refuse_encoding(sample, form)
    if form.name == "csv":
        if not form.is_native:
            sample = in_utf8(sample, form.csv)
            form = replace(form, csv=replace(form.csv, encoding="utf-8"))
        rows = [raw for _, raw in records(io.BytesIO(sample), form, cut=True)]
        is_cut = any(n >= len(rows) for n, _ in records(io.BytesIO(sample), form))
        if len(rows) <= headers(form) and is_cut:
            raise LoadObjectError(
                f"its first row does not end within a sample of {len(sample)} bytes: close its quotes, or increase"
                " `sample_bytes`"
            )
        if len(rows) <= headers(form):
            _refuse_lost_rows(sample, rows, form)
        return [raw for _, raw in records(io.BytesIO(sample), form)] if is_whole and is_cut else rows
    rows = []
    try:
        for _, raw in records(io.BytesIO(sample), form):
            rows.append(raw)
    except LoadObjectError:
        if not rows or not (form.joined or is_array(sample)):
            raise
    return rows


def _refuse_lost_rows(text: bytes, rows: Sequence[bytes], form: Format) -> None:
    """Raise LoadObjectError for CSV in UTF-8 without a row of data if its only line cannot be a header."""
    line = text.strip(_BLANK)
    if b"\r" in line and b"\n" not in line:
        raise LoadObjectError("its rows end with carriage returns alone: convert them to line feeds")
    for row in rows:
        if row.lstrip(_BLANK).startswith(b"<"):
            raise LoadObjectError("its only row is XML or HTML, such as an error of a server: upload it again")
        if _BINARY.search(row):
            raise LoadObjectError(
                "its only row has control characters, so it is not CSV in UTF-8: set `format` or csv.encoding to that"
                " of the object"
            )
        values = [value for value in fields(row, form.csv) if value.strip()]
        if headers(form) and values and all(held(value.strip()) != TEXT for value in values):
            raise LoadObjectError(NO_HEADER.format(count=len(values)))


def refuse_lost_rows(content: Content, form: Format) -> None:
    """Raise LoadObjectError for an object of which a load read no row, but which is no CSV without rows."""
    if form.name == "csv":
        sample_rows(content.sample(CHUNK), form)


def is_without_rows(content: Content, form: Format, *, fits: bool) -> bool:
    """Return whether an object has no row: it is read as a whole, and is a text of up to a megabyte.

    The text is blank, or `fits` the format and has no more than a header. A sample does not show that: it may end
    before the first row, and objects of other formats are not in it.
    """
    text = bytearray()
    try:
        file = content.plain()
        while len(text) <= CHUNK and (piece := file.read(CHUNK)):
            text += piece
        if len(text) > CHUNK:
            return False
        return len(sample_rows(bytes(text), form)) <= headers(form) if fits else not text.strip()
    except (LoadObjectError, OSError):
        return False
