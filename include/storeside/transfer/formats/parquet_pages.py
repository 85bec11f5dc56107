"""Reads the headers of a Parquet file's pages: their size in memory, which a footer may understate, and empty pages.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, PageHeader
"""

from __future__ import annotations

from storeside.transfer.base.damage import broken
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.parquet_footer import Footer
from storeside.transfer.formats.thrift import Decoder, Struct
from storeside.transfer.objects.content import Content

# Bytes that a page and each of its values take at least: levels have two bytes.
_PAGE, _VALUE = 64, 2
# The headers of a page by kind: of data, a dictionary, and data of version 2. Each begins with the number of values.
_KINDS = (5, 7, 8)
_VERSION_2 = 8
# Fields of that header: the bytes of the levels of definition and of repetition.
_LEVELS = (5, 6)
# Headers that are read to look for an empty page, and bytes of one.
_MOST_PAGES, _HEADER = 500, 4 << 10


def require_below(content: bytes, most: int) -> int:
    """Return the number of bytes that a file's pages take in memory. Raises OverflowError if it exceeds `most`.

    Raises LoadObjectError for a damaged file.
    """
    total = 0
    for start, size in Footer(content).places():
        at = start
        while at < start + size:
            decoder = Decoder(content, at)
            try:
                page = decoder.struct()
            except ValueError as e:
                raise LoadObjectError(broken("a page of it", e)) from e
            plain, packed, values = _sizes(page)
            total += _PAGE + plain + values * _VALUE
            if total > most:
                raise OverflowError
            at = decoder.at + packed
    return total


def has_empty(content: Content, footer: Footer) -> bool:
    """Return whether a data page of version 2 has levels only, because all of its values are NULL.

    ClickHouse 26.9 takes it for damaged: it decompresses the 0 bytes after the levels. parquet-mr writes such pages.
    """
    left = _MOST_PAGES
    for start, size in footer.places():
        at = start
        while at < start + size and left:
            left -= 1
            decoder = Decoder(content.range(at, _HEADER))
            try:
                page = decoder.struct()
            except ValueError:  # damaged, or a longer header
                break
            packed = _sizes(page)[1]
            header = page.get(_VERSION_2, (0, None))[1]
            if isinstance(header, dict) and packed == sum(header.get(n, (0, 0))[1] for n in _LEVELS):
                return True
            at += decoder.at + packed
    return False


def _sizes(page: Struct) -> tuple[int, int, int]:
    """Return the bytes of a page, plain and packed, and its number of values."""
    kinds = [page[kind][1] for kind in _KINDS if kind in page]
    found = [page.get(2, (0, 0))[1], page.get(3, (0, 0))[1]]
    found.append(sum(kind[1][1] for kind in kinds if isinstance(kind, dict) and 1 in kind))
    if not all(isinstance(number, int) and number >= 0 for number in found):
        raise LoadObjectError("a page of it states no valid size")
    plain, packed, values = found
    return plain, packed, values
