"""Messages with their events, the outcome of each event, and the resulting verdict for the message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from storeside.aistore.names import is_folder_marker
from storeside.events.errors import NotificationError
from storeside.events.notifications import S3Event, parse
from storeside.events.queue import Message, backoff

# loaded: rows of the object, in this version or a later one, are in the table. skipped: there is nothing to do.
# failed: for good, because of the object. undone: it was tried, and a retry may help. untried: it was not reached.
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
_OWN = Outcome("skipped", "Storeside itself wrote the object, to try or measure the bucket")
FOLDER = Outcome("skipped", "it is a folder marker")


@dataclass
class Delivery:
    """A message, its events with their outcomes, and how often it was released because they failed."""

    message: Message
    events: list[S3Event] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    failures: int = 0
    error: str = ""

    @classmethod
    def read(cls, message: Message) -> Delivery:
        """Parse a message; one that is not an S3 event notification has an `error` instead of events."""
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
        """Bytes of the objects that were created."""
        return sum(event.size or 0 for event in self.events if event.created)

    def verdict(self, most_failures: int, most_receives: int) -> Verdict:
        """Return what to do with the message; it is deleted only when all its objects are done.

        When a message would be received more than `most_receives` times, SQS moves it to the dead-letter queue
        without a reason. So at the last of these receives it is buried: sent there with a reason.
        """
        failed = bool(self.error) or self._any("failed", "undone")
        last = self.message.receives >= most_receives
        tried_out = self._any("undone") and self.failures + 1 >= most_failures
        if self._any("undone", "untried"):
            return "bury" if last or tried_out else "release"
        return "bury" if failed else "delete"

    @property
    def reason(self) -> str:
        """Why the message is not simply deleted: the first of its reasons."""
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
            f"no run processed it, and after {self.message.receives} receives SQS would have moved the message here:"
            " start a run that wants this object, and send the message back"
        )

    @property
    def is_failure(self) -> bool:
        """Whether its release counts as a failure."""
        return self._any("undone")

    @property
    def delay_seconds(self) -> int:
        """How long it stays invisible after its release: longer after each failure, or each receive."""
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
    matching = re.compile(regex)
    for delivery in deliveries:
        for n, event in enumerate(delivery.events):
            if delivery.outcomes[n].is_final:
                continue
            if (reason := _needless(event, bucket, matching)) is not None:
                delivery.outcomes[n] = Outcome("skipped", reason)
            else:
                wanted[event.key] = None
    return list(wanted)


def _needless(event: S3Event, bucket: str, matching: re.Pattern[str]) -> str | None:
    if event.removed:
        return "it tells of a removal: rows that were loaded stay"
    if not event.created:
        return "it tells of no new content"
    if event.bucket != bucket:
        return f"it is of another bucket than {bucket}"
    if matching.match(event.key) is None:
        return "the key does not match"
    return None


def conclude(deliveries: Iterable[Delivery], outcomes: dict[str, Outcome]) -> None:
    """Give each examined event the outcome of its key."""
    for delivery in deliveries:
        for n, event in enumerate(delivery.events):
            if delivery.outcomes[n].state == "untried" and event.key in outcomes:
                delivery.outcomes[n] = outcomes[event.key]


def oldest(messages: Sequence[Message], now: float) -> float:
    """Return the age of the oldest message in seconds; 0 if clocks differ so much that it would be negative."""
    return max([now - message.sent for message in messages if message.sent] + [0.0])
