"""The connections of one ClickHouse server: a user for loads, one for Storeside's own tables, one for the pages.

The connection for loads names the other two in its extras. Without them, its user does everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The extras of the connection for loads.
LEDGER = "ledger_conn_id"
PAGES = "pages_conn_id"


def conn_id_of(role: str, conn_id: str, extra: Mapping[str, Any]) -> str:
    """Return the id of a role's connection, given id and extras of the connection for loads."""
    return str(extra.get(role) or conn_id)
