"""Checks S3 and SQS: listing, reading and writing a bucket, and the queue that receives its events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from storeside.aistore.names import PROBES
from storeside.doctor.findings import Finding, System
from storeside.events.errors import NotificationError
from storeside.events.notifications import parse

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

# Maximum number of waiting messages before a probe's event; each check counts as a receive of those messages.
MOST_WAITING = 20

_s3, _sqs = System("S3"), System("SQS")


@dataclass
class Probe:
    """An object of the doctor in a bucket, which exists while the checks run."""

    bucket: str
    key: str
    content: bytes


def connect(make: Callable[[], Any], bucket: str) -> tuple[Any, Finding]:
    """List the bucket; return the client, or None, and the finding."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = make()
        client.list_objects_v2(Bucket=bucket, MaxKeys=1)
    except (BotoCoreError, ClientError, ValueError) as e:
        return None, _s3.failed("list", e, _remedy(e, "s3:ListBucket", bucket))
    return client, _s3.ok("list", f"{bucket} at {client.meta.endpoint_url}")


@contextmanager
def probe(client: S3Client, bucket: str, findings: list[Finding]) -> Iterator[Probe | None]:
    """Put an object, read it back, and delete it at the end; yield None when it cannot be put."""
    name = uuid.uuid4().hex
    made = Probe(bucket, f"{PROBES}{name}", name.encode())
    if not _tried(
        "put", bucket, findings, partial(client.put_object, Bucket=bucket, Key=made.key, Body=made.content)
    ):
        yield None
        return
    try:
        _tried("get", bucket, findings, partial(client.get_object, Bucket=bucket, Key=made.key))
        yield made
    finally:
        _tried("delete", bucket, findings, partial(client.delete_object, Bucket=bucket, Key=made.key))


def _tried(check: str, bucket: str, findings: list[Finding], do: Callable[[], Any]) -> bool:
    """Run an action with the probe and tell whether it worked."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        do()
    except (BotoCoreError, ClientError) as e:
        findings.append(_s3.failed(check, e, _remedy(e, f"s3:{check.capitalize()}Object", bucket)))
        return False
    findings.append(_s3.ok(check, "the probe"))
    return True


def _remedy(error: Exception, action: str, bucket: str) -> str:
    code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
    if code in ("NoSuchBucket", "404"):
        return "create the bucket, or name another one"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId", "ExpiredToken"):
        return "correct login (access key) and password (secret key) of the AWS connection"
    if code:
        on = f"arn:aws:s3:::{bucket}" + ("" if action == "s3:ListBucket" else "/*")
        return f"allow {action} on {on} to the AWS connection's keys or role"
    if type(error).__name__ == "NoCredentialsError":
        return "give the AWS connection login and password, or this machine a role"
    return "correct endpoint_url and region_name in the extras of the AWS connection, and let this machine reach them"


@dataclass(frozen=True)
class Queue:
    """A queue that answers, and the number of messages that wait in it."""

    client: SQSClient
    url: str
    waiting: int


def queue(make: Callable[[], Any], name: str, findings: list[Finding]) -> Queue | None:
    """Check a queue's depth and its policy for messages that always fail; None when the queue does not answer."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = make()
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    except (BotoCoreError, ClientError, ValueError) as e:
        findings.append(_sqs.failed("attributes", e, _queue_remedy(e, name)))
        return None
    waiting = int(attributes["ApproximateNumberOfMessages"])
    findings.append(_sqs.ok("attributes", f"{name}: {waiting} messages"))
    redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
    if redrive.get("deadLetterTargetArn"):
        target = redrive["deadLetterTargetArn"].rpartition(":")[2]
        findings.append(_sqs.ok("redrive policy", f"to {target} after {redrive.get('maxReceiveCount')} receives"))
        findings.append(_dead_letters(client, target))
    else:
        remedy = "set a RedrivePolicy to a dead-letter queue: a message that cannot be read comes back for ever"
        findings.append(_sqs.failed("redrive policy", f"{name} has none", remedy))
    return Queue(client, url, waiting)


def _dead_letters(client: SQSClient, name: str) -> Finding:
    """Check the dead-letter queue: tasks record its depth with that of the queue, and send messages to it."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    except (BotoCoreError, ClientError) as e:
        return _sqs.failed("dead letters", e, _queue_remedy(e, name))
    return _sqs.ok("dead letters", f"{name}: {attributes['Attributes']['ApproximateNumberOfMessages']} messages")


def _queue_remedy(error: Exception, name: str) -> str:
    code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
    if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
        return f"create the queue {name}, or name another one"
    if code:
        actions = "sqs:GetQueueUrl, sqs:GetQueueAttributes, sqs:ReceiveMessage, sqs:DeleteMessage, sqs:SendMessage"
        return f"allow {actions} and sqs:ChangeMessageVisibility on it to the AWS connection's keys or role"
    return "correct endpoint_url and region_name in the extras of the AWS connection, and let this machine reach them"


def receive(found: Queue, sent: Probe, seconds: float, recorded: Callable[[Probe], bool]) -> Finding:
    """Wait for the event of the probe and delete its message; other messages are released at once.

    A watcher of the queue, or a run that empties it, may be faster: `recorded` tells whether one recorded the event.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    check = "event of the probe"
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            answer = found.client.receive_message(
                QueueUrl=found.url, MaxNumberOfMessages=10, VisibilityTimeout=30, WaitTimeSeconds=1
            )
            if _take(found, sent, answer.get("Messages", [])):
                return _sqs.ok(check, "it arrived, and its message is deleted")
            if recorded(sent):
                return _sqs.ok(check, "it arrived, and whoever watches the queue has taken it")
    except (BotoCoreError, ClientError) as e:
        return _sqs.failed(check, e, _queue_remedy(e, found.url.rpartition("/")[2]))
    return _sqs.failed(
        check,
        f"none within {seconds:g} s",
        f"send the s3:ObjectCreated:* events of {sent.bucket} to the queue, and let s3.amazonaws.com send to it",
    )


def _take(found: Queue, sent: Probe, messages: list[Any]) -> bool:
    """Delete the probe's message and release the others; tell whether it was among them."""
    taken = False
    for message in messages:
        handle = {"QueueUrl": found.url, "ReceiptHandle": message["ReceiptHandle"]}
        if _is_of(message["Body"], sent):
            found.client.delete_message(**handle)
            taken = True
        else:
            found.client.change_message_visibility(**handle, VisibilityTimeout=0)
    return taken


def _is_of(body: str, sent: Probe) -> bool:
    try:
        events = parse(body)
    except NotificationError:
        return False
    return bool(events) and all(event.key == sent.key for event in events)


def not_received(found: Queue) -> Finding:
    """Return why nothing was put: the probe's event would wait behind other events."""
    return _sqs.skipped("event of the probe", f"{found.waiting} messages wait, so nothing was put to send another")
