"""The command that makes the queue of a bucket's events, on the stack's S3 and SQS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.events.errors import EventInputError
from storeside.events.queue import Queue
from storeside.events.setup import RECEIVES, Setup
from storeside.stack.settings import SOURCES, Stack
from tests.support import unique, until
from tests.transfers import environment

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


@pytest.fixture
def bucket(s3_client: S3Client) -> Iterator[str]:
    name = unique("arrivals")
    s3_client.create_bucket(Bucket=name)
    yield name
    s3_client.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={})


def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**environment(stack), "AWS_ENDPOINT_URL": stack.url("s3"), "PYTHONPATH": str(SOURCES)}
    return subprocess.run(
        [sys.executable, "-m", "storeside", "setup-queue", *arguments],
        env=variables, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def everything(s3: S3Client, sqs: SQSClient, bucket: str, queue: str) -> Any:
    """Return queues, their attributes and the bucket's notifications."""
    urls = sqs.list_queues(QueueNamePrefix=queue).get("QueueUrls", [])
    found = s3.get_bucket_notification_configuration(Bucket=bucket)
    attributes = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"] for url in urls]
    return urls, attributes, {name: value for name, value in found.items() if name != "ResponseMetadata"}


def test_it_prints_and_then_makes_what_is_missing(
    stack: Stack, s3_client: S3Client, sqs_client: SQSClient, bucket: str
) -> None:
    queue = unique("queue")
    before = everything(s3_client, sqs_client, bucket, queue)
    printed = run(stack, f"s3://{bucket}/in/", queue)
    assert (printed.returncode, printed.stdout.count("\n")) == (1, 6), printed.stderr
    assert printed.stdout.endswith("nothing is changed: repeat the command with --yes\n")
    assert everything(s3_client, sqs_client, bucket, queue) == before
    done = run(stack, f"s3://{bucket}/in/", queue, "--yes")
    assert done.returncode == 0, done.stderr
    found = Queue.find(sqs_client, queue)
    assert found.redrive_policy == (f"{queue}-dlq", RECEIVES)
    after = everything(s3_client, sqs_client, bucket, queue)
    again = run(stack, f"s3://{bucket}/in/", queue, "--yes")
    assert (again.returncode, again.stdout) == (
        0,
        f"nothing to do: {queue} receives the events of s3://{bucket}/in/\n",
    )
    assert everything(s3_client, sqs_client, bucket, queue) == after
    for key in ("out/a.csv", "in/b.csv"):
        s3_client.put_object(Bucket=bucket, Key=key, Body=b"n\n1\n")
    bodies: list[str] = []

    def arrived() -> bool:
        bodies.extend(message.body for message in found.receive(60, 1))
        return any("in/b.csv" in body for body in bodies)

    until(arrived, 30, "event of the object below the prefix")
    assert not any("out/a.csv" in body for body in bodies)


def test_what_exists_is_kept(s3_client: S3Client, sqs_client: SQSClient, bucket: str) -> None:
    """Another notification, a dead-letter queue of another name, and other statements of the policy."""
    queue, other = unique("queue"), unique("other")
    for name in (queue, other, f"{other}-letters"):
        sqs_client.create_queue(QueueName=name)

    def arn(name: str) -> str:
        url = Queue.find(sqs_client, name).url
        return sqs_client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]

    anyone = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn(other)}
    sqs_client.set_queue_attributes(
        QueueUrl=Queue.find(sqs_client, other).url,
        Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": anyone})},
    )
    notification: Any = {
        "QueueArn": arn(other), "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "other/"}]}},
    }  # fmt: skip
    s3_client.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [notification]}
    )
    own = {"Sid": "own", "Effect": "Allow", "Principal": "*", "Action": "sqs:ReceiveMessage", "Resource": arn(queue)}
    redrive = json.dumps({"deadLetterTargetArn": arn(f"{other}-letters"), "maxReceiveCount": 20})
    sqs_client.set_queue_attributes(
        QueueUrl=Queue.find(sqs_client, queue).url,
        Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": own}), "RedrivePolicy": redrive},
    )
    setup = Setup(s3_client, sqs_client, f"s3://{bucket}/in/", queue)
    for step in setup.steps():
        step.run()
    assert setup.steps() == []
    assert Queue.find(sqs_client, queue).redrive_policy == (f"{other}-letters", 20)
    attributes = setup._attributes(queue)
    statements = json.loads(attributes["Policy"])["Statement"]
    assert statements == [own, setup.statement(attributes["QueueArn"])]
    found = s3_client.get_bucket_notification_configuration(Bucket=bucket)["QueueConfigurations"]
    assert [one["QueueArn"] for one in found] == [notification["QueueArn"], attributes["QueueArn"]]
    for prefix in ("", "other/", "other/a/"):
        with pytest.raises(EventInputError, match="S3 allows one destination for each event"):
            Setup(s3_client, sqs_client, f"s3://{bucket}/{prefix}", queue).steps()


@pytest.mark.parametrize(
    ("place", "queue", "says"),
    [
        ("ais://results", "q", "only S3|S3 sends events"),
        ("s3://trips/2026/*.csv", "q", "write s3://bucket/prefix"),
        ("s3://trips", "q.fifo", "standard queues only"),
    ],
)
def test_what_s3_does_not_send(place: str, queue: str, says: str) -> None:
    with pytest.raises(EventInputError, match=says):
        Setup(None, None, place, queue)  # type: ignore[arg-type]
