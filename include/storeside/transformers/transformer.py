"""A transformer: a function from one object to one result, independent of AIStore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

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

    `source` is the path of the file that holds the object, or its content if there is no such file; `name` is the
    object's name and `arguments` are the ETL arguments of an inline request. Raises ObjectError for an object that
    cannot be transformed; any other error counts as transient.
    """

    mime_type: str

    def transform(self, source: Source, name: str, arguments: str) -> Data | Result:
        """Return the transformed object."""
        ...
