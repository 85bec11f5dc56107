"""Records which run owns which multipart upload, so that a dead run's uploads can be aborted.

A run claims an upload by the object's name before it begins the upload, so a killed run leaves no upload without a
claim.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from storeside.copying.errors import CopyError
from storeside.copying.store import Store

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Interval of a working run's heartbeat. A run without a heartbeat for `DEAD_SECONDS` is dead.
BEAT_SECONDS = 20.0
DEAD_SECONDS = 90.0
# Maximum difference between the clocks of servers.
_SKEW = timedelta(minutes=5)
_COLUMNS = ("destination", "object", "run_id", "state", "opened_at")


class Claims:
    """The claims of one job of a run on uploads to one bucket, in ``storeside.uploads``."""

    def __init__(self, client: Client, store: Store, owner: str) -> None:
        self.client = client
        self.store = store
        self.owner = owner
        self._open: list[tuple[str, datetime]] = []

    def open(self, keys: Iterable[str]) -> None:
        """Claim uploads that are about to begin."""
        now = datetime.now(UTC)
        self._open = [(key, now) for key in keys]
        self._record("open")

    def beat(self) -> None:
        """Record a heartbeat of this run."""
        self._record("open")

    def close(self, left: Container[str] = ()) -> None:
        """Close the claims on completed or aborted uploads; claims on the names in `left` stay open."""
        self._open = [(key, opened) for key, opened in self._open if key not in left]
        self._record("closed")
        self._open = []

    def _record(self, state: str) -> None:
        if self._open:
            rows = [[self.store.name, key, self.owner, state, opened] for key, opened in self._open]
            self.client.insert("storeside.uploads", rows, column_names=_COLUMNS, settings={"async_insert": 0})

    def sweep(self) -> int:
        """Abort the uploads left by dead runs and by earlier tries of this run; return the number of uploads."""
        rows = self.client.query(
            "SELECT object, run_id, opened_at FROM storeside.uploads FINAL WHERE destination = {destination:String}"
            " AND state = 'open' AND (run_id = {run_id:String} OR seen_at < now64(3) - {dead:Float64})",
            parameters={"destination": self.store.name, "run_id": self.owner, "dead": DEAD_SECONDS},
        ).result_rows
        aborted = 0
        for key, run_id, opened in rows:
            since = opened.replace(tzinfo=opened.tzinfo or UTC) - _SKEW
            try:
                left = [upload for upload in self.store.uploads(key) if upload.begun >= since]
                for upload in left:
                    self.store.abort(key, upload.id)
            except CopyError as e:
                log.warning("%s: cannot abort the uploads of %r by %s for now: %s", self.store.name, key, run_id, e)
                continue
            aborted += len(left)
            row = [self.store.name, key, run_id, "closed", opened]
            self.client.insert("storeside.uploads", [row], column_names=_COLUMNS, settings={"async_insert": 0})
        if aborted:
            log.info("aborted %d uploads to %s that killed runs left", aborted, self.store.name)
        return aborted
