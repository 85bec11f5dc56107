"""The trigger that runs a load while ClickHouse pulls the objects."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from storeside.aistore.cluster import cluster_of
from storeside.operators.hooks.transfer import (
    clickhouse_client,
    ledger_client,
    ledger_connection_async,
    other_servers,
    s3_client,
)
from storeside.operators.triggers.engine import EngineTrigger, in_thread


class S3ToClickHouseTrigger(EngineTrigger):
    """Loads the planned objects of a transfer by pull; fires once with the report or with an error.

    `request` and `prepared` are the engine's `Request` and `Prepared` as dictionaries, `run_id` is the run's name in
    the ledger, and `started` is in seconds since the epoch. The triggerer reads footers and compares versions with
    the connection of the source's system. If it restarts, it takes over running queries.
    """

    def __init__(
        self,
        request: dict[str, Any],
        prepared: dict[str, Any],
        run_id: str,
        started: float,
        aws_conn_id: str,
        clickhouse_conn_id: str,
        aistore_conn_id: str = "",
    ) -> None:
        super().__init__(
            request=request,
            prepared=prepared,
            run_id=run_id,
            started=started,
            aws_conn_id=aws_conn_id,
            clickhouse_conn_id=clickhouse_conn_id,
            aistore_conn_id=aistore_conn_id,
        )

    async def engine(self) -> Any:
        """Return the transfer with clients for its connections."""
        from storeside.transfer.request.request import Request
        from storeside.transfer.run.engine import Transfer

        request = Request.from_dict(self.arguments["request"])
        in_aistore = request.source.in_aistore
        reader = await BaseHook.aget_connection(self.arguments["aistore_conn_id" if in_aistore else "aws_conn_id"])
        clickhouse = await BaseHook.aget_connection(self.arguments["clickhouse_conn_id"])
        ledger = await ledger_connection_async(clickhouse)
        transfer = await in_thread(
            lambda: Transfer(
                request,
                clickhouse_client(clickhouse),
                cluster_of(reader).client() if in_aistore else s3_client(reader),
                self.arguments["run_id"],
                ledger=ledger_client(ledger, clickhouse),
                servers=other_servers(clickhouse),
            )
        )
        transfer.started = self.arguments["started"]
        return transfer

    def work(self, engine: Any) -> Any:
        """Load the planned objects and return the report."""
        from storeside.transfer.run.engine import Prepared

        return engine.run(Prepared(**self.arguments["prepared"]))
