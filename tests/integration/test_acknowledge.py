"""Messages of S3 events on a real queue: deleted when their objects are done, kept otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from include.events.acknowledge import Acknowledged, acknowledge
from include.events.notifications import S3Event, parse
from include.transform.ledger import Ledger
from operators.s3_events import events_done
from tests.support import unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

pytestmark = pytest.mark.timeout(60)

MAX_RECEIVES = 2


@dataclass
class Mailbox:
    """A bucket, its queue with dead letters, and what ClickHouse knows of its objects."""

    s3: S3Client
    sqs: SQSClient
    clickhouse: Any
    bucket: str
    url: str
    dead_letters: str

    def upload(self, key: str, content: bytes = b"x") -> str:
        """Put an object and return its ETag, once its event is in the queue."""
        before = self.waiting()
        etag = self.s3.put_object(Bucket=self.bucket, Key=key, Body=content)["ETag"].strip('"')
        until(lambda: self.waiting() > before, 10, f"event of {key}")
        return etag

    def waiting(self, queue: str = "") -> int:
        answer = self.sqs.get_queue_attributes(
            QueueUrl=queue or self.url, AttributeNames=["ApproximateNumberOfMessages"]
        )
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    def in_flight(self) -> int:
        answer = self.sqs.get_queue_attributes(
            QueueUrl=self.url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"]
        )
        return int(answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"])

    def loaded(self, key: str, etag: str) -> None:
        """Note that a recording is in the manifest."""
        self.clickhouse.insert(
            "storeside.speech",
            [["ais://speech", f"{self.bucket}/{key}", f"s3://{self.bucket}", key, etag, unique("run")]],
            column_names=["bucket", "object", "source_bucket", "source_object", "source_version", "run_id"],
            settings={"async_insert": 0},
        )

    def ledger_row(self, source: str, destination: str, key: str, result: str, status: str) -> None:
        self.clickhouse.insert(
            "storeside.objects",
            [[source, destination, key, "v", result, status, "broken" if status == "failed" else ""]],
            column_names=["source", "destination", "object", "version", "destination_object", "status", "reason"],
            settings={"async_insert": 0},
        )

    def acknowledge(self, sqs: Any = None) -> Acknowledged:
        def done(events: Sequence[S3Event]) -> list[bool]:
            return events_done(self.clickhouse, events)

        return acknowledge(sqs or self.sqs, self.url, done)

    def keys(self) -> list[str]:
        """Receive what is visible now, and return the keys."""
        found = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return [event.key for message in found.get("Messages", []) for event in parse(message["Body"])]


@pytest.fixture
def mailbox(s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any) -> Iterator[Mailbox]:
    Ledger(clickhouse).create()
    name = unique("events")
    s3_client.create_bucket(Bucket=name)

    def queue(name: str, **attributes: str) -> tuple[str, str]:
        url = sqs_client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
        found = sqs_client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return url, found["Attributes"]["QueueArn"]

    dead_letters, arn = queue(f"{name}-dlq")
    redrive = {"deadLetterTargetArn": arn, "maxReceiveCount": str(MAX_RECEIVES)}
    send = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage"}
    policy = {"Version": "2012-10-17", "Statement": {**send, "Resource": "*"}}
    url, arn = queue(name, RedrivePolicy=json.dumps(redrive), Policy=json.dumps(policy))
    s3_client.put_bucket_notification_configuration(
        Bucket=name,
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]
        },
    )
    sqs_client.purge_queue(QueueUrl=url)  # the test event, where the server sends one
    yield Mailbox(s3_client, sqs_client, clickhouse, name, url, dead_letters)
    sqs_client.delete_queue(QueueUrl=url)
    sqs_client.delete_queue(QueueUrl=dead_letters)


def test_messages_of_loaded_and_failed_objects_are_deleted_and_others_kept(mailbox: Mailbox) -> None:
    name = "wy\u0144ik/a b+c%20d.flac"  # URL-encoded in the event
    mailbox.loaded(name, mailbox.upload(name))
    mailbox.upload("copy-failed.flac")
    mailbox.ledger_row(f"s3://{mailbox.bucket}", "ais://recordings", "copy-failed.flac", "", "failed")
    mailbox.upload("transcode-failed.flac")
    results = f"ais://{mailbox.bucket}"
    mailbox.ledger_row(f"s3://{mailbox.bucket}", results, "transcode-failed.flac", "transcode-failed.flac", "done")
    mailbox.ledger_row(results, "ais://speech", "transcode-failed.flac", "transcode-failed.wav", "failed")
    mailbox.upload("unknown.flac")

    found = mailbox.acknowledge()
    assert (found.deleted, found.released, found.unreadable) == (3, 1, 0)
    assert mailbox.in_flight() == 0
    assert mailbox.keys() == ["unknown.flac"]  # visible at once


def test_more_messages_than_one_receive_gives(mailbox: Mailbox) -> None:
    for n in range(23):
        etag = mailbox.upload(f"{n:02}.flac")
        if n % 2:
            mailbox.loaded(f"{n:02}.flac", etag)
    found = mailbox.acknowledge()
    assert (found.deleted, found.released) == (11, 12)
    assert (mailbox.waiting(), mailbox.in_flight()) == (12, 0)


def test_an_object_that_was_overwritten_after_its_event(mailbox: Mailbox) -> None:
    old = mailbox.upload("late.flac", b"one")
    mailbox.loaded("late.flac", old)
    mailbox.upload("late.flac", b"two")
    found = mailbox.acknowledge()  # the first version is loaded, the second is not
    assert (found.deleted, found.released) == (1, 1)

    new = mailbox.upload("late.flac", b"three")
    mailbox.loaded("late.flac", new)
    found = mailbox.acknowledge()  # the version in between was loaded by nobody and never will be
    assert (found.deleted, found.released) == (2, 0)
    assert mailbox.waiting() == mailbox.in_flight() == 0


def test_removals_and_test_events_need_nothing(mailbox: Mailbox) -> None:
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
    mailbox.upload("gone.flac")
    mailbox.s3.delete_object(Bucket=mailbox.bucket, Key="gone.flac")
    until(lambda: mailbox.waiting() == 3, 10, "event of the removal")
    found = mailbox.acknowledge()
    # nobody loaded the object, so the message of its making stays
    assert (found.deleted, found.released) == (2, 1)
    assert mailbox.keys() == ["gone.flac"]


class _Impatient:
    """The queue with a visibility time-out that a test can wait for."""

    def __init__(self, sqs: SQSClient) -> None:
        self._sqs = sqs

    def receive_message(self, **arguments: Any) -> Any:
        return self._sqs.receive_message(**{**arguments, "VisibilityTimeout": 1})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sqs, name)


def test_a_poison_message_is_kept_and_ends_with_the_dead_letters(mailbox: Mailbox) -> None:
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody="not an event")
    mailbox.loaded("good.flac", mailbox.upload("good.flac"))
    impatient = _Impatient(mailbox.sqs)
    found = mailbox.acknowledge(impatient)
    assert (found.deleted, found.released, found.unreadable) == (1, 0, 1)
    assert (mailbox.waiting(), mailbox.in_flight()) == (0, 1)
    for _ in range(MAX_RECEIVES):
        until(lambda: mailbox.waiting() == 1 or mailbox.waiting(mailbox.dead_letters) == 1, 10, "redelivery")
        mailbox.acknowledge(impatient)
    assert mailbox.waiting(mailbox.dead_letters) == 1
    body = mailbox.sqs.receive_message(QueueUrl=mailbox.dead_letters)["Messages"][0]["Body"]
    assert body == "not an event"
