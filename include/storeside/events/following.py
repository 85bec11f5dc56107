"""Runs that follow a queue without a pause, in ``storeside.queue_followers``: watchers leave the queue to them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_BEAT_SECONDS = 20.0
# Seconds for which a run counts as following after its last heartbeat, if it was killed.
_COUNTS_SECONDS = 60


class Following:
    """Records, from a thread, that a run takes a queue's messages, for as long as the context lasts.

    If it cannot record that, watchers receive some of the messages, which only costs time.
    """

    def __init__(self, client: Client, queue: str, run_id: str) -> None:
        self.client = client
        self.queue = queue
        self.run_id = run_id
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(_BEAT_SECONDS)
        self._record(follows=False)

    def _beat(self) -> None:
        while not self._end.is_set():
            self._record(follows=True)
            self._end.wait(_BEAT_SECONDS)

    def _record(self, *, follows: bool) -> None:
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

        try:
            self.client.insert(
                "storeside.queue_followers",
                [[self.queue, self.run_id, follows]],
                column_names=["queue", "run_id", "follows"],
                settings={"async_insert": 0},
            )
        except (DatabaseError, OperationalError) as e:
            log.info("watchers of %s are not told whether this run follows it: %s", self.queue, e)


def is_followed(client: Client, queue: str) -> bool:
    """Tell whether a run currently follows a queue."""
    row = first_row(
        client.query(
            "SELECT count() FROM storeside.queue_followers FINAL WHERE queue = {queue:String} AND follows"
            " AND recorded_at > now64(6) - INTERVAL {seconds:UInt32} SECOND",
            parameters={"queue": queue, "seconds": _COUNTS_SECONDS},
        )
    )
    return bool(row[0])
