"""Divides a JSON text that is one array of objects into these objects, without holding the text in memory.

ijson 3.6.0 would return values instead of the text of each object, and numbers such as 1.10 would change when the
values are written again. With that, an array of 100,000 objects in 11 MB takes 1.4 s of CPU time instead of 0.6 s.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator

from storeside.transfer.base.errors import LoadObjectError

# Maximum characters of an object; a longer one is refused.
LONGEST = 64 << 20
_BLANK = " \t\r\n"


def peeked(pieces: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of a text, enough for `is_array`, and all of its pieces."""
    rest = iter(pieces)
    head = b""
    for piece in rest:
        head += piece
        if len(head.removeprefix(codecs.BOM_UTF8).split()) > 1 or len(head.strip()) > len(codecs.BOM_UTF8) + 1:
            break
    return head, itertools.chain([head], rest)


def elements(pieces: Iterable[bytes], decoder: json.JSONDecoder) -> Iterator[bytes]:
    """Yield the objects of an array, or of a text of objects alone, as they are written, with a line feed after each.

    Raises LoadObjectError with the number of the object, from 0, if the text is neither.
    """
    text = _Text(pieces, decoder)
    if text.next() != "[":
        while text.next():
            yield text.object()
        return
    text.expect("[")
    if text.next() == "]":
        text.end()
        return
    while True:
        yield text.object()
        if text.next() == "]":
            text.end()
            return
        text.expect(",")


class _Text:
    """The part of a text that has arrived and is not yet consumed."""

    def __init__(self, pieces: Iterable[bytes], decoder: json.JSONDecoder) -> None:
        self._pieces = iter(pieces)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = decoder
        self._text, self._at, self._row = "", 0, 0

    def next(self) -> str:
        """Return the next character that is not blank, without consuming it; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def expect(self, wanted: str) -> None:
        """Consume a character. Raises LoadObjectError if it is not the next one."""
        if (found := self.next()) != wanted:
            raise self._error(f"{found!r} stands where {wanted!r} is expected" if found else "the array does not end")
        self._at += 1

    def end(self) -> None:
        """Raise LoadObjectError unless only blanks follow the bracket that closes the array."""
        self._at += 1
        if found := self.next():
            raise self._error(f"{found!r} follows the array")

    def object(self) -> bytes:
        """Consume an object and return it."""
        if (found := self.next()) != "{":
            raise self._error(f"{found!r} stands where an object is expected" if found else "the array does not end")
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as e:
                if len(self._text) - self._at > LONGEST:
                    raise self._error(f"it does not end within {LONGEST >> 20} million characters") from e
                if not self._more(2 * (len(self._text) - self._at)):
                    raise self._error(f"{e.msg} at character {e.pos - self._at + 1}") from e
            except RecursionError as e:
                raise self._error("it is nested too deeply") from e
            except ValueError as e:  # a number that is too large
                raise self._error(str(e)) from e
            else:
                found, self._at = self._text[self._at : end], end
                self._row += 1
                return found.encode() + b"\n"

    def _more(self, size: int = 1) -> bool:
        """Add at least `size` characters of the text; return whether there were any."""
        some = [self._text[self._at :]]
        before = arrived = len(some[0])
        try:
            for piece in self._pieces:
                some.append(self._decode.decode(piece))
                arrived += len(some[-1])
                if arrived >= size and arrived > before:
                    break
            else:
                some.append(self._decode.decode(b"", final=True))
                arrived += len(some[-1])
        except UnicodeDecodeError as e:
            raise self._error(f"invalid UTF-8: {e.reason}") from e
        self._text, self._at = "".join(some), 0
        return arrived > before

    def _error(self, reason: str) -> LoadObjectError:
        return LoadObjectError(f"row {self._row} is not JSON (RFC 8259): {reason}")
