"""The consumer's client of an SQS queue, standard or FIFO."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from storeside.events.errors import EventError, EventInputError, EventTransientError, NoQueueError, UnfitError

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

log = logging.getLogger(__name__)

# Limits of SQS (developer guide, "Amazon SQS message quotas"): entries per request, seconds of a long poll.
ENTRIES = 10
LONG_POLL = 20
# Characters of the bodies in one batch: a message has up to 1 MiB, and anyone who may send to the queue decides.
MOST_BODIES = 64 << 20
# Concurrent requests of each kind: receipts, deletions and extensions together fit into boto3's ten connections.
AT_ONCE = 3

_ABSENT = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
_REFUSED = frozenset(
    {"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidAddress"}
)
# The handle is too old, or its message was deleted or leased by another consumer.
_LOST = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
# Codes of SQS and ElasticMQ for a message that is too long.
_UNFIT = frozenset({"InvalidParameterValue", "MessageTooLong"})
_ATTEMPTS = 3
_DEPTH: Any = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_SYSTEM: Any = ("SentTimestamp", "ApproximateReceiveCount", "MessageGroupId", "DeadLetterQueueSourceArn")


@dataclass(frozen=True)
class Message:
    """A received message. Its `handle` is valid for this receipt; `sent` is in seconds since the epoch.

    `source` is the name of the queue from which SQS moved the message to this queue, or empty.
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
    """Return the seconds for which a message whose objects were not reached stays invisible: more after each receive.

    SQS counts the receives of a message, whatever their reason, and moves it to the dead-letter queue after a number
    of them.
    """
    return min(15 << min(message.receives - 1, 6), 900)


@dataclass(frozen=True)
class Depth:
    """Approximate numbers of messages that are visible, leased, and delayed."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def is_empty(self) -> bool:
        """Whether the queue has no messages in any state."""
        return not (self.visible or self.in_flight or self.delayed)


class Queue:
    """A queue with this URL.

    Methods raise EventInputError when SQS refuses a request, and EventTransientError when a retry may help.
    """

    def __init__(self, sqs: SQSClient, url: str) -> None:
        self.sqs = sqs
        self.url = url

    @classmethod
    def find(cls, sqs: SQSClient, name: str) -> Queue:
        """Return the queue with this name or URL. Raises NoQueueError if it does not exist."""
        if "://" in name:
            queue = cls(sqs, name)
            queue.depth()
            return queue
        with sqs_errors(name):
            return cls(sqs, sqs.get_queue_url(QueueName=name)["QueueUrl"])

    @property
    def name(self) -> str:
        """The queue's name, which is the last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def is_fifo(self) -> bool:
        """Whether messages have groups and keep their order within a group."""
        return self.url.endswith(".fifo")

    def depth(self) -> Depth:
        """Return the approximate numbers of messages."""
        with sqs_errors(self.name):
            answer = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=_DEPTH)
        found: Mapping[str, str] = answer["Attributes"]  # type: ignore[assignment]
        return Depth(*(int(found.get(name, 0)) for name in _DEPTH))

    @cached_property
    def redrive_policy(self) -> tuple[str, int]:
        """Name of the dead-letter queue, and number of receives after which SQS moves a message there.

        Raises EventInputError if the queue has no dead-letter queue.
        """
        with sqs_errors(self.name):
            found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["RedrivePolicy"])
        policy = json.loads(found.get("Attributes", {}).get("RedrivePolicy") or "{}")
        if not policy.get("deadLetterTargetArn"):
            raise EventInputError(
                f"queue {self.name} has no dead-letter queue for messages that cannot be processed:"
                " give it a RedrivePolicy"
            )
        return policy["deadLetterTargetArn"].rpartition(":")[2], int(policy["maxReceiveCount"])

    @cached_property
    def dead_letters(self) -> Queue:
        """The dead-letter queue of this queue. Raises EventInputError if it has none."""
        return Queue.find(self.sqs, self.redrive_policy[0])

    def receive(self, lease_seconds: int, wait_seconds: int = 0) -> list[Message]:
        """Lease up to ten messages for `lease_seconds`; wait up to `wait_seconds` if the queue is empty."""
        with sqs_errors(self.name):
            answer = self.sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=ENTRIES,
                VisibilityTimeout=lease_seconds,
                WaitTimeSeconds=wait_seconds,
                MessageSystemAttributeNames=_SYSTEM,
                MessageAttributeNames=["All"],  # ElasticMQ returns no attribute for a prefix such as "storeside.*"
            )
        return [_message(found) for found in answer.get("Messages", [])]

    def extend(self, messages: Sequence[Message], seconds: int) -> set[str]:
        """Make messages invisible for `seconds` from now, or visible with 0; return the ids of lost messages."""
        return self._batches(
            messages,
            lambda entries: self.sqs.change_message_visibility_batch(QueueUrl=self.url, Entries=entries),
            VisibilityTimeout=seconds,
        )

    def delete(self, messages: Sequence[Message]) -> set[str]:
        """Delete messages; return the ids of lost messages, which were not deleted and will be received again."""
        return self._batches(
            messages, lambda entries: self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
        )

    def send(self, body: str, attributes: Mapping[str, str], *, group: str = "", deduplication: str = "") -> str:
        """Send one message with text attributes and return its id.

        A FIFO queue drops a message with a repeated `deduplication`.

        Raises UnfitError when the queue refuses the message, for example because of its length.
        """
        fifo = {"MessageGroupId": group or "storeside", "MessageDeduplicationId": deduplication}
        given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value}
        with sqs_errors(self.name, _UNFIT):
            answer = self.sqs.send_message(
                QueueUrl=self.url,
                MessageBody=body,
                MessageAttributes=given,  # type: ignore[arg-type]
                **(fifo if self.is_fifo else {}),  # type: ignore[arg-type]
            )
        return answer["MessageId"]

    def _batches(self, messages: Sequence[Message], send: Callable[[Any], Any], **values: Any) -> set[str]:
        """Send entries, ten per request, and resend those that SQS failed to process; return ids of lost messages."""
        lost: set[str] = set()
        waiting = list(messages)

        def failures(some: Sequence[Message]) -> list[tuple[Message, Any]]:
            """Send one request; return the messages that failed, each with its entry of the response."""
            entries = [{"Id": str(n), "ReceiptHandle": m.handle, **values} for n, m in enumerate(some)]
            with sqs_errors(self.name):
                return [(some[int(entry["Id"])], entry) for entry in send(entries).get("Failed", [])]

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for attempt in range(_ATTEMPTS):
                failed = [found for some in threads.map(failures, _tens(waiting)) for found in some]
                waiting = []
                for message, entry in failed:
                    if entry.get("SenderFault", True) or entry.get("Code") in _LOST:
                        log.info(
                            "the lease of message %s of %s is lost: %s", message.id, self.name, entry.get("Code")
                        )
                        lost.add(message.id)
                    else:
                        waiting.append(message)
                if not waiting:
                    return lost
                time.sleep(0.2 * 2**attempt)
        raise EventTransientError(f"queue {self.name}: SQS failed {_ATTEMPTS} times for {len(waiting)} messages")


