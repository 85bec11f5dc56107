"""Messages with their events, the outcome of each event, and the verdict for the message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from storeside.aistore.names import is_folder_marker
from storeside.events.errors import NotificationError
from storeside.events.notifications import S3Event, parse
from storeside.events.queue import Message, backoff
from storeside.transfer.request.source import matches

# loaded: the table has the rows of the object, in this version or a later one. skipped: the event needs no work.
# failed: for good, because of the object. undone: the load failed, and a retry may help. untried: no load began.
State = Literal["loaded", "skipped", "failed", "undone", "untried"]
Verdict = Literal["delete", "bury", "release"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one event, and its reason."""

    state: State
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the event's object needs no more work."""
        return self.state in ("loaded", "skipped")


UNTRIED = Outcome("untried")
LOADED = Outcome("loaded")
_OWN = Outcome("skipped", "Storeside wrote the object to test or measure the bucket")
FOLDER = Outcome("skipped", "it is a folder marker")
MARKER = Outcome("skipped", "its name is that of a marker, such as _SUCCESS: to process it, name it in the keys")


@dataclass
class Delivery:
    """A message, its events with their outcomes, and the number of its releases after failures."""

    message: Message
    events: list[S3Event] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    failures: int = 0
    error: str = ""

    @classmethod
    def read(cls, message: Message) -> Delivery:
        """Parse a message. A message that is no S3 event notification gets an `error` instead of events."""
        try:
            events = parse(message.body)
        except NotificationError as e:
            return cls(message, error=f"it is not an S3 event notification: {e}")
        return cls(message, events, [_at_first(event) for event in events])

    @property
    def needs_nothing(self) -> bool:
        """Whether the message can be deleted now: all its events are final, or it has none."""
        return not self.error and all(outcome.is_final for outcome in self.outcomes)

    @property
    def bytes(self) -> int:
        """The bytes of the created objects."""
        return sum(event.size or 0 for event in self.events if event.created)

    def verdict(self, most_failures: int, most_receives: int) -> Verdict:
        """Return whether to delete, bury or release the message; it is deleted only when all its objects are done.

        To bury a message is to send it to the dead-letter queue with a reason. SQS would move a message there without
        a reason when it is received more than `most_receives` times, so it is buried at the last of these receives.
        """
        failed = bool(self.error) or self._any("failed", "undone")
        last = self.message.receives >= most_receives
        tried_out = self._any("undone") and self.failures + 1 >= most_failures
        if self._any("undone", "untried"):
            return "bury" if last or tried_out else "release"
        return "bury" if failed else "delete"

    @property
    def reason(self) -> str:
        """Why the message is not deleted: the reason of its first event without success."""
        if self.error:
            return self.error
        for state in ("failed", "undone", "untried"):
            for event, outcome in zip(self.events, self.outcomes, strict=True):
                if outcome.state == state:
                    return f"s3://{event.bucket}/{event.key}: {outcome.reason or self.unexplained}"
        return ""

    @property
    def unexplained(self) -> str:
        """Why the message is a dead letter although its objects have no outcome."""
        return (
            f"no run processed it in {self.message.receives} receives, after which SQS moves a message here: start a"
            " run that loads this object, and send the message back"
        )

    @property
    def is_failure(self) -> bool:
        """Whether the release of the message counts as a failure."""
        return self._any("undone")

    @property
    def delay_seconds(self) -> int:
        """The seconds for which the message stays invisible after its release: more after each failure or receive."""
        return min(15 << min(self.failures, 6), 900) if self.is_failure else backoff(self.message)

    def _any(self, *states: State) -> bool:
        return any(outcome.state in states for outcome in self.outcomes)


def _at_first(event: S3Event) -> Outcome:
    """Return the outcome of an event before any pipeline has examined it."""
    if event.is_own:
        return _OWN
    return FOLDER if event.created and is_folder_marker(event.key, event.size) else UNTRIED


def sort_out(deliveries: Iterable[Delivery], bucket: str, regex: str) -> list[str]:
    """Skip events that need no work, and return the keys of the objects to examine."""
    wanted: dict[str, None] = {}
    for delivery in deliveries:
        for n, event in enumerate(delivery.events):
            if delivery.outcomes[n].is_final:
                continue
            if (reason := _needless(event, bucket, regex)) is not None:
                delivery.outcomes[n] = Outcome("skipped", reason)
            else:
                wanted[event.key] = None
    return list(wanted)


def _needless(event: S3Event, bucket: str, regex: str) -> str | None:
    if event.removed:
        return "the event reports a removal: loaded rows stay"
    if not event.created:
        return "the event reports no new content"
    if event.bucket != bucket:
        return f"the object is in another bucket than {bucket}"
    if not matches(regex, event.key):
        return "the key does not match"
    return None


def conclude(deliveries: Iterable[Delivery], outcomes: dict[str, Outcome]) -> None:
    """Give each examined event the outcome of its key."""
    for delivery in deliveries:
        for n, event in enumerate(delivery.events):
            if delivery.outcomes[n].state == "untried" and event.key in outcomes:
                delivery.outcomes[n] = outcomes[event.key]


def oldest(messages: Sequence[Message], now: float) -> float:
    """Return the age of the oldest message in seconds; 0 if a difference of clocks makes it negative."""
    return max([now - message.sent for message in messages if message.sent] + [0.0])
