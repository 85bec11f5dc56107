"""Recognizes text that is not in the encoding of its load, and converts samples to UTF-8."""

from __future__ import annotations

import codecs
import io
import re

from storeside.transfer.errors import LoadObjectError
from storeside.transfer.formats import Csv, Format
from storeside.transfer.records import records

# Marks of byte order. That of UTF-32 begins like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def refuse_encoding(sample: bytes, form: Format) -> None:
    """Raise LoadObjectError if a text that is read as UTF-8 has another encoding; `sample` is its beginning."""
    if not form.is_text or not form.csv.is_utf8:
        return
    if found := next((name for mark, name in _MARKS.items() if sample.startswith(mark)), ""):
        remedy = f'set csv.encoding to "{found}"' if form.name == "csv" else "convert it to UTF-8"
        raise LoadObjectError(f"it is text in {found.upper()}, as its byte order mark shows: {remedy}")
    if form.name != "csv" or form.csv.names:
        return
    _, header = next(records(io.BytesIO(sample), form, cut=True), (0, b""))
    try:
        header.decode()
    except UnicodeDecodeError as e:
        raise LoadObjectError(
            f"its header is not UTF-8 (byte {e.start} of it is 0x{header[e.start]:02x}): set csv.encoding to that of"
            ' the object, such as "cp1252"'
        ) from e


def in_utf8(sample: bytes, csv: Csv) -> bytes:
    """Return a sample in UTF-8 with line feeds between its lines; it may end within a character."""
    try:
        text = codecs.getincrementaldecoder(csv.encoding)("surrogateescape").decode(sample)
    except UnicodeError as e:
        raise LoadObjectError(f"it is not {csv.encoding}: {e}: correct csv.encoding") from e
    return re.sub("\r\n?", "\n", text).encode("utf-8", "surrogateescape")
