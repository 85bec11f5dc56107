"""Deleting messages of objects that are done, and no others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .notifications import NotificationError, S3Event, parse

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

log = logging.getLogger(__name__)

_RECEIVE = 10  # SQS gives at most ten messages at a time


@dataclass
class Acknowledged:
    """Messages deleted, given back as their objects are not done yet, and left to the dead-letter queue."""

    deleted: int = 0
    released: int = 0
    unreadable: int = 0


def acknowledge(
    sqs: SQSClient,
    queue_url: str,
    done: Callable[[Sequence[S3Event]], Sequence[bool]],
    limit: int = 100_000,
) -> Acknowledged:
    """Receive what is in the queue and delete each message all of whose objects are done.

    `done` tells for each event whether its object was loaded or failed for good. Other messages are given back at
    once, at the end, so that this pass does not meet them again. What is not an S3 notification stays in flight,
    counts as received, and so reaches the dead-letter queue by the queue's redrive policy.
    """
    result = Acknowledged()
    undone: list[str] = []
    try:
        for _ in range(0, limit, _RECEIVE):
            messages = sqs.receive_message(
                QueueUrl=queue_url, MaxNumberOfMessages=_RECEIVE, VisibilityTimeout=300, WaitTimeSeconds=0
            ).get("Messages", [])
            if not messages:
                break
            _settle(sqs, queue_url, messages, done, result, undone)
    finally:
        for start in range(0, len(undone), _RECEIVE):
            sqs.change_message_visibility_batch(
                QueueUrl=queue_url,
                Entries=[
                    {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": 0}
                    for n, handle in enumerate(undone[start : start + _RECEIVE])
                ],
            )
    return result


def _settle(
    sqs: SQSClient,
    queue_url: str,
    messages: Sequence[Any],
    done: Callable[[Sequence[S3Event]], Sequence[bool]],
    result: Acknowledged,
    undone: list[str],
) -> None:
    readable: list[tuple[str, list[S3Event]]] = []
    for message in messages:
        try:
            readable.append((message["ReceiptHandle"], parse(message["Body"])))
        except NotificationError as e:
            log.warning("message %s is not an S3 event notification: %s", message["MessageId"], e)
            result.unreadable += 1
    events = [event for _, found in readable for event in found]
    verdicts = iter(done(events) if events else ())
    finished = []
    for handle, found in readable:
        # a list, so that every event takes its verdict
        if all([next(verdicts) for _ in found]):
            finished.append(handle)
        else:
            undone.append(handle)
            result.released += 1
    if finished:
        answer = sqs.delete_message_batch(
            QueueUrl=queue_url, Entries=[{"Id": str(n), "ReceiptHandle": h} for n, h in enumerate(finished)]
        )
        failed = answer.get("Failed", [])
        for entry in failed:
            log.warning("SQS did not delete a message: %s", entry.get("Message"))
        result.deleted += len(finished) - len(failed)
