"""A transformer: a function from one object to one result, independent of AIStore."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, TypeAlias

_DESCRIPTORS = "/proc/self/fd/"

Source: TypeAlias = str | bytes
Data: TypeAlias = bytes | bytearray | memoryview


class ObjectError(ValueError):
    """This object can never be transformed, however often it is tried; the message says why."""


@dataclass(frozen=True)
class Result:
    """A result with a second, small one beside it, such as the facts of an audio object.

    `sidecar_name` is the name of the second one: by default the object's name with ``.json``.
    """

    data: Data
    sidecar: bytes
    sidecar_name: str = ""


class Transformer(Protocol):
    """One kind of transform, made once per worker process and called for one object at a time.

    `source` is the path of a file that holds the object, or its content if there is no such file; `name` is the
    object's name and `arguments` are the ETL arguments of an inline request. Raises ObjectError for an object that
    cannot be transformed; any other error counts as transient.

    The process of `transform` is isolated (see `isolation`), after the transformer is made. Optional attributes:
    `needs` lists what it needs nevertheless: ``commands`` (other programs), ``network``, ``files`` (all files, and
    the object's own path). `opens_source` says that it opens `source` only with `open_source`, so that no copy of the
    object has to be made.
    """

    mime_type: str

    def transform(self, source: Source, name: str, arguments: str) -> Data | Result:
        """Return the transformed object."""
        ...


def open_source(source: str) -> int:
    """Return a new descriptor for the file that holds the object, at the file's beginning.

    All descriptors of one object may share their position.
    """
    if not source.startswith(_DESCRIPTORS):
        return os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    # The file itself may not be opened again by this process.
    descriptor = os.dup(int(source.removeprefix(_DESCRIPTORS)))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def source_of(descriptor: int) -> str:
    """Return the path under which this process finds an open file."""
    return f"{_DESCRIPTORS}{descriptor}"
