"""``storeside setup-queue s3://bucket/prefix queue``: make the queue that receives a bucket's events.

Makes the queue and its dead-letter queue, lets S3 send to the queue, and adds a notification to the bucket. Existing
parts stay as they are, also other notifications of the bucket and other statements of the queue's policy. The command
first prints the steps. boto3's environment variables configure S3 and SQS.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.events.errors import EventInputError, NoQueueError
from storeside.events.queue import Queue, sqs_errors
from storeside.transfer.cli import Help, aws, ending, exit_code
from storeside.transfer.objects.content import s3_error
from storeside.transfer.request.source import Source, in_aistore, place_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

# The events of new objects; S3 has no other event after which an object has other content.
EVENTS = "s3:ObjectCreated:*"
# SQS counts each receive of a message, also one after a restart: see docs/events.md.
RECEIVES = 10
# Seconds for which SQS keeps a dead letter: its maximum, 14 days.
_KEPT = 14 * 24 * 3600
# A queue with this key cannot receive from S3: the policy of the key belongs to AWS and cannot be changed.
_AWS_KEY = "alias/aws/sqs"
_KINDS = {
    "QueueConfigurations": "QueueArn", "TopicConfigurations": "TopicArn",
    "LambdaFunctionConfigurations": "LambdaFunctionArn",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One change: its description, and the function that makes it."""

    text: str
    run: Callable[[], object]


