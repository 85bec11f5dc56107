"""The tables into which tasks load data: their rows, their size, and how fresh they are."""

from __future__ import annotations

from typing import Any

from storeside import sql
from storeside.pages.tables import Tables

DAYS = 90
MOST = 200


def destinations(tables: Tables, text: str = "") -> list[dict[str, Any]]:
    """Return the tables with loads in the last `DAYS` days, the freshest first, at most `MOST`.

    `text` is a part of a table's or a DAG's name. ``rows`` and ``bytes`` are those of the whole table as ClickHouse
    counts them, None for views and distributed tables, and for tables that the pages' user may not see.
    ``loaded_ms`` is the end of the last task that loaded rows of an object, 0 for none; ``recorded_ms`` that of the
    last task at all.
    """
    return tables.rows(sql.query("pages_destinations"), text=text, days=DAYS, limit=MOST)
