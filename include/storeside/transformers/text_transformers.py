"""Transformers of text objects, under the names of their transforms."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from storeside.transformers.contract.members import one_object
from storeside.transformers.words import WORD

from .transformer import ObjectError, Source, utf8

# Byte order marks: longer ones first, because that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def text_facts(source: Source, name: str, _arguments: str) -> bytes:
    """Replace a text by facts about it, as one line of JSON.

    ``object`` (its name), ``encoding``, ``bytes``, ``characters``, ``lines``, ``paragraphs`` (separated by empty
    lines), ``words``, ``distinct_words`` (without regard to case), ``longest_line`` (characters), ``title`` (the
    first line that is not empty, at most 200 characters) and ``sha256`` of the bytes. Text is in UTF-8, or in UTF-16
    or UTF-32 with a byte order mark. Raises ObjectError for an object that is not text.
    """
    content = Path(source).read_bytes() if isinstance(source, str) else bytes(source)
    encoding, text = _decoded(content)
    lines = text.splitlines()
    words = [word.casefold() for word in WORD.findall(text)]
    facts = {
        "object": utf8(name),
        "encoding": encoding,
        "bytes": len(content),
        "characters": len(text),
        "lines": len(lines),
        "paragraphs": sum(1 for block in re.split(r"\n\s*\n", "\n".join(lines)) if block.strip()),
        "words": len(words),
        "distinct_words": len(set(words)),
        "longest_line": max(map(len, lines), default=0),
        "title": next((line.strip() for line in lines if line.strip()), "")[:200],
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return json.dumps(facts, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def text_json(source: Source, _name: str, _arguments: str) -> bytes:
    """Return one JSON object as one line, unchanged otherwise.

    Over the members ``*.json`` of tar shards, it makes JSON Lines of each shard. Raises ObjectError for other input.
    """
    content = Path(source).read_bytes() if isinstance(source, str) else bytes(source)
    try:
        return one_object(content)[1].encode() + b"\n"
    except (ValueError, RecursionError) as e:
        raise ObjectError(f"not JSON: {e}") from e


def _decoded(content: bytes) -> tuple[str, str]:
    """Return the encoding and the text. Raises ObjectError when the bytes are not text."""
    if not content:
        raise ObjectError("the object is empty")
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as e:
        raise ObjectError(f"not text in {encoding}: byte {e.start}: {e.reason}") from e
    if "\x00" in text:
        raise ObjectError(f"not text: character {text.index(chr(0))} is NUL")
    return encoding.removesuffix("-sig"), text.removeprefix("\ufeff")


text_facts.mime_type = "application/json"  # type: ignore[attr-defined]
text_json.mime_type = "application/json"  # type: ignore[attr-defined]
