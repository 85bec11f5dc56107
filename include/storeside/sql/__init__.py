"""The project's longer SQL, one statement or schema per file; `migrations` has the tables, in numbered steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def query(name: str) -> str:
    """Return the one statement in ``<name>.sql``."""
    return (FOLDER / f"{name}.sql").read_text()


def schema(name: str) -> list[str]:
    """Return the statements of ``<name>.sql``, which are separated by semicolons."""
    return [s for s in (part.strip() for part in query(name).split(";\n")) if s]
