"""The trigger that checks connections from the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from storeside.operators.errors import is_final
from storeside.operators.hooks.doctor import look
from storeside.operators.triggers.engine import SETTLE_SECONDS, in_thread


class CheckConnectionsTrigger(BaseTrigger):
    """Runs the doctor's checks once, in a thread, and fires with the findings or with the error that prevents them.

    `connections` maps systems to connection ids, so neither the trigger nor its event contains a secret.
    """

    def __init__(self, connections: dict[str, str], bucket: str, queue: str, write: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.connections = connections
        self.bucket = bucket
        self.queue = queue
        self.write = write

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"connections": self.connections, "bucket": self.bucket, "queue": self.queue, "write": self.write},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Run the checks and fire once.

        Raises an error that a retry may cure, so that Airflow retries the task.
        """
        await asyncio.sleep(SETTLE_SECONDS)
        found = {system: await BaseHook.aget_connection(conn_id) for system, conn_id in self.connections.items()}
        try:
            findings = await in_thread(partial(look, found, self.bucket, self.queue, write=self.write))
        except Exception as e:
            if not is_final(e):
                raise
            yield TriggerEvent({"error": str(e)})
            return
        yield TriggerEvent({"findings": [asdict(finding) for finding in findings]})
