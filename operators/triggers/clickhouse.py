"""Loading into ClickHouse from the triggerer, while ClickHouse does the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from operators.hooks.transfer import clients
from operators.triggers.aistore import SETTLE_SECONDS


class S3ToClickHouseTrigger(BaseTrigger):
    """Has ClickHouse pull the planned objects of a transfer; fires once with the report, or with an error.

    `request` and `prepared` are the engine's `Request` and `Prepared` as dictionaries, `run_id` names the run in the
    ledger. A user who kills or clears the deferred task stops the transfer and kills its queries. A triggerer that
    restarts takes over the queries that still run.
    """

    def __init__(
        self,
        request: dict[str, Any],
        prepared: dict[str, Any],
        run_id: str,
        started: float,
        aws_conn_id: str,
        clickhouse_conn_id: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.request = request
        self.prepared = prepared
        self.run_id = run_id
        self.started = started
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "request": self.request,
                "prepared": self.prepared,
                "run_id": self.run_id,
                "started": self.started,
                "aws_conn_id": self.aws_conn_id,
                "clickhouse_conn_id": self.clickhouse_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Drive the transfer in a thread: it sends statements and waits for them."""
        from include.transfer.engine import Prepared
        from include.transfer.errors import TransientError

        await asyncio.sleep(SETTLE_SECONDS)
        transfer = await self._transfer()
        transfer.started = self.started
        try:
            report = await asyncio.to_thread(transfer.run, Prepared(**self.prepared))
        except asyncio.CancelledError:
            transfer.leave.set()
            raise
        except Exception as e:
            self.log.exception("the transfer ended early")
            yield TriggerEvent({"error": str(e) or repr(e), "again": isinstance(e, TransientError | OSError)})
            return
        yield TriggerEvent({"report": asdict(report)})

    async def on_kill(self) -> None:
        """Kill the transfer's queries: its task was killed, cleared or marked by a user."""
        self.log.info("stopping the transfer %s", self.run_id)
        await asyncio.to_thread((await self._transfer()).cancel)

    async def _transfer(self) -> Any:
        from include.transfer.engine import Transfer
        from include.transfer.request import Request

        aws = await BaseHook.aget_connection(self.aws_conn_id)
        clickhouse = await BaseHook.aget_connection(self.clickhouse_conn_id)
        request = Request.from_dict(self.request)
        return await asyncio.to_thread(lambda: Transfer(request, *clients(aws, clickhouse), self.run_id))
