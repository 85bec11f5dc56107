"""Triggers that drain a queue of S3 events into ClickHouse, or watch a queue and start runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from storeside.errors import StoresideError
from storeside.operators.arguments import between
from storeside.operators.hooks.transfer import (
    clickhouse_client,
    clients,
    ledger_client,
    ledger_connection_async,
    other_servers,
    sqs_client,
)
from storeside.operators.triggers.engine import EngineTrigger, in_thread

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from clickhouse_connect.driver.client import Client


class S3EventsToClickHouseTrigger(EngineTrigger):
    """Drains a queue of S3 events while ClickHouse pulls the objects; fires once with the report or with an error.

    `request` and `limits` are the engine's `Request` and `Limits` as dictionaries, `batches` lists the batches that
    were leased for this run. A triggerer that ends releases its messages. The messages of a killed triggerer become
    visible when their lease ends. The next triggerer receives them again.
    """

    def __init__(
        self,
        queue: str,
        request: dict[str, Any],
        limits: dict[str, Any],
        batches: Sequence[str],
        run_id: str,
        aws_conn_id: str,
        clickhouse_conn_id: str,
    ) -> None:
        super().__init__(
            queue=queue,
            request=request,
            limits=limits,
            batches=batches,
            run_id=run_id,
            aws_conn_id=aws_conn_id,
            clickhouse_conn_id=clickhouse_conn_id,
        )

    async def engine(self) -> Any:
        """Return the load with clients for its connections."""
        aws = await BaseHook.aget_connection(self.arguments["aws_conn_id"])
        clickhouse = await BaseHook.aget_connection(self.arguments["clickhouse_conn_id"])
        return await in_thread(self._engine_of, aws, clickhouse, await ledger_connection_async(clickhouse))

    def _engine_of(self, aws: Connection, clickhouse: Connection, ledger: Connection) -> Any:
        from storeside.events.intake import Limits
        from storeside.events.load import EventLoad
        from storeside.events.queue import Queue
        from storeside.transfer.request.request import Request

        return EventLoad(
            Queue(sqs_client(aws), self.arguments["queue"]),
            Request.from_dict(self.arguments["request"]),
            *clients(aws, clickhouse),
            self.arguments["run_id"],
            Limits(**self.arguments["limits"]),
            ledger_client(ledger, clickhouse),
            other_servers(clickhouse),
        )

    def work(self, engine: Any) -> Any:
        """Drain the queue and return the report."""
        return engine.run(self.arguments["batches"])


class S3EventsTrigger(BaseEventTrigger):
    """Leases batches of S3 events for an `AssetWatcher` and fires once per batch.

    The event contains the batch's first objects and the batch's name; the run takes the batch over by this name. The
    trigger extends the lease of the messages until the run has deleted or released them, then it leases the next
    batch. If no run takes a batch, the trigger sends its event again and finally releases it: see
    `storeside.events.watch.Window`.

    :param queue: name or URL of an SQS queue with a dead-letter queue
    :param batch_messages: maximum number of messages in a batch
    :param batch_seconds: seconds after its first message during which a batch accepts more messages
    :param lease_seconds: seconds that messages stay invisible after the triggerer was killed
    :param poll_interval: seconds between two polls
    :param aws_conn_id: connection to S3 and SQS
    :param clickhouse_conn_id: connection to ClickHouse
    """

    def __init__(
        self,
        queue: str,
        batch_messages: int = 1000,
        batch_seconds: float = 5.0,
        lease_seconds: int = 120,
        poll_interval: float = 1.0,
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        between("lease_seconds", 3, 43_200)(lease_seconds)
        between("batch_messages", 1)(batch_messages)
        self.queue = queue
        self.batch_messages = batch_messages
        self.batch_seconds = batch_seconds
        self.lease_seconds = lease_seconds
        self.poll_interval = poll_interval
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "queue": self.queue,
                "batch_messages": self.batch_messages,
                "batch_seconds": self.batch_seconds,
                "lease_seconds": self.lease_seconds,
                "poll_interval": self.poll_interval,
                "aws_conn_id": self.aws_conn_id,
                "clickhouse_conn_id": self.clickhouse_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the queue until the trigger is cancelled.

        It tries again if a server does not answer or the queue does not exist yet.
        """
        from storeside.events.lease import Lease

        while True:
            try:
                queue, client = await self._connect()
                with Lease(queue, self.lease_seconds) as lease:
                    watch = await in_thread(self._watch, queue, client, lease)
                    while True:
                        if (told := await in_thread(watch.step)) is not None:
                            yield TriggerEvent(told)
                        await asyncio.sleep(self.poll_interval)
            except (StoresideError, OSError, self._database_error()) as e:
                self.log.warning("cannot watch the queue %s, trying again in some seconds: %s", self.queue, e)
                await asyncio.sleep(5 * self.poll_interval)

    async def _connect(self) -> tuple[Any, Any]:
        from storeside.events.queue import Queue

        aws = await BaseHook.aget_connection(self.aws_conn_id)
        clickhouse = await BaseHook.aget_connection(self.clickhouse_conn_id)
        ledger = await ledger_connection_async(clickhouse)
        return (
            await in_thread(lambda: Queue.find(sqs_client(aws), self.queue)),
            await in_thread(clickhouse_client, ledger),
        )

    def _watch(self, queue: Any, client: Client, lease: Any) -> Any:
        from storeside.events.watch import Watch, Window

        return Watch(queue, client, lease, Window(self.batch_messages, self.batch_seconds))

    @staticmethod
    def _database_error() -> type[Exception]:
        from clickhouse_connect.driver.exceptions import Error

        return Error
