"""The first rows of a text object, so that the worker reads no more of it for a preview."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
from collections.abc import Callable, Iterator
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.strict_json import depth_of
from storeside.transfer.request.object_format import Format

# Bytes; an object of up to this size is read as a whole, packed or not. A larger one is read up to the first number.
_MOST, _MOST_PACKED = 1 << 20, 1 << 14
_PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "xz": lzma.compress}


class Beginning(Content):
    """The beginning of a text as the content of its object, in the object's compression where it is streamed."""

    def __init__(self, whole: Content, text: bytes) -> None:
        super().__init__(whole.client, whole.bucket, whole.key, len(text), whole.etag, whole.most, whole.members)
        self.compression = whole.compression
        self.archive = None
        self._text = text

    def range(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes of the text from byte `start`."""
        return self._text[start : start + length]

    def stream(self) -> Iterator[bytes]:
        """Yield the text in the object's compression, if ClickHouse accepts that in requests."""
        yield _PACKERS.get(self.compression, bytes)(self._text)

    def plain(self) -> Any:
        """Return the text as a file."""
        return io.BytesIO(self._text)

    def sample(self, most: int) -> bytes:
        """Return the first bytes of the text, which end with a whole line."""
        found = self._text[:most]
        return found if len(found) == len(self._text) else found[: found.rfind(b"\n") + 1] or found


def beginning(content: Content, form: Format, rows: int) -> Content:
    """Return the content of the first `rows` rows of a text object; other and small objects are returned whole."""
    if not (form.is_text and form.is_native) or content.size <= _MOST_PACKED or content.archive:
        return content
    if content.size <= _MOST and not content.compression:
        return content
    text = _first(content.sample(_MOST), form, rows)
    return Beginning(content, text) if text else content


def _first(text: bytes, form: Format, rows: int) -> bytes:
    """Return the first rows of a text that may end within one, after the lines to skip; empty if none ends."""
    found: list[bytes] = []
    whole = depth = 0
    text_format = TEXTS[form.name]
    try:
        records = text_format.records(io.BytesIO(text), form, cut=True)
        for _, raw in itertools.islice(records, rows + text_format.headers(form)):
            found.append(raw)
            depth += depth_of(raw) if form.has_documents else 0
            whole = len(found) if depth <= 0 else whole
    except LoadObjectError:  # an array of JSON ends within the text
        pass
    if whole <= text_format.headers(form):
        return b""
    skipped = text.split(b"\n", form.csv.skip_rows)[: form.csv.skip_rows] if form.has_fields else []
    return b"".join([*(line + b"\n" for line in skipped), *found[:whole]])
