"""Refuses objects within JSON columns that have a name twice.

ClickHouse 26.9 refuses such an object itself, unless the name is once an object and once another value:
``{"a": 1, "a": {"c": 2}}``. It then keeps both values, as the paths ``a`` and ``a.c``. ``{"a": 1, "a.c": 2}`` has the
same paths, so only the text shows which of them an object was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from storeside.transfer.base.schema import Column, bare
from storeside.transfer.statements.composing import TWICE

_JSON = re.compile(r"\bJSON\b")


class _TwiceError(ValueError):
    """An object has this name twice."""


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
            try:
                _DECODER.decode(bytes(found.get(name, b"null")).decode())
            except _TwiceError as e:
                return f"{TWICE.format(name)}, {str(e)!r}: correct it, or change the column to String"
            except (ValueError, RecursionError):
                continue
        return ""


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _TwiceError(name)
        seen.add(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