def _tens(messages: Sequence[Message]) -> list[Sequence[Message]]:
    return [messages[n : n + ENTRIES] for n in range(0, len(messages), ENTRIES)]


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
def sqs_errors(queue: str, unfit: Collection[str] = ()) -> Iterator[None]:
    """Turn boto3's exceptions into errors that state the queue, the reason and a remedy.

    `unfit` has the codes that become an UnfitError.
    """
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as e:
        if (code := e.response.get("Error", {}).get("Code", "")) in unfit:
            raise UnfitError(f"queue {queue} refuses the message: {e}") from e
        raise _named(queue, code, str(e)) from e
    except NoCredentialsError as e:
        raise EventInputError(
            f"queue {queue}: no credentials: set login and password, or a role, in the connection"
        ) from e
    except BotoCoreError as e:
        raise EventTransientError(f"queue {queue}: {e}") from e


def _named(queue: str, code: str, text: str) -> EventError:
    if code in _ABSENT:
        return NoQueueError(f"there is no queue {queue}: create it, or correct its name or region")
    if code in _REFUSED:
        return EventInputError(
            f"queue {queue} denies access ({code}): allow sqs:ReceiveMessage, sqs:DeleteMessage, sqs:SendMessage,"
            " sqs:ChangeMessageVisibility, sqs:GetQueueUrl and sqs:GetQueueAttributes on it and on its dead-letter"
            " queue, and check the keys"
        )
    return EventTransientError(f"queue {queue}: {text}")


def receive(
    queue: Queue,
    lease_seconds: int,
    most: int,
    take: Callable[[Sequence[Message]], None],
    wants_more: Callable[[], bool] = lambda: True,
    wait_seconds: int = 1,
    at_once: int = AT_ONCE,
) -> None:
    """Receive messages and pass each response to `take`, which only one thread at a time calls.

    The first request waits up to `wait_seconds`. If it returns messages, `at_once` threads send further requests
    until a response is empty, `wants_more` returns False, or `most` messages were received (up to nine more, because
    a response has up to ten). Raises EventError after all threads have ended.
    """
    first = queue.receive(lease_seconds, wait_seconds)
    take(first)
    lock = threading.Lock()
    asked = len(first)  # messages received, plus ten for each open request
    ended = not first

    def follow() -> None:
        nonlocal asked, ended
        while True:
            with lock:
                if ended or asked >= most or not wants_more():
                    return
                asked += ENTRIES
            messages: Sequence[Message] = ()
            try:
                messages = queue.receive(lease_seconds)
            finally:
                with lock:
                    asked -= ENTRIES - len(messages)
                    ended = ended or not messages
                    take(messages)

    with ThreadPoolExecutor(at_once, thread_name_prefix="receive") as threads:
        for future in [threads.submit(follow) for _ in range(at_once)]:
            future.result()
