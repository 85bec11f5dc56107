"""Operators for S3 event notifications on SQS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from include import sql
from include.events.acknowledge import acknowledge
from include.events.notifications import S3Event
from operators.shared import clickhouse

if TYPE_CHECKING:
    from airflow.sdk import Context


class SqsAcknowledgeS3EventsOperator(BaseOperator):
    """Deletes the messages of recordings that are loaded, or that failed for good, and no others.

    It runs after the load, so a run that is killed anywhere leaves its messages in the queue. Messages of objects
    that arrived too late for this run stay and start another. Returns how many messages were deleted and kept.

    :param queue_name: name of the queue that gets the bucket's ObjectCreated events; no such queue is not an error
    """

    template_fields: Sequence[str] = ("queue_name",)
    ui_color = "#f7e1d7"

    def __init__(
        self,
        *,
        queue_name: str,
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id

    def execute(self, context: Context) -> dict[str, int]:
        """Receive, compare with the ledger, delete."""
        from airflow.providers.amazon.aws.hooks.sqs import SqsHook

        sqs: Any = SqsHook(aws_conn_id=self.aws_conn_id).get_conn()
        try:
            url = sqs.get_queue_url(QueueName=self.queue_name)["QueueUrl"]
        except sqs.exceptions.QueueDoesNotExist:
            self.log.info("there is no queue %s: nothing to acknowledge", self.queue_name)
            return {"deleted": 0, "released": 0, "unreadable": 0}
        client = clickhouse(self.clickhouse_conn_id)
        result = acknowledge(sqs, url, lambda events: events_done(client, events))
        self.log.info(
            "%d messages deleted, %d kept as their objects are not done, %d unreadable",
            result.deleted, result.released, result.unreadable,
        )  # fmt: skip
        return vars(result)


def events_done(clickhouse: Any, events: Sequence[S3Event]) -> list[bool]:
    """Tell for each event whether nothing is left to do: loaded, failed for good, or not a created object."""
    verdicts = [not event.created for event in events]
    for bucket in {event.bucket for event in events if event.created}:
        numbered = [(n, e) for n, e in enumerate(events) if e.created and e.bucket == bucket]
        rows = clickhouse.query(
            sql.query("events_done"),
            parameters={
                "bucket": f"s3://{bucket}",
                "numbers": [n for n, _ in numbered],
                "keys": [e.key for _, e in numbered],
                "etags": [e.etag for _, e in numbered],
                "times": [e.time.timestamp() for _, e in numbered],
            },
        ).result_rows
        for (n,) in rows:
            verdicts[n] = True
    return verdicts
