"""Batches of leased messages that one process passes to another: from a watcher to a run, or between tasks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storeside.events.queue import Message
from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_LEASES = {
    **dict.fromkeys(("batch", "message_id", "receipt_handle", "body"), "String"),
    "sent_at": "Float64",
    "receives": "UInt32",
    "message_group": "String",
}
_SYNCHRONOUS = {"async_insert": 0}


class Batches:
    """Batches of one queue, in ``storeside.event_batches`` and ``storeside.event_leases``."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self.queue = queue

    def open(self, messages: Sequence[Message], run_id: str = "") -> str:
        """Record leased messages as a batch and return its name. With `run_id`, the batch is taken by that run."""
        batch = uuid.uuid4().hex
        rows = [[batch, m.id, m.handle, m.body, m.sent, m.receives, m.group] for m in messages]
        if rows:
            self.client.insert(
                "storeside.event_leases", rows, column_names=list(_LEASES), column_type_names=list(_LEASES.values()),
                settings=_SYNCHRONOUS,
            )  # fmt: skip
        self._record(batch, "taken" if run_id else "open", len(messages), run_id)
        return batch

    def take(self, batch: str, run_id: str) -> list[Message]:
        """Record an open batch as taken by this run and return its messages; none if the batch is not open.

        A batch that an earlier run of the same DAG took and did not settle counts as open, because that run failed.
        """
        state, owner = self.state(batch)
        if state not in ("open", "taken") or (state == "taken" and not _same_dag(owner, run_id)):
            return []
        messages = self.messages(batch)
        self._record(batch, "taken", len(messages), run_id)
        return messages

    def state(self, batch: str) -> tuple[str, str]:
        """Return a batch's state and the run that took it; empty texts for an unknown batch."""
        rows = self.client.query(
            "SELECT toString(state), run_id FROM storeside.event_batches FINAL"
            " WHERE queue = {queue:String} AND batch = {batch:String}",
            parameters={"queue": self.queue, "batch": batch},
        ).result_rows
        return (rows[0][0], rows[0][1]) if rows else ("", "")

    def messages(self, batch: str) -> list[Message]:
        """Return the messages of a batch."""
        rows = self.client.query(
            "SELECT message_id, receipt_handle, body, sent_at, receives, message_group"
            " FROM storeside.event_leases WHERE batch = {batch:String}",
            parameters={"batch": batch},
        ).result_rows
        return [Message(*row) for row in rows]

    def settled(self, batch: str, run_id: str) -> None:
        """Record that every message of a batch was deleted, released or sent to the dead-letter queue."""
        self._close(batch, "settled", run_id)

    def give_up(self, batch: str) -> None:
        """Record that no run took a batch, and that its messages are visible in the queue again."""
        self._close(batch, "given_up", "")

    def unsettled(self) -> list[tuple[str, str, float]]:
        """Return the open and taken batches: name, state, and seconds in that state."""
        rows = self.client.query(
            "SELECT batch, toString(state), toFloat64(now64(6)) - toFloat64(recorded_at)"
            " FROM storeside.event_batches FINAL WHERE queue = {queue:String} AND state IN ('open', 'taken')",
            parameters={"queue": self.queue},
        ).result_rows
        return [(batch, state, max(seconds, 0.0)) for batch, state, seconds in rows]

    def of_run(self, run_id: str) -> list[str]:
        """Return the batches that a run took and did not settle."""
        rows = self.client.query(
            "SELECT batch FROM storeside.event_batches FINAL"
            " WHERE queue = {queue:String} AND state = 'taken' AND run_id = {run_id:String}",
            parameters={"queue": self.queue, "run_id": run_id},
        ).result_rows
        return [row[0] for row in rows]

    def left_to(self, run_id: str) -> list[str]:
        """Return the batches that a run, or another run of its DAG, took and did not settle."""
        rows = self.client.query(
            "SELECT batch, run_id FROM storeside.event_batches FINAL"
            " WHERE queue = {queue:String} AND state = 'taken'",
            parameters={"queue": self.queue},
        ).result_rows
        return [batch for batch, owner in rows if _same_dag(owner, run_id)]

    def given_up_unseen(self) -> bool:
        """Return whether the last batch was given up, and no run has processed an event of the queue since."""
        row = first_row(
            self.client.query(
                "SELECT maxIf(recorded_at, state = 'given_up') AS given_up, given_up > toDateTime64(0, 6)"
                " AND given_up >= maxIf(recorded_at, state IN ('taken', 'settled'))"
                " AND given_up > (SELECT max(recorded_at) FROM storeside.events WHERE queue = {queue:String})"
                " FROM storeside.event_batches FINAL WHERE queue = {queue:String}",
                parameters={"queue": self.queue},
            )
        )
        return bool(row[1])

    def _close(self, batch: str, state: str, run_id: str) -> None:
        self._record(batch, state, 0, run_id)
        # `UUID` rejects any text that could change the statement.
        self.client.command(f"ALTER TABLE storeside.event_leases DROP PARTITION '{uuid.UUID(batch).hex}'")

    def _record(self, batch: str, state: str, messages: int, run_id: str) -> None:
        self.client.insert(
            "storeside.event_batches",
            [[self.queue, batch, state, messages, run_id]],
            column_names=["queue", "batch", "state", "messages", "run_id"],
            column_type_names=["String", "String", "String", "UInt32", "String"],
            settings=_SYNCHRONOUS,
        )


def _same_dag(one: str, other: str) -> bool:
    """Return whether two runs, ``<dag_id>/<run_id>``, are equal or belong to the same DAG."""
    dag, slash, _ = one.partition("/")
    return one == other or (bool(slash) and other.startswith(dag + slash))
