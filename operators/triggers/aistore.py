"""The trigger that waits for an AIStore job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from storeside.aistore.cluster import cluster_of
from storeside.aistore.following import cancel, describe
from storeside.aistore.jobs import Follower, Progress
from storeside.operators.errors import is_final
from storeside.operators.triggers.engine import SETTLE_SECONDS, goes_on_elsewhere, in_thread

if TYPE_CHECKING:
    pass

REPORT_SECONDS = 5.0


class AISJobTrigger(BaseTrigger):
    """Fires once when an AIStore job ends, with the job's error if it had one.

    The trigger also fires on an error that a retry cannot cure, such as a revoked token (see
    `storeside.operators.errors`). The resumed task then gets the same error and fails.

    The log shows rate and remaining time, computed from `started` (seconds since the epoch) and `total` objects. The
    trigger aborts a job that makes no progress for `stall_seconds`. When a user kills or clears the deferred task,
    the trigger aborts the job and stops the ETLs `etl_names`. It never aborts a job that belongs to another task
    (`own` is False); without progress, it then fires, and the task looks again. A triggerer that restarts continues
    to follow the job.
    """

    def __init__(
        self,
        aistore_conn_id: str,
        job_id: str,
        started: float,
        total: int = 0,
        poll_interval: float = 1.0,
        stall_seconds: float = 300,
        own: bool = True,
        etl_names: Sequence[str] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.aistore_conn_id = aistore_conn_id
        self.job_id = job_id
        self.started = started
        self.total = total
        self.poll_interval = poll_interval
        self.stall_seconds = stall_seconds
        self.own = own
        self.etl_names = list(etl_names)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "aistore_conn_id": self.aistore_conn_id,
                "job_id": self.job_id,
                "started": self.started,
                "total": self.total,
                "poll_interval": self.poll_interval,
                "stall_seconds": self.stall_seconds,
                "own": self.own,
                "etl_names": self.etl_names,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the job ends; each poll runs in a thread, because the SDK blocks."""
        try:
            client = await self._client()
            follower = Follower(client, self.job_id, self.stall_seconds, is_final, self.own, self.started)
        except Exception as e:
            if not is_final(e):
                raise
            yield TriggerEvent(ended(self.job_id, Progress(finished=True, error=str(e)), str(e)))
            return
        reported = time.time()
        await asyncio.sleep(SETTLE_SECONDS)
        while True:
            progress = await in_thread(follower.poll)
            now = time.time()
            text = describe(progress, self.total, now - self.started)
            if progress.finished:
                yield TriggerEvent(ended(self.job_id, progress, text))
                return
            if now - reported >= REPORT_SECONDS:
                self.log.info("job %s: %s", self.job_id, text)
                reported = now
            await asyncio.sleep(self.poll_interval)

    async def on_kill(self) -> None:
        """Abort the job, because a user killed or cleared the task or set its state."""
        if self.own and not await goes_on_elsewhere(self):
            self.log.info("aborting AIStore job %s", self.job_id)
            await in_thread(cancel, await self._client(), self.job_id, self.etl_names)

    async def _client(self) -> Any:
        # The trigger reads the connection, so Airflow's database does not store the token with the trigger.
        connection = await BaseHook.aget_connection(self.aistore_conn_id)
        return await in_thread(lambda: cluster_of(connection).client())


def ended(job_id: str, progress: Progress, text: str) -> dict[str, Any]:
    """Return what a task learns about a job that has ended; `text` describes its progress."""
    return {
        "job_id": job_id,
        "objects": progress.objects,
        "error": progress.error,
        "seconds": progress.seconds,
        "progress": text,
    }
