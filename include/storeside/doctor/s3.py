"""Checks S3 and SQS: listing, reading and writing a bucket, and the queue that receives its events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING, Any

from storeside.aistore.names import PROBES
from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import answered, reach
from storeside.doctor.report import Report
from storeside.events.errors import NotificationError
from storeside.events.notifications import parse

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

# Maximum number of messages that may wait before the probe's event: the check costs each of them one receive.
MOST_WAITING = 20

EVENT = "event of the probe"

_s3, _sqs = System("S3"), System("SQS")
_KEYS = "correct login (access key) and password (secret key) of the AWS connection"
# Remedies by error code. Any other code that is not a denial is a fault of the server.
_BY_CODE = {
    "AuthorizationHeaderMalformed": "correct region_name in the extras of the AWS connection",
    "PermanentRedirect": "correct region_name and endpoint_url in the extras of the AWS connection",
    "301": "correct region_name and endpoint_url in the extras of the AWS connection",
    "RequestTimeTooSkewed": "set this machine's clock",
    "ExpiredToken": "renew aws_session_token in the extras of the AWS connection, and its keys",
    "InvalidToken": "renew aws_session_token in the extras of the AWS connection, and its keys",
} | dict.fromkeys(
    ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId", "UnrecognizedClientException",
     "IncompleteSignature", "InvalidSignatureException"),
    _KEYS,
)  # fmt: skip


@dataclass
class Probe:
    """A test object in a bucket, which exists only while the checks run."""

    bucket: str
    key: str
    content: bytes


def connect(make: Callable[[], Any], bucket: str) -> tuple[Any, Finding]:
    """List the bucket; return the client (None after a failure) and the finding."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = make()
        client.list_objects_v2(Bucket=bucket, MaxKeys=1)
    except (BotoCoreError, ClientError, ValueError) as e:
        return None, _s3.failed("list", e, _remedy(e, "s3:ListBucket", bucket))
    return client, _s3.ok("list", f"{bucket} at {client.meta.endpoint_url}")


@contextmanager
def probe(client: S3Client, bucket: str, report: Report) -> Iterator[Probe | None]:
    """Put an object, read it back, and delete it at the end; yield None if the object cannot be put.

    Unless S3 refuses to put it, the object is deleted in any case: a check that exceeds its time may have put it.
    """
    from botocore.exceptions import ClientError

    name, refused = uuid.uuid4().hex, Event()
    made = Probe(bucket, f"{PROBES}{name}", name.encode())

    def put() -> None:
        try:
            client.put_object(Bucket=bucket, Key=made.key, Body=made.content)
        except ClientError:
            refused.set()
            raise

    try:
        done = _tried("put", bucket, report, put)
        if done:
            _tried("get", bucket, report, partial(client.get_object, Bucket=bucket, Key=made.key))
        yield made if done else None
    finally:
        if not refused.is_set():
            _tried("delete", bucket, report, partial(client.delete_object, Bucket=bucket, Key=made.key))


def _tried(check: str, bucket: str, report: Report, do: Callable[[], Any]) -> bool:
    """Try an action on the probe and return whether it worked."""
    from botocore.exceptions import BotoCoreError, ClientError

    def run() -> Finding:
        try:
            do()
        except (BotoCoreError, ClientError) as e:
            return _s3.failed(check, e, _remedy(e, f"s3:{check.capitalize()}Object", bucket))
        return _s3.ok(check, "the probe")

    return report.check(_s3, check, run)


def _remedy(error: Exception, action: str, bucket: str) -> str:
    if getattr(error, "response", {}).get("Error", {}).get("Code") in ("NoSuchBucket", "404"):
        return "create the bucket, or name another one: --bucket, or the field Bucket of check_connections"
    on = f"arn:aws:s3:::{bucket}" + ("" if action == "s3:ListBucket" else "/*")
    return _by_kind(error, f"allow {action} on {on} to the AWS connection's keys or role")


def _by_kind(error: Exception, allow: str) -> str:
    """Return the remedy for an error of S3 or SQS; `allow` is the remedy for a denial."""
    answer = getattr(error, "response", None)
    if answer is None:
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return "set login and password of the AWS connection, or give this machine a role"
        ways = "correct endpoint_url and region_name in the extras of the AWS connection"
        return reach(
            error, f"{ways}, and let this machine reach them", tls="the schema of endpoint_url, and the extra verify"
        )
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    if code in _BY_CODE:
        return _BY_CODE[code]
    if "AccessDenied" in code or status == HTTPStatus.FORBIDDEN:
        return allow
    return answered(status, "see the error's text, and the logs of the server at endpoint_url")


