"""Finds the files of segments and texts, and reads them from AIStore in bounded memory."""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.many import BATCH_OBJECTS, read_many
from storeside.aistore.stored_objects import StoredObject, find_aistore, list_aistore

from . import formats
from .entries import Entry, Found, Lines, SegmentsError
from .matched import Matched, matched
from .names import pattern_of, place_of

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# Bytes of a line, of a file that is read as a whole, and of one that is read together with others.
LONGEST_LINE, LARGEST_WHOLE, _SMALL = 16 << 20, 256 << 20, 1 << 20

Pieces: TypeAlias = Iterable[bytes]
_OfLines: TypeAlias = Callable[[Lines], Iterator[Found]]

# Readers of lines by `names.BY_LINES`.
_BY_LINES: dict[str, _OfLines] = {
    "*.rttm": formats.rttm,
    "*.stm": formats.stm,
    "*.ctm": formats.ctm,
    "*.jsonl": formats.jsonl,
    "*.trans.txt": formats.transcripts,
    "segments": formats.kaldi_segments,
    "text": formats.kaldi_details("text"),
    "utt2spk": formats.kaldi_details("speaker"),
    "utt2lang": formats.kaldi_details("language"),
    "wav.scp": formats.kaldi_places,
}


def segments_at(client: Client, uri: str) -> AbstractContextManager[Matched]:
    """Return the segments in the files at a URI, an object or a folder of objects in a bucket of AIStore.

    Raises SegmentsError for a file that cannot be read, and if there is none. Raises AIStoreTransientError for a file
    that AIStore lists and does not return.
    """
    bucket, name = place_of(uri)
    return matched(_found(client, bucket, name, uri))


def _found(client: Client, bucket: Bucket, name: str, uri: str) -> Iterator[Found]:
    is_folder = not name or name.endswith("/")
    listed = list_aistore(client, bucket, name) if is_folder else find_aistore(client, bucket, [name])
    count = 0
    small: list[StoredObject] = []
    for one in listed:
        if (pattern := pattern_of(one.name)) is None:
            continue
        count += 1
        if pattern in _BY_LINES or one.size > _SMALL:
            yield from read(one.name, bucket.object(client, one.name).get_reader(), f"{bucket}/{one.name}")
            continue
        small.append(one)
        if len(small) == BATCH_OBJECTS:
            yield from _read_small(client, bucket, small)
            small = []
    yield from _read_small(client, bucket, small)
    if not count:
        raise SegmentsError(f"segments {uri!r}: there is no file of segments or texts: correct the URI")
    log.info("read %d files of segments and texts at %s", count, uri)


def read(name: str, pieces: Pieces, place: str) -> Iterator[Found]:
    """Yield what the file `name` says, in pieces of its bytes. Raises SegmentsError."""
    pattern = pattern_of(name)
    assert pattern is not None  # noqa: S101 - of a known file
    if pattern in _BY_LINES:
        yield from _BY_LINES[pattern](lines(pieces, place))
        return
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > LARGEST_WHOLE:
            raise SegmentsError(
                f"{place}: it has more than {LARGEST_WHOLE} bytes: divide it, or name a manifest .jsonl"
            )
    yield from whole(bytes(content), place, name)


def _read_small(client: Client, bucket: Bucket, files: list[StoredObject]) -> Iterator[Found]:
    for batch in read_many(client, bucket, ((one.name, one.size) for one in files)):
        for name, content in batch:
            if content is None:  # without its segments, a recording would count as one that has none
                raise AIStoreTransientError(
                    f"{bucket}/{name}: AIStore lists this file and does not return it, because it was deleted"
                    " meanwhile or its target is gone: a retry lists the files again"
                )
            yield from whole(content, f"{bucket}/{name}", name)


def whole(content: bytes, place: str, name: str) -> Iterator[Found]:
    """Read a file that describes one recording, which has its name but another extension, or a file of JSON."""
    recording = name.rpartition(".")[0]
    ending = name.rpartition(".")[2].lower()
    text = decoded(content, place)
    if ending == "textgrid":
        from .textgrid import textgrid

        yield from textgrid(text, place, recording)
    elif ending == "json":
        yield from _json(text, place, recording)
    else:
        yield Entry(recording, place, text=text.rstrip("\r\n"))


def _json(text: str, place: str, recording: str) -> Iterator[Found]:
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        yield from formats.jsonl((f"{place}:{n}", line) for n, line in enumerate(text.split("\n"), 1))
        return
    for one in told if isinstance(told, list) else [told]:
        if not isinstance(one, dict):
            raise SegmentsError(f"{place}: this is no JSON object of a recording or a segment")
        yield formats.of_json(one, place, recording)


def decoded(content: bytes, place: str) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 if it begins with a mark. Raises SegmentsError."""
    is_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_16 else "utf-8-sig")
    except UnicodeDecodeError as e:
        raise SegmentsError(f"{place}: this is not UTF-8: {e}: convert the file, such as with iconv") from e


def lines(pieces: Pieces, place: str) -> Lines:
    """Yield the lines of a file in UTF-8, with their places. Raises SegmentsError for other files and long lines."""
    rest, number = b"", 0
    for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        for one in complete:
            number += 1
            yield f"{place}:{number}", _line(one, f"{place}:{number}", number)
        if len(rest) > LONGEST_LINE:
            raise SegmentsError(f"{place}:{number + 1}: the line has more than {LONGEST_LINE} bytes")
    if rest:
        yield f"{place}:{number + 1}", _line(rest, f"{place}:{number + 1}", number + 1)


def _line(content: bytes, place: str, number: int) -> str:
    if number == 1:
        content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.removesuffix(b"\r").decode()
    except UnicodeDecodeError as e:
        raise SegmentsError(f"{place}: this is not UTF-8: {e}: convert the file, such as with iconv") from e
