"""Operators for S3 event notifications on SQS, which delete a message only after its objects are processed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack, cast

from airflow.sdk import BaseHook
from airflow.sdk.observability import stats

from storeside.operators.arguments import check_instant, check_literals
from storeside.operators.bases.deprecated import without_effect
from storeside.operators.bases.load import LoadArguments, LoadOperator
from storeside.operators.bases.queue import batches_of, queue_of
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.transfer import (
    clients,
    ledger_client,
    ledger_connection,
    other_servers,
)
from storeside.operators.links import QueuePageLink
from storeside.operators.outcome import fail_for_messages, log_drained, with_short_verdict
from storeside.operators.shared import as_number, ledger, plain, run_key
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.options import Expectations

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.transfer.request.options import OnFailedExpectations
    from storeside.transfer.request.template import Template


class EventLoadArguments(LoadArguments, total=False):
    """Arguments that `S3EventsToClickHouseOperator` shares with `S3ToClickHouseOperator`."""

    retry_failed: bool | str
    """deprecated: has no effect"""
    overlap_seconds: float | None
    """deprecated: has no effect"""


class S3EventsToClickHouseOperator(LoadOperator):
    """Drains a queue of S3 events into a ClickHouse table; each object version is loaded exactly once.

    The task leases messages: they stay invisible while it loads their objects, and it deletes them afterwards. It
    reads the current state of each object from the bucket, so duplicate, late and unordered events do no harm. It
    sends messages whose objects cannot be loaded, and messages that are not S3 events, to the queue's dead-letter
    queue with the reason. ``storeside.events`` records the outcome of each event. A run that an `S3EventsTrigger`
    started processes the trigger's batch first. Returns the engine's `Drained` as a dictionary.

    The arguments are those of `S3ToClickHouseOperator` without `all_or_nothing`, `retry_failed`, `overlap_seconds`,
    `source`, `aistore_conn_id`, `inventory` and `snapshot`; `keys` selects events by their object's key. Further
    arguments:

    :param bucket: bucket of the events, without ``s3://``
    :param sqs_queue: name or URL of an SQS queue with a dead-letter queue
    :param max_messages: maximum number of messages per run; the next run processes the rest
    :param max_bytes: maximum bytes of new objects in the messages of one run; the next run processes the rest. 0
        means no limit
    :param max_seconds: seconds after which the run receives no more messages
    :param idle_seconds: seconds to wait for messages when the queue is empty; 0 ends the task at once. With more
        than 0 the run follows the queue: an `AssetWatcher` of the queue receives nothing meanwhile
    :param batch_messages: number of messages that are leased and loaded together
    :param lease_seconds: seconds that messages stay invisible after their task or triggerer was killed
    :param on_failed_objects: if messages went to the dead-letter queue, or S3 refused what `after_load` asks for:
        ``fail`` the task, or ``report`` and succeed
    :param modified_after: load only objects that were last modified at this instant or later, such as
        ``2026-01-01T00:00:00Z``; other events are skipped, and their messages deleted
    :param after_load: `AfterLoad`: delete, move or tag objects after their load; without it they stay as they are
    :param suite: Great Expectations suite that checks the rows of each object before they are published, as for
        `S3ToClickHouseOperator`. The task does not defer
    :param on_failed_expectations: if rows of an object break expectations of severity critical: ``fail`` the object,
        so that its messages go to the dead-letter queue, or ``quarantine`` these rows in ``<table>_quarantine``
    """

    template_fields = (
        *LoadOperator.template_fields,
        "sqs_queue",
        "max_messages",
        "max_bytes",
        "max_seconds",
        "idle_seconds",
        "batch_messages",
        "after_load",
        "modified_after",
        "suite",
        "on_failed_expectations",
    )
    ui_color = "#f7e1d7"
    operator_extra_links = (*LoadOperator.operator_extra_links, QueuePageLink())

    def __init__(
        self,
        *,
        bucket: str,
        sqs_queue: str,
        max_messages: int | str = 100_000,
        max_bytes: int | str = 0,
        max_seconds: float | str = 600,
        idle_seconds: float | str = 0,
        batch_messages: int | str = 2500,
        lease_seconds: int = 120,
        after_load: AfterLoad | None = None,
        modified_after: str = "",
        suite: str = "",
        on_failed_expectations: OnFailedExpectations | Template = "fail",
        **kwargs: Unpack[EventLoadArguments],
    ) -> None:
        without_effect(type(self), cast("dict[str, object]", kwargs), "retry_failed", "overlap_seconds")
        super().__init__(bucket=bucket, **kwargs)
        self.sqs_queue = sqs_queue
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self.idle_seconds = idle_seconds
        self.batch_messages = batch_messages
        self.lease_seconds = lease_seconds
        self.after_load = after_load or AfterLoad()
        self.modified_after = modified_after
        self.suite = suite
        self.on_failed_expectations = on_failed_expectations
        check_literals(
            self,
            after_load=lambda options: options.check(),
            modified_after=check_instant,
            suite=lambda name: Expectations(name).check(),
            on_failed_expectations=lambda policy: Expectations(on_failed=policy).check(),
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Defer while ClickHouse pulls, or push from the worker."""
        from storeside.events.intake import Limits
        from storeside.events.load import EventLoad

        aws = BaseHook.get_connection(self.aws_conn_id)
        clickhouse = BaseHook.get_connection(self.clickhouse_conn_id)
        with airflow_errors():
            request = self.request(
                aws, {"modified_after": self.modified_after}, after_load=self.after_load,
                expectations=Expectations(self.suite, self.on_failed_expectations),
            )  # fmt: skip
            limits = Limits(
                as_number(self.max_messages, "max_messages", int),
                as_number(self.max_seconds, "max_seconds", float),
                as_number(self.idle_seconds, "idle_seconds", float),
                as_number(self.batch_messages, "batch_messages", int),
                self.batch_bytes,
                self.lease_seconds,
                bytes=as_number(self.max_bytes, "max_bytes", int),
            )
            queue = queue_of(aws, self.sqs_queue)
            load = EventLoad(
                queue, request, *clients(aws, clickhouse), run_key(context), limits,
                ledger_client(ledger_connection(clickhouse), clickhouse), other_servers(clickhouse),
            )  # fmt: skip
            batches = batches_of(context, queue)
            self._record_running(context, "events", time.time(), self.table)
            # A triggerer has neither the suite's file nor its module.
            if self.deferrable and not self.suite and load.pulls:
                from storeside.operators.triggers.s3_events import S3EventsToClickHouseTrigger

                self.defer(
                    trigger=S3EventsToClickHouseTrigger(
                        queue.url, request.to_dict(), asdict(limits), batches, run_key(context), self.aws_conn_id,
                        self.clickhouse_conn_id,
                    ),
                    method_name="finish",
                )  # fmt: skip
            self._transfer = load
            return self._report(context, asdict(load.run(batches)))

    def _report(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        detail = {name: value for name, value in report.items() if name != "verdict" or value}
        self.record_end(
            context,
            tables,
            {
                "kind": "events",
                "source": f"s3://{self.bucket}/{self.keys}",
                "destination": f"clickhouse://{self.table}",
                "state": "partial" if report["dead"] else "done",
                "listed": report["events"],
                "skipped": report["skipped"],
                "done": report["loaded"],
                "failed": report["dead"],
                "bytes_in": report["bytes"],
                "seconds": report["seconds"],
                "detail": json.dumps({**detail, "queue": self.sqs_queue}),
            },
            rows=report["rows"],
            rejected=report["rejected"],
        )
        queue = self.sqs_queue.rpartition("/")[2]
        stats.gauge("storeside.queue.oldest_seconds", report["oldest_seconds"], tags={"queue": queue})
        log_drained(self.log, report)
        if self.on_failed_objects == "fail":
            fail_for_messages(report, self.sqs_queue, self.bucket)
        if not report["messages"] and not report["handled"]:
            self.end_without(f"the queue {self.sqs_queue} has no messages")
        return dict(plain(with_short_verdict(report)))
