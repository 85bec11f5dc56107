"""Queues of S3 events: their depth, their age, and the outcomes of the events."""

from __future__ import annotations

from typing import Any

from storeside import sql
from storeside.pages.tables import PAGE, Page, PageInputError, Tables, page_of, read_cursor

STATES = ("", "loaded", "skipped", "released", "dead")


def queues(tables: Tables) -> list[dict[str, Any]]:
    """Return the newest depth of every queue that was measured."""
    return tables.rows(sql.query("pages_queues"))


def url(measured: list[dict[str, Any]], queue: str) -> str:
    """Return the URL of a measured queue by its URL or by its name in tasks; empty for any other."""
    urls = [row["queue"] for row in measured]
    return next((one for one in urls if queue in (one, one.rpartition("/")[2])), "")


def dags(tables: Tables, queue: str) -> list[str]:
    """Return the DAGs that take messages of a queue and that the visitor may read."""
    return [row["dag"] for row in tables.rows(sql.query("pages_queue_dags"), queue=queue)]


def history(tables: Tables, queue: str, hours: int = 24) -> list[dict[str, Any]]:
    """Return depth and age of a queue over the last hours."""
    return tables.rows(sql.query("pages_queue_history"), queue=queue, hours=hours, slice=max(hours * 3600 // 96, 15))


def events(tables: Tables, queue: str, state: str = "", before: str = "") -> Page[dict[str, Any]]:
    """Return a page of a queue's events, newest first. Raises PageInputError for an unknown state or cursor."""
    if state not in STATES:
        raise PageInputError(f"state {state!r}: choose from {', '.join(STATES[1:])}")
    ms, message, record = read_cursor(before, int, str, int) or (1 << 62, "", 0)
    rows = tables.rows(
        sql.query("pages_events"),
        queue=queue, state=state, before_ms=ms, before_message=message, before_record=record, limit=PAGE + 1,
    )  # fmt: skip
    return page_of(rows, lambda row: (row["recorded_ms"], row["message_id"], row["record"]))
