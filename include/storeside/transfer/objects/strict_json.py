"""Checks JSON Lines against RFC 8259, because ClickHouse's parser is lenient, and sometimes changes values.

ClickHouse 26.9 drops the backslash of an unknown escape, and accepts ``012``, ``+1``, ``1.`` and ``.5`` as numbers,
control characters within strings, a comma before ``]``, ``;`` after a document, and anything between the brackets of
a value that becomes text. https://www.rfc-editor.org/rfc/rfc8259 forbids all of these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, Protocol

import msgspec

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.objects.json_array import elements, peeked
from storeside.transfer.request.known_formats import is_array

# Maximum bytes of a document; a longer one is refused.
LONGEST_DOCUMENT = 64 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
JOINED = ": several documents are in one line, as Firehose writes them: set read.joined to true"
# Strings do not span lines, because a line feed within a string must be escaped.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+("?)', re.DOTALL)
# Checks the syntax of one document per line, and builds no values.
_LINES = msgspec.json.Decoder(msgspec.Raw)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _number(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError("a number is too large for a float")  # without its digits: its column may be masked
    return value


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_number)


def fault(document: bytes) -> str:
    """Return why a text is not one JSON document, with the remedy for several of them; empty if it is one."""
    try:
        _DECODER.decode(document.decode())
    except UnicodeDecodeError as e:
        return f"invalid UTF-8 at byte {e.start}"
    except json.JSONDecodeError as e:
        return f"{e.msg} at character {e.pos + 1}{joined_hint(e)}"
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as e:  # Python also refuses integers of more than 4,300 digits
        return str(e)
    return ""


def joined_hint(error: Exception) -> str:
    """Return the remedy for a line with several documents; empty for other faults."""
    is_joined = isinstance(error, json.JSONDecodeError) and error.doc[error.pos : error.pos + 1] == "{"
    return JOINED if is_joined and str(error).startswith("Extra data") else ""


def depth_of(line: bytes) -> int:
    """Return how many brackets a line opens and does not close, without those in strings."""
    outside = _STRING.sub(lambda found: b"" if found[1] else found[0], line)
    return sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))


def objects(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each object of an array, or of a text of objects alone, with a line feed. Raises LoadObjectError."""
    return elements(pieces, _DECODER)


class Values(Protocol):
    """Finds values in valid JSON that a load refuses."""

    def may_be_in(self, text: bytes) -> bool:
        """Return whether a text of one or more documents may have such a value."""

    def fault(self, document: bytes) -> str:
        """Return which column has such a value in a document; empty if none has."""


def checked(pieces: Iterable[bytes], values: Values | None = None) -> Iterator[bytes]:
    """Yield a JSON Lines text unchanged, in pieces of whole lines, each after its check.

    If the text is an array of objects, yields each of them as a line. In other texts, a document may span lines, but
    no line may contain the end of one and the beginning of the next. Raises LoadObjectError with the number of the
    row, from 0, and the reason, also for a document with one of the `values`.
    """
    head, pieces = peeked(pieces)
    if is_array(head):
        for row, document in enumerate(objects(pieces)):
            _refuse(values, row, document)
            yield document
        return
    check = _Check(values)
    pending: list[bytes] = []
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if not end:
            pending.append(piece)
            if sum(map(len, pending)) > LONGEST_DOCUMENT:
                raise check.too_long()
            continue
        block = b"".join((*pending, piece[:end]))
        pending = [piece[end:]]
        check.block(block)
        yield block
    if rest := b"".join(pending):
        check.block(rest)
        yield rest
    check.end()


class _Check:
    """Checks blocks of whole lines: in one step if each line is a document, otherwise line by line."""

    def __init__(self, values: Values | None) -> None:
        self.row = 0
        self._values = values
        self._document: list[bytes] = []
        self._size = self._depth = 0
        self._begun = False

    def block(self, block: bytes) -> None:
        """Check one block. Raises LoadObjectError."""
        if not self._begun:
            self._begun = True
            block = block.removeprefix(BYTE_ORDER_MARK)
        if not self._document and (rows := _documents(block)) is not None:
            if self._values is not None and self._values.may_be_in(block):
                for n, line in enumerate(block.split(b"\n")):
                    _refuse(self._values, self.row + n, line)
            self.row += rows
            return
        for line in block.split(b"\n"):
            self._line(line + b"\n")

    def end(self) -> None:
        """Check that the text does not end within a document. Raises LoadObjectError."""
        if self._document:
            raise self._error(fault(b"".join(self._document)) or "it does not end")

    def too_long(self) -> LoadObjectError:
        """Return the error of a document that does not end."""
        return self._error(
            f"it does not end within {LONGEST_DOCUMENT >> 20} MB: divide it, or load with strict_json=False"
        )

    def _line(self, line: bytes) -> None:
        if not self._document and not line.strip(_BLANK):
            return
        self._document.append(line)
        self._size += len(line)
        self._depth += depth_of(line)
        if self._size > LONGEST_DOCUMENT:
            raise self.too_long()
        if self._depth > 0:
            return
        document = b"".join(self._document)
        if reason := fault(document):
            raise self._error(reason)
        _refuse(self._values, self.row, document)
        self.row += 1
        self._document, self._size, self._depth = [], 0, 0

    def _error(self, reason: str) -> LoadObjectError:
        return LoadObjectError(f"row {self.row} is not JSON (RFC 8259): {reason}")


def _refuse(values: Values | None, row: int, document: bytes) -> None:
    if values is not None and (reason := values.fault(document)):
        raise LoadObjectError(f"row {row}, {reason}")


def _documents(block: bytes) -> int | None:
    """Return the number of lines if each is one JSON document for msgspec, otherwise None."""
    try:
        if not block.isascii():
            block.decode()
        documents: list[Any] = _LINES.decode_lines(block)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    return lines if len(documents) == lines else None
