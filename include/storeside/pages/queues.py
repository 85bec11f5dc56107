"""Queues of S3 events: their depth, their age, and the outcomes of the events."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Any

from storeside import sql
from storeside.pages.charts import slice_seconds
from storeside.pages.objects import MOST_COUNTED
from storeside.pages.tables import FIRST, PAGE, At, Page, Tables, check, directed

MOST_QUEUES = 50
_MOST_CHOSEN = 1_000  # queues that a page chooses by their names
STATES = ("", "loaded", "skipped", "released", "dead")


def queues(tables: Tables, names: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the newest depth of measured queues that the visitor may see, each with a `label` for the pages.

    `names` chooses queues by name, label or URL; without names, these are the `MOST_QUEUES` measured last. A label is
    the queue's name. A URL, which contains the number of the account, does not appear on pages: queues of the same
    name differ by a hash.
    """
    wanted = {_name(name) for name in names}
    rows = tables.rows(sql.query("pages_queues"), names=sorted(wanted), limit=_MOST_CHOSEN if names else MOST_QUEUES)
    for row in rows:
        name = _name(row["queue"])
        several = row["of_this_name"] > 1
        row["label"] = f"{name}~{sha256(row['queue'].encode()).hexdigest()[:8]}" if several else name
    return sorted(rows, key=lambda row: row["queue"])


def find(tables: Tables, queue: str) -> dict[str, Any] | None:
    """Return a measured queue by its label or, as tasks may name it, by its URL; None for any other."""
    found = queues(tables, [queue]) if queue else []
    return next((row for row in found if queue in (row["queue"], row["label"])), None)


def _name(queue: str) -> str:
    """Return the name of a queue by its URL, its label or its name; SQS has no names with ``/`` or ``~``."""
    return queue.rpartition("/")[2].partition("~")[0]


def dags(tables: Tables, queue: str) -> list[str]:
    """Return the DAGs that take messages of a queue and that the visitor may read."""
    return [row["dag"] for row in tables.rows(sql.query("pages_queue_dags"), queue=queue)]


def history(tables: Tables, queue: str) -> list[dict[str, Any]]:
    """Return depth and age of a queue over the last day."""
    return tables.rows(sql.query("pages_queue_history"), queue=queue, hours=24, slice=slice_seconds())


def events(
    tables: Tables, queue: str, state: str = "", at: At = FIRST, text: str = "", size: int = PAGE
) -> Page[dict[str, Any]]:
    """Return a page of a queue's events, newest first. Raises PageInputError for an unknown state or cursor."""
    check("state", state, STATES)
    cursor = at.cursor(int, str, int)
    ms, message, record = cursor or (0, "", 0)
    rows = tables.rows(
        directed(sql.query("pages_events"), descending=not at.back),
        queue=queue, state=state, text=text, is_first=cursor is None, before_ms=ms, before_message=message,
        before_record=record, limit=size + 1,
    )  # fmt: skip
    return at.page(rows, lambda row: (row["recorded_ms"], row["message_id"], row["record"]), size)


def count(tables: Tables, queue: str, state: str = "", text: str = "") -> int:
    """Return how many events of a queue match, at most `MOST_COUNTED` + 1."""
    limit = MOST_COUNTED + 1
    rows = tables.rows(sql.query("pages_events_total"), queue=queue, state=state, text=text, limit=limit)
    return int(rows[0]["events"]) if rows else 0
