"""An SQS queue of S3 event notifications, standard or FIFO, as its consumer sees it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from include.transfer.errors import TransferError, TransientError, UsageError

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

log = logging.getLogger(__name__)

# Limits of SQS (developer guide, "Amazon SQS message quotas"): entries of a batch, seconds of a long poll.
ENTRIES = 10
LONG_POLL = 20

_ABSENT = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
_REFUSED = frozenset(
    {"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidAddress"}
)
# A handle that is too old, of a message that somebody else has, or that is deleted.
_LOST = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
_ATTEMPTS = 3
_DEPTH: Any = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_SYSTEM: Any = ("SentTimestamp", "ApproximateReceiveCount", "MessageGroupId", "DeadLetterQueueSourceArn")


@dataclass(frozen=True)
class Message:
    """A message as it was received: its `handle` is good for this receipt; `sent` is in seconds since the epoch.

    `source` is the name of the queue from which SQS itself moved it to this one; empty where it did not.
    """

    id: str
    handle: str = field(repr=False)
    body: str
    sent: float
    receives: int
    group: str = ""
    source: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


def backoff(message: Message) -> int:
    """Return for how many seconds a message whose objects were not come to is to stay invisible: longer each time.

    SQS counts how often it is received, and moves it to the dead letters after so many times, whatever the reason.
    """
    return min(15 << min(message.receives - 1, 6), 900)


@dataclass(frozen=True)
class Depth:
    """Messages that can be received, that somebody has, and that wait for their delay; about so many."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all."""
        return not (self.visible or self.in_flight or self.delayed)


class NoQueueError(UsageError):
    """There is no queue of this name."""


class Queue:
    """A queue by its URL. Its methods raise UsageError when it is refused, TransientError when a retry may help."""

    def __init__(self, sqs: SQSClient, url: str) -> None:
        self.sqs = sqs
        self.url = url

    @classmethod
    def find(cls, sqs: SQSClient, name: str) -> Queue:
        """Return the queue of this name or URL. Raises UsageError where there is none."""
        if "://" in name:
            queue = cls(sqs, name)
            queue.depth()
            return queue
        with sqs_errors(name):
            return cls(sqs, sqs.get_queue_url(QueueName=name)["QueueUrl"])

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def is_fifo(self) -> bool:
        """Whether messages have groups and keep their order in them."""
        return self.url.endswith(".fifo")

    def depth(self) -> Depth:
        """Ask how many messages there are."""
        with sqs_errors(self.name):
            answer = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=_DEPTH)
        found: Mapping[str, str] = answer["Attributes"]  # type: ignore[assignment]
        return Depth(*(int(found.get(name, 0)) for name in _DEPTH))

    @cached_property
    def redrive_policy(self) -> tuple[str, int]:
        """The name of its dead-letter queue and after how many receives SQS itself moves a message there.

        Raises UsageError where there is none.
        """
        with sqs_errors(self.name):
            found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["RedrivePolicy"])
        policy = json.loads(found.get("Attributes", {}).get("RedrivePolicy") or "{}")
        if not policy.get("deadLetterTargetArn"):
            raise UsageError(
                f"queue {self.name} has no dead-letter queue, so what cannot be processed has no place to go:"
                " give it a RedrivePolicy"
            )
        return policy["deadLetterTargetArn"].rpartition(":")[2], int(policy["maxReceiveCount"])

    @cached_property
    def dead_letters(self) -> Queue:
        """Its dead-letter queue."""
        return Queue.find(self.sqs, self.redrive_policy[0])

    def receive(self, lease_seconds: int, wait_seconds: int = 0) -> list[Message]:
        """Receive up to ten messages, which others do not see for so long; waits for the first at most so long."""
        with sqs_errors(self.name):
            answer = self.sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=ENTRIES,
                VisibilityTimeout=lease_seconds,
                WaitTimeSeconds=wait_seconds,
                MessageSystemAttributeNames=_SYSTEM,
                MessageAttributeNames=["All"],  # ElasticMQ gives none for a prefix such as "storeside.*"
            )
        return [_message(found) for found in answer.get("Messages", [])]

    def extend(self, messages: Sequence[Message], seconds: int) -> set[str]:
        """Make messages invisible for so long from now on, or visible with 0; returns ids of those that are lost."""
        return self._batches(
            messages,
            lambda entries: self.sqs.change_message_visibility_batch(QueueUrl=self.url, Entries=entries),
            VisibilityTimeout=seconds,
        )

    def delete(self, messages: Sequence[Message]) -> set[str]:
        """Delete messages; returns ids of those that were not deleted: they were lost, and come again."""
        return self._batches(
            messages, lambda entries: self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
        )

    def send(self, body: str, attributes: Mapping[str, str], *, group: str = "", deduplication: str = "") -> None:
        """Send one message with text attributes. In a FIFO queue one with the same `deduplication` is sent once."""
        fifo = {"MessageGroupId": group or "storeside", "MessageDeduplicationId": deduplication}
        given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value}
        with sqs_errors(self.name):
            self.sqs.send_message(
                QueueUrl=self.url,
                MessageBody=body,
                MessageAttributes=given,  # type: ignore[arg-type]
                **(fifo if self.is_fifo else {}),  # type: ignore[arg-type]
            )

    def _batches(self, messages: Sequence[Message], send: Callable[[Any], Any], **values: Any) -> set[str]:
        """Send entries, ten at a time; what failed by the service's fault is sent again."""
        lost: set[str] = set()
        waiting = list(messages)
        for attempt in range(_ATTEMPTS):
            again: list[Message] = []
            for some in _tens(waiting):
                entries = [{"Id": str(n), "ReceiptHandle": m.handle, **values} for n, m in enumerate(some)]
                with sqs_errors(self.name):
                    failed = send(entries).get("Failed", [])
                for entry in failed:
                    message = some[int(entry["Id"])]
                    if entry.get("SenderFault", True) or entry.get("Code") in _LOST:
                        log.info("message %s of %s is no longer held: %s", message.id, self.name, entry.get("Code"))
                        lost.add(message.id)
                    else:
                        again.append(message)
            if not again:
                return lost
            waiting = again
            time.sleep(0.2 * 2**attempt)
        raise TransientError(f"queue {self.name}: {len(waiting)} messages were not taken in {_ATTEMPTS} attempts")


