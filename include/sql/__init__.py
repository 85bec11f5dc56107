"""The project's longer SQL, one statement or schema per file."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def query(name: str) -> str:
    """Return the one statement in ``<name>.sql``."""
    return Path(__file__).with_name(f"{name}.sql").read_text()


def schema(name: str = "storeside") -> list[str]:
    """Return the statements of ``<name>.sql``, which are separated by semicolons."""
    return [s for s in (part.strip() for part in query(name).split(";\n")) if s]
