"""Progress of running movements: of loads from their ledger, of copies and transforms from AIStore's counters."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside import sql
from storeside.errors import Transient
from storeside.pages.movement import Movement
from storeside.pages.tables import Tables, UnavailableError

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """The progress of a running movement. Unknown totals are 0. `bytes` are those of finished objects."""

    objects: int = 0
    objects_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    bytes_failed: int = 0
    failed: int = 0
    seconds: float = 0
    phase: str = ""

    @property
    def share(self) -> float | None:
        """The finished share, by bytes if their total is known; None when no total is known."""
        if self.bytes_total:
            return min((self.bytes + self.bytes_failed) / self.bytes_total, 1.0)
        if self.objects_total:
            return min((self.objects + self.failed) / self.objects_total, 1.0)
        return None

    @property
    def objects_per_second(self) -> float:
        """Objects per second since the start."""
        return self.objects / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second since the start."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Remaining seconds at this rate; None when unknown."""
        return self.seconds / self.share - self.seconds if self.share and self.seconds > 0 else None


def load_progress(tables: Tables, movement: Movement) -> Progress:
    """Return the progress of a load, from its ledger."""
    rows = tables.rows(
        sql.query("pages_load_progress"), destination=movement.table, bucket=movement.bucket, run=movement.run_id,
        keys=movement.keys, started=round(movement.started * 1000),
    )  # fmt: skip
    found = rows[0] if rows else {"loaded": 0, "failed": 0, "bytes": 0, "bytes_failed": 0}
    return Progress(
        objects=found["loaded"],
        objects_total=int(movement.detail.get("objects", 0)),
        bytes=found["bytes"],
        bytes_total=int(movement.detail.get("bytes", 0)),
        bytes_failed=found["bytes_failed"],
        failed=found["failed"],
        seconds=time.time() - movement.started,
        phase="ClickHouse reads",
    )


def job_progress(client: Client, movement: Movement) -> Progress:
    """Return the progress of AIStore's job for a movement, from AIStore's own counters over all targets.

    Raises UnavailableError when the cluster does not answer; a refusal is only a progress that is not known.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    from storeside.aistore.jobs import newest_snapshots

    total = int(movement.detail.get("objects", 0))
    seconds = time.time() - movement.started
    job = str(movement.detail.get("job", ""))
    try:
        snaps = newest_snapshots(client, job) if job else []
    except AISError as e:
        log.warning("AIStore did not return the progress of job %s: %s", job, e)
        return Progress(objects_total=total, seconds=seconds, phase=f"AIStore has no progress of job {job}")
    except (RequestException, Transient) as e:
        log.warning("AIStore did not answer a page: %s", e)
        raise UnavailableError("the cluster does not answer for now") from e
    stats = [snap.stats for snap in snaps if snap.stats]
    return Progress(
        objects=sum(s.objects for s in stats),
        objects_total=total,
        bytes=sum(s.bytes for s in stats),
        seconds=seconds,
        phase=f"AIStore works, job {job}",
    )