def _tens(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    return (messages[n : n + ENTRIES] for n in range(0, len(messages), ENTRIES))


def _message(found: Mapping[str, Any]) -> Message:
    system = found.get("Attributes", {})
    return Message(
        id=found["MessageId"],
        handle=found["ReceiptHandle"],
        body=found["Body"],
        sent=int(system.get("SentTimestamp", 0)) / 1000,
        receives=int(system.get("ApproximateReceiveCount", 1)),
        group=system.get("MessageGroupId", ""),
        source=system.get("DeadLetterQueueSourceArn", "").rpartition(":")[2],
        attributes={
            name: value["StringValue"]
            for name, value in found.get("MessageAttributes", {}).items()
            if "StringValue" in value
        },
    )


@contextmanager
def sqs_errors(queue: str) -> Iterator[None]:
    """Turn what boto3 raises into errors that name the queue and what to do."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as e:
        raise _named(queue, e.response.get("Error", {}).get("Code", ""), str(e)) from e
    except NoCredentialsError as e:
        raise UsageError(f"queue {queue}: no credentials: give the connection a login and password, or a role") from e
    except BotoCoreError as e:
        raise TransientError(f"queue {queue}: {e}") from e


def _named(queue: str, code: str, text: str) -> TransferError:
    if code in _ABSENT:
        return NoQueueError(f"there is no queue {queue}: create it, or correct its name or region")
    if code in _REFUSED:
        return UsageError(
            f"queue {queue} refuses it ({code}): allow sqs:ReceiveMessage, sqs:DeleteMessage, sqs:SendMessage,"
            " sqs:ChangeMessageVisibility, sqs:GetQueueUrl and sqs:GetQueueAttributes on it and on its dead-letter"
            " queue, and check the keys"
        )
    return TransientError(f"queue {queue}: {text}")
