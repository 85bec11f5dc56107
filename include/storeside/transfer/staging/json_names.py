"""Refuses objects within JSON columns that have a name twice.

ClickHouse 26.9 refuses such an object itself, unless the name is once an object and once another value:
``{"a": 1, "a": {"c": 2}}``. It then keeps both values, as the paths ``a`` and ``a.c``. ``{"a": 1, "a.c": 2}`` has the
same paths, so only the text shows which of them an object was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from storeside.transfer.base.schema import Column, bare
from storeside.transfer.statements.composing import TWICE

_JSON = re.compile(r"\bJSON\b")


class Names:
    """The columns with objects of JSON that a load reads."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.names = [c.name for c in columns if _JSON.search(bare(c.type))]

    def fault(self, document: bytes) -> str:
        """Return which column has an object with a name twice in a document; empty if none has."""
        try:
            found = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:  # it is no object: the load refuses it
            return ""
        for name in self.names:
            twice: list[str] = []
            with suppress(ValueError, RecursionError):
                json.loads(bytes(found.get(name, b"null")).decode(), object_pairs_hook=partial(_find_twice, twice))
            if twice:
                return f"{TWICE.format(name)}, {twice[0]!r}: correct it, or change the column to String"
        return ""


def _find_twice(found: list[str], pairs: list[tuple[str, Any]]) -> None:
    """Append the names that an object has twice."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            found.append(name)
        seen.add(name)
