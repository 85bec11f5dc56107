"""Refuses lists of texts and booleans in `JSON` columns: ClickHouse 26.9 makes two texts of ``["a", true]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import mixed_list
from storeside.transfer.base.schema import Column
from storeside.transfer.staging.json_places import Row, names_in, parts

# A boolean within a list.
_BOOLEAN = r"[\[,][ \t\r\n]*(?:true|false)[ \t\r\n]*[\],]"
_HAS_BOOLEAN = re.compile(_BOOLEAN.encode())


class Lists:
    """The columns with values of type `JSON`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [c for c in columns if names_in(c, "JSON".__eq__)]

    @property
    def names(self) -> list[str]:
        """The columns whose values are compared."""
        return [c.name for c in self._columns]

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a list; empty if none can."""
        return f"if(position(line, '[') > 0, match(line, {literal(_BOOLEAN)}), 0)" if self._columns else ""

    def may_be_in(self, document: bytes) -> bool:
        """Return whether a document may have such a list."""
        return bool(self._columns) and _HAS_BOOLEAN.search(document) is not None

    def fault(self, row: Row) -> str:
        """Return which column has such a list; empty if none has."""
        for c in self._columns:
            if any(kind == "JSON" and _is_mixed(part) for part, kind in parts(row.value(c.name), c.type)):
                return mixed_list(c.name)
        return ""


def _is_mixed(value: Any) -> bool:
    """Return whether a value has a list with texts and booleans, also at one depth of nested lists."""
    if isinstance(value, dict):
        return any(map(_is_mixed, value.values()))
    if not isinstance(value, list):
        return False
    items = value
    while items:
        if {bool, str} <= {type(item) for item in items}:
            return True
        items = [part for item in items if isinstance(item, list) for part in item]
    return any(map(_is_mixed, value))
