"""Objects that a task left out because they failed for good in earlier runs, and the acceptance of these failures."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside import sql
from storeside.ledger.objects import Ledger
from storeside.pages.movement import Movement
from storeside.pages.tables import Tables
from storeside.transfer.request.source import Source
from storeside.transfer.state.loads import Loads

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient


@dataclass(frozen=True)
class Known:
    """An object that failed for good before the task; `accepted_at` is in seconds since the epoch.

    `is_open` states whether it is still without a result or rows, and no user has accepted that.
    """

    object: str
    reason: str
    is_open: bool = False
    accepted_by: str = ""
    accepted_at: float = 0.0

    @property
    def id(self) -> str:
        """A digest of the name, because a browser changes the line breaks of a name in a form."""
        return hashlib.sha256(self.object.encode()).hexdigest()[:16]


def known(tables: Tables, stage: Movement) -> list[Known]:
    """Return the first objects that the task left out because they failed for good in earlier runs."""
    recorded = stage.detail.get("known_failures")
    reasons = {str(name): str(reason) for name, reason in recorded} if isinstance(recorded, list) else {}
    if not reasons:
        return []
    if stage.is_load:
        rows = tables.rows(
            sql.query("pages_known_loads"), destination=stage.table, bucket=stage.bucket, names=list(reasons)
        )
    else:
        rows = tables.rows(
            sql.query("pages_known_results"), source=stage.source, destination=stage.destination,
            prepend=stage.prepend, names=list(reasons),
        )  # fmt: skip
    now = {row["object"]: (bool(row["is_open"]), row["accepted_by"], row["accepted_ms"] / 1000) for row in rows}
    return [Known(name, reason, *now.get(name, ())) for name, reason in reasons.items()]


def accept(client: HttpClient, stage: Movement, names: Collection[str], who: str) -> int:
    """Accept the failures of these objects in the name of `who`; return their number. The client must write."""
    if stage.is_load:
        return Loads(client, "", stage.table, Source(stage.bucket, ""), "").accept(who, names)
    return Ledger(client).accept_failed(stage.source, stage.destination, who, prepend=stage.prepend, names=names)
