"""The connections of one ClickHouse server: users for loads, for Storeside's own tables, and for the pages.

The extras of the connection for loads have the ids of the other two. Without these, its user does everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The extras of the connection for loads.
LEDGER = "ledger_conn_id"
PAGES = "pages_conn_id"


def conn_id_of(role: str, conn_id: str, extra: Mapping[str, Any]) -> str:
    """Return the id of a role's connection, from the id and the extras of the connection for loads."""
    return str(extra.get(role) or conn_id)