class Setup:
    """The queue of a bucket's events.

    `account` is that of the bucket; without it, the bucket belongs to the account of the queue. Raises
    EventInputError for a queue that cannot receive events of S3, and TransferError for a bucket that cannot be read.
    """

    def __init__(
        self, s3: S3Client, sqs: SQSClient, place: str, queue: str, *, receives: int = RECEIVES, account: str = ""
    ) -> None:  # fmt: skip
        bucket, self.prefix = place_of(place)
        if in_aistore(bucket) or Source(bucket, self.prefix).prefix != self.prefix:
            raise EventInputError(
                f"{place!r}: S3 sends events of the objects below a prefix to a queue: write s3://bucket/prefix"
            )
        if queue.endswith(".fifo") or "/" in queue or not queue:
            raise EventInputError(f"queue {queue!r}: S3 sends events to standard queues only: write a queue's name")
        if receives < 1:
            raise EventInputError(f"receives {receives}: write a positive number")
        self.s3, self.sqs, self.bucket, self.queue = s3, sqs, bucket, queue
        self.receives, self.account = receives, account

    @property
    def dead_letters(self) -> str:
        """The name of the dead-letter queue."""
        return f"{self.queue}-dlq"

    def steps(self) -> list[Step]:
        """Return the changes that are missing, in their order."""
        found = [] if self._attributes(self.dead_letters) else [self._dead_letters()]
        attributes = self._attributes(self.queue)
        if not attributes:
            text = f"create the queue {self.queue}"
            found.append(Step(text, lambda: self._create(self.queue, {})))
        if attributes.get("KmsMasterKeyId") == _AWS_KEY:
            raise EventInputError(
                f"queue {self.queue}: S3 cannot send to a queue that is encrypted with {_AWS_KEY}: use SQS's own"
                " encryption, or a key of yours whose policy allows s3.amazonaws.com kms:GenerateDataKey and"
                " kms:Decrypt"
            )
        if not attributes.get("RedrivePolicy"):
            text = (
                f"let SQS move messages of {self.queue} to {self.dead_letters} after {self.receives} receives"
                " (RedrivePolicy)"
            )
            found.append(Step(text, self._redrive))
        if not self._allows(attributes):
            text = f"let s3.amazonaws.com send messages from the bucket {self.bucket} to {self.queue} (Policy)"
            found.append(Step(text, self._allow))
        if not self._notifies(attributes.get("QueueArn", "")):
            below = f" below {self.prefix!r}" if self.prefix else ""
            text = f"let the bucket {self.bucket} send {EVENTS} of objects{below} to {self.queue} (notification)"
            found.append(Step(text, self._notify))
        return found

    def _dead_letters(self) -> Step:
        kept = {"MessageRetentionPeriod": str(_KEPT)}
        text = f"create the dead-letter queue {self.dead_letters}, which keeps messages for 14 days"
        return Step(text, lambda: self._create(self.dead_letters, kept))

    def _create(self, name: str, attributes: Mapping[str, str]) -> None:
        with sqs_errors(name):
            self.sqs.create_queue(QueueName=name, Attributes=attributes)  # type: ignore[arg-type]

    def _attributes(self, name: str) -> Mapping[str, str]:
        """Return the attributes of a queue; none if it does not exist."""
        try:
            url = Queue.find(self.sqs, name).url
        except NoQueueError:
            return {}
        with sqs_errors(name):
            found: Any = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return dict(found["Attributes"])

    def _set(self, **attributes: str) -> None:
        with sqs_errors(self.queue):
            url = Queue.find(self.sqs, self.queue).url
            self.sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)  # type: ignore[arg-type]

    def _redrive(self) -> None:
        target = self._attributes(self.dead_letters)["QueueArn"]
        self._set(RedrivePolicy=json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": self.receives}))

    def statement(self, queue: str) -> dict[str, Any]:
        """Return the statement of the policy of the queue with this ARN; S3 demands it before it notifies."""
        partition, account = queue.split(":")[1], self.account or queue.split(":")[4]
        return {
            "Sid": f"storeside-{self.bucket}".replace(".", "-"),
            "Effect": "Allow",
            "Principal": {"Service": "s3.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": queue,
            "Condition": {
                "ArnLike": {"aws:SourceArn": f"arn:{partition}:s3:::{self.bucket}"},
                "StringEquals": {"aws:SourceAccount": account},
            },
        }

    def _allows(self, attributes: Mapping[str, str]) -> bool:
        if not attributes:
            return False
        wanted = self.statement(attributes["QueueArn"])
        return any(
            all(statement.get(name) == value for name, value in wanted.items() if name != "Sid")
            for statement in _statements(attributes)
        )

    def _allow(self) -> None:
        attributes = self._attributes(self.queue)
        wanted = self.statement(attributes["QueueArn"])
        others = [statement for statement in _statements(attributes) if statement.get("Sid") != wanted["Sid"]]
        policy = {"Version": "2012-10-17", **_policy(attributes), "Statement": [*others, wanted]}
        self._set(Policy=json.dumps(policy))

    def _configuration(self) -> dict[str, Any]:
        """Return the notifications of the bucket."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found: Any = self.s3.get_bucket_notification_configuration(Bucket=self.bucket)
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, "") from e
        return {name: value for name, value in found.items() if name != "ResponseMetadata"}

    def _notifies(self, queue: str) -> bool:
        """Return whether the bucket notifies the queue with this ARN of all objects below the prefix.

        Raises EventInputError if it notifies another destination: S3 sends each event to one.
        """
        notifications = self._configuration()
        for kind, field in _KINDS.items():
            for found in notifications.get(kind, ()):
                if not any(event.startswith("s3:ObjectCreated:") for event in found["Events"]):
                    continue
                prefix, suffix = _filter(found)
                is_whole = EVENTS in found["Events"] and not suffix and self.prefix.startswith(prefix)
                if found[field] == queue and is_whole:
                    return True
                if prefix.startswith(self.prefix) or self.prefix.startswith(prefix):
                    raise EventInputError(
                        f"the bucket {self.bucket} sends events of objects below {prefix!r} to {found[field]}, and S3"
                        " allows one destination for each event: choose another prefix, change that notification,"
                        " or let it send to an SNS topic to which both queues subscribe"
                    )
        return False

    def _notify(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        wanted: dict[str, Any] = {"QueueArn": self._attributes(self.queue)["QueueArn"], "Events": [EVENTS]}
        if self.prefix:
            wanted["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": self.prefix}]}}
        found = self._configuration()
        found["QueueConfigurations"] = [*found.get("QueueConfigurations", ()), wanted]
        try:
            self.s3.put_bucket_notification_configuration(
                Bucket=self.bucket,
                NotificationConfiguration=found,  # type: ignore[arg-type]
            )
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, "") from e


def _policy(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return a queue's policy, of which SQS has checked that it is JSON; empty without one."""
    found: dict[str, Any] = json.loads(attributes.get("Policy") or "{}")
    return found


def _statements(attributes: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
    """Return the statements of a queue's policy."""
    found = _policy(attributes).get("Statement", [])
    return found if isinstance(found, list) else [found]


def _filter(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the prefix and the suffix of a notification."""
    rules: Iterable[Mapping[str, str]] = found.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    values = {rule["Name"].lower(): rule["Value"] for rule in rules}
    return values.get("prefix", ""), values.get("suffix", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up a queue; return 0 if it is set up, 1 if steps are missing, and 2 if it cannot be set up."""
    parser = argparse.ArgumentParser(
        prog="storeside setup-queue", description=(__doc__ or "").partition("\n\n")[2].partition("\n\n")[0],
        formatter_class=Help, epilog=ending(
            "storeside setup-queue s3://trips/2026/ trips-events",
            "1 if steps are missing, 2 if the queue cannot be set up",
        ),
    )  # fmt: skip
    parser.add_argument("source", help="s3://bucket/prefix")
    parser.add_argument("queue", help="name of the queue; its dead-letter queue is called <queue>-dlq")
    parser.add_argument(
        "--receives", type=int, default=RECEIVES,
        help="receives after which SQS moves a message to the dead-letter queue; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--account", default="", help="account of the bucket; default: the account of the queue")
    parser.add_argument("--yes", action="store_true", help="do it without a question")
    return exit_code(lambda: _set_up(parser.parse_args(arguments)))


def _set_up(given: argparse.Namespace) -> int:
    setup = Setup(
        aws("s3"), aws("sqs"), given.source, given.queue, receives=given.receives, account=given.account
    )  # fmt: skip
    steps = setup.steps()
    if not steps:
        print(f"nothing to do: {given.queue} receives the events of {given.source}")
        return 0
    for number, step in enumerate(steps, 1):
        print(f"{number}. {step.text}")
    if not (given.yes or _is_confirmed()):
        print("nothing is changed: repeat the command with --yes")
        return 1
    for step in steps:
        step.run()
        print(f"done: {step.text}")
    return 0


def _is_confirmed() -> bool:
    """Return whether a user at a terminal agrees."""
    return sys.stdin.isatty() and input("Do this? [y/N] ").strip().lower() in ("y", "yes")
