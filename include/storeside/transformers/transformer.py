"""The interface of a transformer: one object in, one result or several out, independent of AIStore."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeAlias

_DESCRIPTORS = "/proc/self/fd/"

Source: TypeAlias = str | bytes
Data: TypeAlias = bytes | bytearray | memoryview


class ObjectError(ValueError):
    """The object can never be transformed, and a retry does not help; the message gives the reason."""


class LeaveOut(Exception):
    """The object shall have no result: `transform` raises or returns this with the reason.

    That is no failure. The run lists and counts such objects by their reasons, so give many objects the same reason,
    such as ``shorter than 1 s``. They are transformed again only after they or the ETL's specification changed. The
    ledger records `facts`, such as ``{"duration_seconds": 0.4}``, beside the reason; see `WithFacts`.
    """

    def __init__(self, reason: str = "", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.facts = facts


@dataclass(frozen=True)
class Result:
    """One of several results of an object: `transform` yields one after the other.

    The object ``calls/a.wav`` has the folder ``calls/a/`` for its results, and `name` is the name in it, such as
    ``left.wav``: without a slash, unlike the names of the object's other results, and not ending in ``.jsonl``.
    `facts` are fields of the result's line in the list ``calls/a.jsonl``, with values that JSON can represent.
    """

    name: str
    content: Data
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class WithSidecar:
    """A result with a small second result, such as the facts of an audio object.

    `sidecar` is one JSON object. `sidecar_name` is its name: the object's name without extension, alone or followed
    by a dot and more; by default it is the object's name with ``.json``.
    """

    data: Data
    sidecar: bytes
    sidecar_name: str = ""


@dataclass(frozen=True)
class WithFacts:
    """A result with facts for the ledger, which the column `facts` of ``storeside.objects`` then has as JSON.

    JSON must be able to represent the facts, in at most 6,000 characters: longer facts are not recorded.
    """

    result: Data | WithSidecar
    facts: Mapping[str, Any]


class Transformer(Protocol):
    """One kind of transform; built once per worker process, and called for one object at a time.

    `source` is the path of the object's file, or the content if there is no file. `name` is the object's name;
    `arguments` are the ETL arguments of an inline request. `transform` raises ObjectError for an object that cannot
    be transformed, and LeaveOut for one that shall have no result; any other error counts as transient.

    `transform` runs in an isolated process (see `isolation`); the isolation starts after the transformer is built.
    Optional attributes: `needs` lists exceptions from the isolation: ``commands`` (other programs), ``network``,
    ``files`` (all files, and the object's own path). If `opens_source` is true, the transformer opens `source` only
    with `open_source`, and no copy of the object is needed.
    """

    mime_type: str

    def transform(
        self, source: Source, name: str, arguments: str
    ) -> Data | WithSidecar | WithFacts | LeaveOut | Iterator[Result]:
        """Return the transformed object, or the reason why it has no result, or yield several results."""
        ...


class StreamTransformer(Protocol):
    """A transformer that reads an object and yields its result in pieces, with the interface of AIStore's SDK 2.0.

    `reader` is a binary file with the object's content, which can be read once from start to end. `path` is the
    object's name; `etl_args` are the ETL arguments of an inline request. Each piece is sent on before the next one is
    requested, so the memory depends neither on the size of the object nor on that of the result.

    `transform_stream` raises ObjectError and LeaveOut as `Transformer.transform`, LeaveOut only before it has yielded
    anything. If it raises an error later, nothing is stored. A class that also has a method `transform` is a
    `Transformer`. The optional attribute `needs` is that of `Transformer`.
    """

    mime_type: str

    def transform_stream(self, reader: BinaryIO, path: str, etl_args: str) -> Iterator[Data]:
        """Yield the pieces of the transformed object."""
        ...


def open_source(source: str) -> int:
    """Return a new descriptor for the object's file, at the start of the file.

    Descriptors of one object may share their position.
    """
    if not source.startswith(_DESCRIPTORS):
        return os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    # An isolated process may not open the file itself again.
    descriptor = os.dup(int(source.removeprefix(_DESCRIPTORS)))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def source_of(descriptor: int) -> str:
    """Return the path under which this process can open a descriptor's file."""
    return f"{_DESCRIPTORS}{descriptor}"


def utf8(text: str) -> str:
    """Return a text, such as a name, with escapes for bytes that are not UTF-8: no table takes them."""
    return text.encode("utf-8", "backslashreplace").decode()
