"""Base class of operators for one queue of SQS, and parts that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Required

from airflow.sdk import BaseHook

from storeside.amounts import counted, others
from storeside.operators.arguments import between
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.transfer import clickhouse_client, ledger_connection, s3_client_of, sqs_client
from storeside.operators.links import QueuePageLink
from storeside.operators.restrictions import FormOperator

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context
    from clickhouse_connect.driver.httpclient import HttpClient

    from storeside.events.queue import Queue
    from storeside.events.settle import Settled


def queue_of(aws: Connection, name: str) -> Queue:
    """Return the queue of this name or URL. Raises NoQueueError."""
    from storeside.events.queue import Queue

    return Queue.find(sqs_client(aws), name)


def batches_of(context: Context, queue: Queue) -> list[str]:
    """Return the names of this queue's batches in the asset events that started the run."""
    found: dict[str, None] = {}
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            payload = event.extra.get("payload", {})
            if payload.get("queue") == queue.name and payload.get("batch"):
                found[payload["batch"]] = None
    return list(found)


# The limit of SQS is twelve hours; a lease needs time for its extensions.
lease_time = between("lease_seconds", 3, 43_200)


class QueueArguments(TaskArguments, total=False):
    """Arguments of the operators for one queue."""

    sqs_queue: Required[str]
    """name or URL of an SQS queue with a dead-letter queue"""
    aws_conn_id: str
    """connection to S3 and SQS"""
    clickhouse_conn_id: str
    """connection to ClickHouse"""


class QueueOperator(FormOperator):
    """Base class of the operators for one queue."""

    template_fields: Sequence[str] = ("sqs_queue",)
    ui_color = "#f7e1d7"
    operator_extra_links = (QueuePageLink(),)

    def __init__(
        self,
        *,
        sqs_queue: str,
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sqs_queue = sqs_queue
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id

    def conn(self) -> tuple[Queue, HttpClient]:
        """Return the queue and a ClickHouse client for the ledger."""
        client = clickhouse_client(ledger_connection(BaseHook.get_connection(self.clickhouse_conn_id)))
        return queue_of(BaseHook.get_connection(self.aws_conn_id), self.sqs_queue), client

    def conn_if_any(self) -> tuple[Queue, HttpClient] | None:
        """Return the result of `conn`, or None if the queue does not exist: the run then has no events."""
        from storeside.events.errors import NoQueueError

        try:
            return self.conn()
        except NoQueueError as e:
            self.log.warning("%s: this run has no events", e)
            return None

    def settled(self, settle: Callable[[Queue, HttpClient, Any], Settled]) -> dict[str, int]:
        """Call `settle` with the queue and the clients of ledger and S3; log and return its numbers of messages."""
        with airflow_errors():
            if (found := self.conn_if_any()) is None:
                return {"deleted": 0, "released": 0, "dead": 0}
            settled = settle(*found, s3_client_of(self.aws_conn_id))
        self.log.info(
            "%s deleted%s", counted(settled.deleted, "message"),
            others((settled.released, "released"), (settled.dead, "sent to the dead-letter queue")),
        )  # fmt: skip
        return vars(settled)
