"""The names of tables in keys.

Keys are input from outside. A name that they contain becomes part of statements, of file names of ClickHouse and of
other tables' names, so only plain names are taken, as they are: two keys never become one table by a conversion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source, pattern
from storeside.transfer.request.table_names import TABLE

# A character that no keys contain takes the place of the name while they are translated.
_PLACE = "\x00"
# ClickHouse stores a table under its name, with three characters for each byte that is no letter of ASCII, in a file
# system whose names have 255; tables beside it have a longer name.
_LONGEST = 150
_NAME = re.compile(r"[\w-]+")
# The ends of names of tables that a load makes beside its table, and the reason.
_BESIDE = {"_rejected": "on_bad_rows 'keep'", "_quarantine": "a suite with quarantine", "_current": "upsert"}


@dataclass(frozen=True)
class TableNames:
    """The names of tables in the keys of a request's source."""

    request: Request

    @property
    def regex(self) -> str:
        """The keys as an expression of RE2, whose group is the name of the table; it takes as much as it can."""
        return pattern(self._keys.replace(TABLE, _PLACE)).replace(_PLACE, "([^/]*)")

    @property
    def _keys(self) -> str:
        return self.request.source.keys

    @property
    def around(self) -> tuple[str, str]:
        """The texts before and after the name in the table, such as ``raw.`` and an empty one."""
        before, _, behind = self.request.table.partition(TABLE)
        return before, behind

    def table(self, name: str) -> str:
        """Return the table ``database.table`` of a name."""
        return self.request.table.replace(TABLE, name)

    def fault(self, name: str) -> str:
        """Return why no load makes a table of this name from a key; empty if one does."""
        if not _NAME.fullmatch(name):
            return "a table's name from a key has letters, digits, '_' and '-' only"
        if len("".join(c if c.isascii() else "123" * len(c.encode()) for c in name)) > _LONGEST:
            return f"a table's name from a key has at most {_LONGEST} characters, of which each other one counts more"
        table = self.table(name)
        for end, option in self._beside.items():
            if table.endswith(end):
                return f"with {option}, a table whose name ends with {end} belongs to another one"
        try:
            self.of(name)
        except TransferInputError as e:
            return str(e)
        return ""

    @property
    def _beside(self) -> Mapping[str, str]:
        request = self.request
        is_used = (request.on_bad_rows == "keep", request.expectations.on_failed == "quarantine", request.upsert)
        return {end: why for (end, why), used in zip(_BESIDE.items(), is_used, strict=True) if used}

    def of(self, name: str) -> Request:
        """Return the request of the load into the table of this name. Raises TransferInputError."""
        source: Source = replace(self.request.source, keys=self._keys.replace(TABLE, name))
        return replace(self.request, source=source, table=self.table(name))
