"""Shared by tests of S3 events: a bucket whose events arrive in a queue with dead letters, and a table."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from storeside.events.dead_letters import DeadLetters
from storeside.events.drained import Drained
from storeside.events.intake import Limits
from storeside.events.load import EventLoad
from storeside.events.queue import Queue
from storeside.transfer.request.source import Source
from tests.support import kill, until
from tests.transfers import Loading, request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

EVENTS = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")


class Beats:
    """A client of SQS that counts how often each message was extended."""

    def __init__(self, sqs: Any) -> None:
        self.sqs = sqs
        self.extended: Counter[str] = Counter()

    def change_message_visibility_batch(self, **arguments: Any) -> Any:
        self.extended.update(entry["ReceiptHandle"] for entry in arguments["Entries"])
        return self.sqs.change_message_visibility_batch(**arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sqs, name)

    def outlive(self, more: int = 4) -> None:
        """Wait until a message was held for longer than a lease, which is extended three times in its length."""
        before = self.extended.copy()
        until(lambda: max((self.extended - before).values(), default=0) >= more, 120, "extensions of the lease")


class Mailbox(Loading):
    """One test's own bucket, queue and table."""

    def __init__(
        self, stack: Any, clickhouse: Any, s3: S3Client, sqs: SQSClient, *, receives: int = 50, fifo: bool = False,
        notified: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(stack, clickhouse, s3)
        self.sqs = sqs
        self.receives = receives
        self.notified = notified  # requires S3 and the queue on the same server
        self.name = f"{self.bucket}.fifo" if fifo else self.bucket
        self.make_queue()

    def make_queue(self) -> None:
        """Create the queue and its dead letters, and send the bucket's events there."""
        more = {"FifoQueue": "true"} if self.name.endswith(".fifo") else {}
        dead_name = f"dlq-{self.name}"
        _, dead = self._queue(dead_name, more)
        redrive = {"deadLetterTargetArn": dead, "maxReceiveCount": str(self.receives)}
        send = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage"}
        policy = {"Version": "2012-10-17", "Statement": {**send, "Resource": "*"}}
        self.url, arn = self._queue(
            self.name, {**more, "RedrivePolicy": json.dumps(redrive), "Policy": json.dumps(policy)}
        )
        if self.notified and not more:
            self.s3.put_bucket_notification_configuration(
                Bucket=self.bucket,
                NotificationConfiguration={"QueueConfigurations": [{"QueueArn": arn, "Events": list(EVENTS)}]},
            )
            self.sqs.purge_queue(QueueUrl=self.url)  # the test event, if the server sends one

    def silence(self) -> None:
        """Stop the bucket's events, and delete those that it has sent."""
        self.s3.put_bucket_notification_configuration(Bucket=self.bucket, NotificationConfiguration={})
        self.sqs.purge_queue(QueueUrl=self.url)

    def _queue(self, name: str, attributes: dict[str, str]) -> tuple[str, str]:
        url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
        return url, self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]

    @property
    def queue(self) -> Queue:
        return Queue(self.sqs, self.url)

    def send(self, *records: dict[str, Any], group: str = "") -> None:
        """Send a message with these records, whatever the bucket contains."""
        fifo: Any = {"MessageGroupId": group, "MessageDeduplicationId": uuid.uuid4().hex} if group else {}
        self.sqs.send_message(QueueUrl=self.url, MessageBody=json.dumps({"Records": records}), **fifo)

    def record(self, key: str, event: str = "ObjectCreated:Put", etag: str = "", **more: Any) -> dict[str, Any]:
        """Return a record as S3 writes it."""
        from urllib.parse import quote_plus

        item = {"key": quote_plus(key, safe="/"), "size": 9, "eTag": etag or uuid.uuid4().hex, **more}
        return {
            "eventVersion": "2.1",
            "eventName": event,
            "eventTime": "2026-01-01T00:00:00.000Z",
            "s3": {"bucket": {"name": self.bucket}, "object": item},
        }

    def arrive(self, count: int) -> None:
        """Wait until `count` messages are in the queue."""
        until(lambda: self.depth()[0] >= count, 20, f"{count} messages in the queue")

    def depth(self) -> tuple[int, int]:
        """Return the number of messages that are visible, and of those in flight."""
        found = self.queue.depth()
        return found.visible, found.in_flight

    def events_load(self, sqs: Any = None, limits: dict[str, Any] | None = None, **request: Any) -> EventLoad:
        queue = Queue(sqs or self.sqs, self.url)
        keys = request.pop("keys", "")
        s3 = request.pop("s3", None) or self.s3
        after = request.pop("modified_after", "")
        source = Source(self.bucket, keys, collection="storeside_s3", modified_after=after)
        request = {"format": "jsonl", **request}
        run_id = request.pop("run_id", None) or f"run-{uuid.uuid4().hex[:8]}"
        return EventLoad(
            queue, request_of(source, self.table, **request), self.client(), s3, run_id, Limits(**limits or {})
        )

    def drain(self, sqs: Any = None, limits: dict[str, Any] | None = None, **request: Any) -> Drained:
        return self.events_load(sqs, limits, **request).run()

    def kill_server(self) -> None:
        """Kill S3 and SQS, which lose the changes of the last second."""
        kill(self.stack, "s3", lambda: self.depth() is not None)

    def dead(self) -> dict[str, str]:
        """Return the reasons of the dead letters by their keys, or by their bodies if they hold no events."""
        found = DeadLetters(self.queue).listed()
        return {",".join(event.key for event in letter.events) or letter.body: letter.reason for letter in found}

    def events(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return states and reasons of events by key and event."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for key, event, state, reason in self.query(
            "SELECT key, event, toString(state), reason FROM storeside.events FINAL WHERE queue = {queue:String}"
            " ORDER BY ALL",
            queue=self.url,
        ):
            found.setdefault((key, event), []).append((state, reason))
        return found
