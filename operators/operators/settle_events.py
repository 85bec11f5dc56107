"""The operator that settles a run with the queue of its S3 events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_event_source, check_literals, flag, is_literal, literal_errors
from storeside.operators.bases.queue import QueueArguments, QueueOperator
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.shared import as_bool, as_mapping, run_key
from storeside.transfer.request.request import require_table

if TYPE_CHECKING:
    from airflow.sdk import Context


class SqsSettleS3EventsOperator(QueueOperator):
    """Settles the messages that `SqsLeaseS3EventsOperator` or `SqsS3EventsSensor` leased; the teardown of that task.

    The task deletes messages of objects that are done, and sends messages of objects that failed for good to the
    dead-letter queue with their reasons. It releases all other messages. An object that this run should have
    processed counts as failed once; an object that the run did not reach does not. Returns the numbers of messages
    deleted, released and sent to the dead-letter queue.

    Storeside's ledgers show which objects are done if the run's tasks are Storeside's operators. Set `destination`,
    `table` or both. If other tasks process the objects, set neither, but `complete`: in a complete run, every object
    is done except those in `failed`.

    :param source: bucket of this run's objects, such as ``s3://texts``
    :param prefix: prefix of these objects
    :param destination: the bucket into which the run transforms or copies the objects
    :param facts: the ``ais://`` bucket into which the run transforms the results in `destination` once more, and from
        which it loads the table, such as facts of the members of shards
    :param table: the ``database.table`` into which the run loads the objects, or with `destination` their results;
        the destination is then an ``ais://`` bucket
    :param failed: reasons of objects that failed for good, by key, if tasks without a ledger process them; a template
        may render a JSON object
    :param complete: whether the tasks before it reached their end, such as
        ``"{{ ti.xcom_pull('load') is not none }}"``; if not, missing objects do not count as failed. None means True
        with a `destination` or `table`, and is refused without, because a teardown also runs after failed tasks
    """

    settles = True  # the messages that an operator before it leased
    template_fields = (
        *QueueOperator.template_fields,
        "source",
        "prefix",
        "destination",
        "facts",
        "table",
        "failed",
        "complete",
    )

    def __init__(
        self,
        *,
        source: str,
        prefix: str = "",
        destination: str = "",
        facts: str = "",
        table: str = "",
        failed: Mapping[str, str] | str | None = None,
        complete: bool | str | None = None,
        **kwargs: Unpack[QueueArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.prefix = prefix
        self.destination = destination
        self.facts = facts
        self.table = table
        self.failed = failed
        self.complete = complete
        check_literals(
            self, source=check_event_source, destination=Bucket.parse, facts=Bucket.parse, complete=flag("complete"),
            failed=lambda value: as_mapping(value, "failed"),
        )  # fmt: skip
        if is_literal([destination, facts, table]):
            with literal_errors(self):
                self._check()

    def execute(self, context: Context) -> dict[str, int]:
        """Compare the messages with the ledger or the reports, record their outcomes, and delete or release them."""
        from storeside.events.processed import settle_processed, settle_reported

        run = run_key(context)
        with airflow_errors():
            self._check()
            complete = self.complete is None or as_bool(self.complete, "complete")
            source = str(Bucket.parse(self.source))
            destination, facts = (str(Bucket.parse(uri)) if uri else "" for uri in (self.destination, self.facts))
            failed = self.failures(complete)
        if destination or self.table:
            return self.settled(
                lambda queue, client, s3: settle_processed(
                    queue, client, s3, run, source, self.prefix,
                    destination=destination, facts=facts, table=self.table, complete=complete,
                )
            )  # fmt: skip
        return self.settled(
            lambda queue, client, _: settle_reported(
                queue, client, run, source, self.prefix, failed=failed, complete=complete
            )
        )

    def failures(self, complete: bool) -> dict[str, str]:
        """Return the reasons of failed objects; a run that is not complete may have none (``null``).

        Raises OperatorInputError for anything but a mapping of strings.
        """
        if not self.failed or (not complete and self.failed == "null"):
            return {}
        return as_mapping(self.failed, "failed")

    def _check(self) -> None:
        """Raise OperatorInputError for missing arguments, and for arguments that contradict each other."""
        if self.complete is None and not (self.destination or self.table):
            raise OperatorInputError(
                "set complete: without destination or table, no ledger shows which objects are done, and a complete"
                " run deletes the messages of all objects that are not in failed. Example:"
                " \"{{ ti.xcom_pull('work') is not none }}\""
            )
        if self.table:
            require_table(self.table)
        if self.failed and (self.destination or self.table):
            raise OperatorInputError(
                "omit failed: with destination or table, the ledger already has the reasons of failures"
            )
        if self.facts and not (self.destination and self.table):
            raise OperatorInputError("facts: set destination and table, too, or omit it")
        if self.table and self.destination and not self.destination.startswith("ais://"):
            raise OperatorInputError(
                f"destination {self.destination!r}: only loads of results in an ais:// bucket can be settled"
            )
