"""The operator that settles a transform of a bucket with the queue of the bucket's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.operators.errors import airflow_errors
from storeside.operators.literals import check_literals, flag
from storeside.operators.s3_events import QueueOperator
from storeside.operators.shared import as_bool, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context


class SqsSettleTransformEventsOperator(QueueOperator):
    """Settles with the queue at the end of a run that transforms a bucket; a teardown of `SqsLeaseS3EventsOperator`.

    Deletes messages of objects whose results are at the destination, and sends messages of objects that failed for
    good to the dead-letter queue with their reasons. All other messages are released. An object that this run should
    have transformed counts as failed once; an object that the run did not reach does not. Returns how many messages
    were deleted, released and moved to the dead-letter queue.

    :param source: the transform's source bucket, such as ``s3://texts``
    :param destination: the transform's destination
    :param prefix: the transform's prefix
    :param complete: whether the transform reached its end; if not, missing objects do not count as failed
    """

    template_fields = (*QueueOperator.template_fields, "source", "destination", "prefix", "complete")

    def __init__(
        self, *, source: str, destination: str, prefix: str = "", complete: bool | str = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.prefix = prefix
        self.complete = complete
        check_literals(self, source=Bucket.parse, destination=Bucket.parse, complete=flag("complete"))

    def execute(self, context: Context) -> dict[str, int]:
        """Compare with the ledger, record, delete."""
        from storeside.events.transforms import settle_transform

        with airflow_errors():
            complete = as_bool(self.complete, "complete")
            source, destination = str(Bucket.parse(self.source)), str(Bucket.parse(self.destination))
        return self.settled(
            lambda queue, client, s3: settle_transform(
                queue, client, s3, run_key(context), source, destination, self.prefix, complete=complete
            )
        )
