"""The rows of the tables of guarantees."""

from __future__ import annotations

import re

from storeside.stack.settings import CHECKOUT

DOCUMENTS = ("README.md", "docs/guarantees.md")
_TABLE = re.compile(r"^\| row \|.*\n\|[-| ]+\n((?:\|.*\n)+)", re.MULTILINE)
_ROW = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)


def rows() -> list[str]:
    """Return the names of the rows of the guarantees in README and docs/guarantees.md, each once."""
    tables = (table for name in DOCUMENTS for table in _TABLE.findall((CHECKOUT / name).read_text()))
    return list(dict.fromkeys(row for table in tables for row in _ROW.findall(table)))
