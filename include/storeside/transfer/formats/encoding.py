"""Recognizes content that is no text, or not in the encoding of its load, and converts samples to UTF-8."""

from __future__ import annotations

import codecs
import io
import re

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.text_rows import csv_lines
from storeside.transfer.request.known_formats import typed_format
from storeside.transfer.request.object_format import Csv, Format

# Marks of byte order. That of UTF-32 begins like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# First bytes of content that people store under the name of a text, and what to do with it.
_MOVE = "move it to a separate prefix"
_ZIP = b"PK\3\4"
_BINARY = {
    _ZIP: "a ZIP archive: give it the extension .zip, so that its members are loaded",
    b"%PDF-1.": f"a PDF document: {_MOVE}",
    b"\x89PNG\r\n": f"an image: {_MOVE}",
    b"\xff\xd8\xff": f"an image: {_MOVE}",
    b"GIF87a": f"an image: {_MOVE}",
    b"GIF89a": f"an image: {_MOVE}",
    b"\xd0\xcf\x11\xe0": "a document of Office, such as a workbook of Excel: save it as CSV",
    b"SQLite format 3\0": f"a database of SQLite: {_MOVE}",
    b"\x89HDF": f"an HDF5 file: {_MOVE}",
    b"7z\xbc\xaf": "a 7z archive: store its members, or a ZIP or tar archive of them",
    b"Rar!\x1a": "a RAR archive: store its members, or a ZIP or tar archive of them",
    b"\x1f\x9d": "compressed with compress: use gzip, zstd or xz",
    b"\x5d\0\0": "compressed with lzma: use xz, gzip or zstd",
    b"LZIP\1": "compressed with lzip: use xz, gzip or zstd",
    b"x\x01": "compressed with zlib: use gzip, zstd or xz",
    b"x\x9c": "compressed with zlib: use gzip, zstd or xz",
    b"x\xda": "compressed with zlib: use gzip, zstd or xz",
}
_WORKBOOK = (b"[Content_Types].xml", b"xl/worksheets")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # no text has them; ISO-2022 has escapes
_EXAMINED = 4096
# Binary content has about ten control characters in 100 bytes.
_FEW = 100
_WITHOUT_MARK = 8  # characters of UTF-16 without a mark of byte order that show its encoding


def refuse_encoding(sample: bytes, form: Format) -> None:
    """Raise LoadObjectError for content that is no text, or has another encoding than UTF-8 if it is read as that.

    `sample` is the beginning of the content.
    """
    if not form.is_text:
        return
    if what := _binary(sample):
        raise LoadObjectError(f"it is no text, but {what}")
    if not form.csv.is_utf8:
        return
    marked = next((name for mark, name in _MARKS.items() if sample.startswith(mark)), "")
    if found := marked or _unmarked(sample):
        shown = ", as its byte order mark shows" if marked else " without a byte order mark"
        remedy = f'set csv.encoding to "{found}"' if form.has_fields else "convert it to UTF-8"
        raise LoadObjectError(f"it is text in {found.upper()}{shown}: {remedy}")
    if not form.has_fields or form.csv.names:
        return
    *_, header = next(csv_lines(io.BytesIO(sample), form.csv, cut=True), (0, 0, b""))
    try:
        header.decode()
    except UnicodeDecodeError as e:
        head = sample[:_EXAMINED]
        if len(_CONTROLS.findall(head)) * _FEW > len(head):
            raise LoadObjectError(
                f"it is no text, but binary, perhaps compressed in an unknown way: set `format`, or {_MOVE}"
            ) from e
        raise LoadObjectError(
            f"its header is not UTF-8 (byte {e.start} of it is 0x{header[e.start]:02x}): set csv.encoding to that of"
            ' the object, such as "cp1252"'
        ) from e


def _binary(sample: bytes) -> str:
    """Return what content is that is no text, and the remedy; empty if it may be text."""
    if typed_format(sample):
        return f"binary: {_MOVE}"
    found = next((what for magic, what in _BINARY.items() if sample.startswith(magic)), "")
    is_workbook = found and sample.startswith(_ZIP) and any(name in sample[:_EXAMINED] for name in _WORKBOOK)
    return "a workbook of Excel: save it as CSV" if is_workbook else found


def _unmarked(sample: bytes) -> str:
    """Return the encoding of a text in UTF-16 without a byte order mark whose first characters are of ASCII."""
    head = sample[: 2 * _WITHOUT_MARK]
    if len(head) < 2 * _WITHOUT_MARK or not any(head):
        return ""
    first, second = head[::2], head[1::2]
    if all(first) and not any(second):
        return "utf-16-le"
    return "utf-16-be" if all(second) and not any(first) else ""


def in_utf8(sample: bytes, csv: Csv) -> bytes:
    """Return a sample in UTF-8 with line feeds between its lines; it may end within a character."""
    try:
        text = codecs.getincrementaldecoder(csv.encoding)("surrogateescape").decode(sample)
    except UnicodeError as e:
        raise LoadObjectError(f"it is not {csv.encoding}: {e}: correct csv.encoding") from e
    return re.sub("\r\n?", "\n", text).encode("utf-8", "surrogateescape")