@dataclass(frozen=True)
class Queue:
    """A queue that answers, and the number of its waiting messages."""

    client: SQSClient
    url: str
    waiting: int


def queue(make: Callable[[], Any], name: str, report: Report) -> Queue | None:
    """Check the depth and the redrive policy of a queue by its name or URL; return None if it does not answer."""
    answer = report.connect(_sqs, "attributes", lambda: _attributes(make, name))
    if answer is None:
        return None
    found, redrive = answer
    if target := redrive.get("deadLetterTargetArn", "").rpartition(":")[2]:
        report.add(_sqs.ok("redrive policy", f"to {target} after {redrive.get('maxReceiveCount')} receives"))
        report.check(_sqs, "dead letters", lambda: _dead_letters(found.client, target))
    else:
        remedy = "set a RedrivePolicy to a dead-letter queue, or SQS delivers an unreadable message again and again"
        report.add(_sqs.failed("redrive policy", f"{name} has no redrive policy", remedy))
    return found


def _attributes(make: Callable[[], Any], name: str) -> tuple[tuple[Queue, dict[str, Any]] | None, Finding]:
    """Return the queue and its redrive policy (None after a failure), and the finding."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = make()
        url = name if "://" in name else client.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    except (BotoCoreError, ClientError, ValueError) as e:
        return None, _sqs.failed("attributes", e, _queue_remedy(e, name))
    found = Queue(client, url, int(attributes["ApproximateNumberOfMessages"]))
    redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
    return (found, redrive), _sqs.ok("attributes", f"{name}: {found.waiting} messages")


def _dead_letters(client: SQSClient, name: str) -> Finding:
    """Check the dead-letter queue: tasks read its depth and send messages to it."""
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
        return f"create the queue {name}, or name another one: --queue, or the field Queue of check_connections"
    actions = "sqs:GetQueueUrl, sqs:GetQueueAttributes, sqs:ReceiveMessage, sqs:DeleteMessage, sqs:SendMessage"
    return _by_kind(
        error, f"allow {actions} and sqs:ChangeMessageVisibility on {name} to the AWS connection's keys or role"
    )


def receive(found: Queue, sent: Probe, seconds: float, recorded: Callable[[Probe], bool]) -> Finding:
    """Wait for the event of the probe and delete its message; other messages are released at the end.

    Until then they stay invisible, so that each is received once: a queue moves messages that were received too often
    to its dead letters. Another consumer of the queue may receive the event first: `recorded` tells whether the
    ledger has it.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    others: list[str] = []
    try:
        try:
            if said := _wait(found, sent, seconds, recorded, others):
                return _sqs.ok(EVENT, said)
        finally:
            for handle in others:
                found.client.change_message_visibility(QueueUrl=found.url, ReceiptHandle=handle, VisibilityTimeout=0)
    except (BotoCoreError, ClientError) as e:
        return _sqs.failed(EVENT, e, _queue_remedy(e, found.url.rpartition("/")[2]))
    return _sqs.failed(
        EVENT,
        f"none within {seconds:g} s",
        f"send the s3:ObjectCreated:* events of {sent.bucket} to the queue, and allow s3.amazonaws.com to send to it",
    )


def _wait(
    found: Queue, sent: Probe, seconds: float, recorded: Callable[[Probe], bool], others: list[str]
) -> str | None:
    """Wait for the probe's event and delete its message; return what happened, None if the event did not arrive.

    The receipt handles of other messages are added to `others`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = found.client.receive_message(
            QueueUrl=found.url, MaxNumberOfMessages=10, VisibilityTimeout=int(seconds) + 30, WaitTimeSeconds=1
        )
        taken = False
        for message in answer.get("Messages", []):
            if _is_of(message["Body"], sent):
                found.client.delete_message(QueueUrl=found.url, ReceiptHandle=message["ReceiptHandle"])
                taken = True
            else:
                others.append(message["ReceiptHandle"])
        if taken:
            return "the event arrived, and its message is deleted"
        if recorded(sent):
            return "the event arrived, and another consumer of the queue received it"
    return None


def _is_of(body: str, sent: Probe) -> bool:
    try:
        events = parse(body)
    except NotificationError:
        return False
    return bool(events) and all(event.key == sent.key for event in events)


def not_received(found: Queue) -> Finding:
    """Return the finding for a crowded queue, in which the probe's event would wait behind other events."""
    return _sqs.skipped(EVENT, f"{found.waiting} messages wait, so no object was put to send another event")
