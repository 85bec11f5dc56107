"""Records runs that follow a queue without a pause, so that watchers of the queue lease no messages."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_BEAT_SECONDS = 20.0
# Seconds after its last heartbeat for which a killed run still counts as following.
_COUNTS_SECONDS = 60


class Following:
    """Records from a thread, in ``storeside.queue_followers``, that a run follows a queue while the context lasts.

    Without this record, watchers lease some of the messages, which only costs time.
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
                column_type_names=["String", "String", "UInt8"],
                settings={"async_insert": 0},
            )
        except (DatabaseError, OperationalError) as e:
            log.info("%s: cannot record whether this run follows the queue: %s", self.queue, e)


def is_followed(client: Client, queue: str) -> bool:
    """Return whether a run currently follows a queue."""
    row = first_row(
        client.query(
            "SELECT count() FROM storeside.queue_followers FINAL WHERE queue = {queue:String} AND follows"
            " AND recorded_at > now64(6) - INTERVAL {seconds:UInt32} SECOND",
            parameters={"queue": queue, "seconds": _COUNTS_SECONDS},
        )
    )
    return bool(row[0])
