"""The results that a decoder returned for one object, checked before any of them is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storeside.transformers.contract.results import (
    LARGEST_LIST,
    Announced,
    folder_of,
    line,
    list_of,
    unfit_facts,
    unfit_name,
)
from storeside.transformers.transformer import Data, ObjectError


@dataclass(frozen=True)
class ResultsOfOne:
    """The results of the object `name`: their names at the destination, with their contents, and their facts."""

    name: str
    contents: tuple[tuple[str, memoryview], ...]
    facts: tuple[dict[str, Any], ...]

    @property
    def list(self) -> str:
        """The name of the list at the destination."""
        return list_of(self.name)

    def lines(self, versions: Sequence[str] = ()) -> bytes:
        """Return the list, with the versions of the stored results if they are known.

        Raises ObjectError if it would be larger than `LARGEST_LIST`.
        """
        known = versions or ("",) * len(self.contents)
        found = b"".join(
            line(self.name, Announced(stored, len(content), version), facts)
            for (stored, content), facts, version in zip(self.contents, self.facts, known, strict=True)
        )
        if len(found) > LARGEST_LIST:
            raise ObjectError(f"the names and facts of its results have more than {LARGEST_LIST} bytes")
        return found


def several(name: str, length: int, data: Data) -> ResultsOfOne:
    """Return the results in a decoder's reply, whose first `length` bytes are a table of names, sizes and facts.

    The decoder may be hostile. Raises ObjectError for a name or facts that no result can have, and ValueError for a
    reply that a decoder of Storeside does not send.
    """
    view = memoryview(data).cast("B")
    contents: list[tuple[str, memoryview]] = []
    all_facts: list[dict[str, Any]] = []
    names: set[str] = set()
    at = length
    for own, size, facts in json.loads(bytes(view[:length])):
        if not isinstance(own, str):
            raise ObjectError(f"the name of a result is {own!r}: write a text")
        if reason := unfit_name(own, names):
            raise ObjectError(f"the result {own!r}: {reason}")
        if reason := unfit_facts(facts):
            raise ObjectError(f"the facts of the result {own!r}: {reason}")
        names.add(own)
        if not 0 < int(size) <= len(view) - at:
            raise ValueError("the sizes of the results exceed the reply")
        contents.append((f"{folder_of(name)}/{own}", view[at : at + int(size)]))
        all_facts.append(facts)
        at += int(size)
    if not contents or at != len(view):
        raise ValueError("the results are not the whole reply")
    return ResultsOfOne(name, tuple(contents), tuple(all_facts))
