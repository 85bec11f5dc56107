"""Parses S3 event notifications from SQS, and finds the last event of each object.

A message has one of three shapes:

- S3's: ``Records``, each with ``eventName`` and ``s3`` (S3 user guide, "Event message structure"). Keys are
  URL-encoded. MinIO adds ``EventName`` and ``Key`` above the records (``cmd/event-notification.go``), moto leaves
  out version and sequencer (``moto/s3/notifications.py``), versitygw encodes no keys (``s3event/event.go``).
- EventBridge's: one event, in ``source``, ``detail-type`` and ``detail`` (S3 user guide, "EventBridge event message
  structure"). Keys are not URL-encoded.
- SNS's: ``Type`` is "Notification", and ``Message`` is one of the above as text (SNS developer guide, "Amazon SNS
  message and JSON formats"). With raw message delivery SNS adds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import unquote_plus

from storeside.aistore.names import PROBES, SCRATCH, THROUGHPUT
from storeside.events.errors import NotificationError

Effect = Literal["created", "removed", "ignored"]

# Effects by the first part of the event's name ("Supported event types for SQS, SNS, and Lambda", S3 user guide).
_EFFECTS: dict[str, Effect] = {
    "ObjectCreated": "created",
    "ObjectRemoved": "removed",
    "LifecycleExpiration": "removed",
    "ReducedRedundancyLostObject": "removed",
    "IntelligentTiering": "ignored",
    "LifecycleTransition": "ignored",
    "ObjectAcl": "ignored",
    "ObjectAnnotation": "ignored",
    "ObjectRestore": "ignored",
    "ObjectTagging": "ignored",
    "Replication": "ignored",
    # MinIO's (internal/event/name.go)
    "LifecycleDelMarkerExpiration": "ignored",
    "ObjectAccessed": "ignored",
    "ObjectTransition": "ignored",
}
# Names of MinIO for events that leave the content unchanged, or concern no content.
_UNCHANGED = {
    "ObjectCreated:DeleteTagging",
    "ObjectCreated:PutLegalHold",
    "ObjectCreated:PutRetention",
    "ObjectCreated:PutTagging",
    "ObjectRemoved:NoOP",
}
# S3's event name for EventBridge's detail-type ("Amazon EventBridge mapping and troubleshooting", S3 user guide).
_DETAIL_TYPES = {
    "Object Created": "ObjectCreated",
    "Object Deleted": "ObjectRemoved",
    "Object Restore Initiated": "ObjectRestore:Post",
    "Object Restore Completed": "ObjectRestore:Completed",
    "Object Restore Expired": "ObjectRestore:Delete",
    "Object Storage Class Changed": "LifecycleTransition",
    "Object Access Tier Changed": "IntelligentTiering",
    "Object ACL Updated": "ObjectAcl:Put",
    "Object Tags Added": "ObjectTagging:Put",
    "Object Tags Deleted": "ObjectTagging:Delete",
}
_REASONS = {
    "PutObject": "ObjectCreated:Put",
    "POST Object": "ObjectCreated:Post",
    "CopyObject": "ObjectCreated:Copy",
    "CompleteMultipartUpload": "ObjectCreated:CompleteMultipartUpload",
}
_VERSITYGW = {"kafka-global", "nats-global", "rabbitmq-global", "webhook-global"}  # its configurationId

_EVENT_NAME = re.compile(r"([A-Za-z]{1,40})(:[A-Za-z]{1,40})?")
_HEXADECIMAL = re.compile(r"[0-9a-f]+")
_LONGEST = 1024  # maximum bytes of UTF-8 in a key or a version id, S3's longest texts
_MESSAGE = 2**20  # maximum bytes of a message in SQS
_BIGGEST = 2**63 - 1


@dataclass(frozen=True)
class S3Event:
    """One object of a notification.

    `name` is S3's event name without ``s3:``, such as ``ObjectCreated:Put``, even if EventBridge sent the event.
    `size` (bytes) is None, and `version_id`, `sequencer` and `etag` are empty, if the server omits them.
    """

    name: str
    bucket: str
    key: str
    etag: str
    time: datetime
    size: int | None = None
    version_id: str = ""
    sequencer: str = ""

    @property
    def effect(self) -> Effect:
        """The event's effect on the object's content.

        - created: the object has new content. This covers every ``ObjectCreated`` event, even unknown ones, because
          an unnecessary request for an object does no harm.
        - removed: a request (``ObjectRemoved``), a lifecycle rule (``LifecycleExpiration``) or a loss in S3
          (``ReducedRedundancyLostObject``) removed the content.
        - ignored: the content is unchanged. Tags, ACLs, annotations and retention are no content; a transition,
          tiering or restore moves or copies it within S3; replication concerns a copy in another bucket.
        """
        return "ignored" if self.name in _UNCHANGED else _EFFECTS.get(self.name.partition(":")[0], "ignored")

    @property
    def created(self) -> bool:
        """Whether an object was created or replaced."""
        return self.effect == "created"

    @property
    def is_own(self) -> bool:
        """Whether Storeside wrote the object to test or measure the bucket."""
        return self.key.startswith((PROBES, SCRATCH, THROUGHPUT))

    @property
    def removed(self) -> bool:
        """Whether an object, or one version of it, was removed."""
        return self.effect == "removed"

    @property
    def removes_version(self) -> bool:
        """Whether one version was permanently deleted, so that another version may be the object's content.

        A delete marker also has a version id, but it hides all versions.
        """
        return self.removed and self.version_id != "" and self.name.endswith((":Delete", ":DeleteObjects"))

    @property
    def sequence(self) -> str:
        """The sequencer as text that sorts in the order of the events of one key; empty if there is none.

        Sequencers are hexadecimal. AWS says: "right pad the shorter value with zeros, and then do a lexicographical
        comparison". Removing trailing zeros gives the same order.
        """
        digits = self.sequencer.lower()
        return digits.rstrip("0") if _HEXADECIMAL.fullmatch(digits) else ""


def parse(body: str) -> list[S3Event]:
    """Parse the body of one SQS message. ``s3:TestEvent`` gives an empty list; see S3Event.effect for events to skip.

    Raises only NotificationError, for a body that is no S3 event notification.
    """
    message = _Object.read(body, "message")
    if message.has("Type", "Notification"):
        message = _Object.read(message.text("Message", longest=_MESSAGE), "SNS message")
    if message.has("Event", "s3:TestEvent"):
        return []
    if message.has("source", "aws.s3"):
        return [_from_eventbridge(message)]
    return [_from_s3(record) for record in message.objects("Records")]


def newest(events: Iterable[S3Event]) -> list[S3Event]:
    """Return for each bucket and key the last event that changed its content, in the order of their first events.

    Events are ordered by sequencer and time, or by time alone if an event of the key has no sequencer. Events that
    created or hid a version do not count if that version was permanently deleted later. If no other event is left,
    the deletion is returned, with the deleted version in `version_id`.
    """
    objects: dict[tuple[str, str], list[S3Event]] = {}
    for event in events:
        if event.effect != "ignored":
            objects.setdefault((event.bucket, event.key), []).append(event)
    return [_last(found) for found in objects.values()]


def _last(events: list[S3Event]) -> S3Event:
    sequenced = all(event.sequence for event in events)
    ordered = sorted(events, key=lambda event: (event.sequence if sequenced else "", event.time))
    versions: dict[str, S3Event] = {}
    for event in ordered:
        versions.pop(event.version_id, None)  # moves the version to the end
        versions[event.version_id] = event
    return ([event for event in versions.values() if not event.removes_version] or ordered)[-1]


def _from_s3(record: _Object) -> S3Event:
    """Parse one of ``Records``. AWS recommends comparing only the major version and ignoring new fields."""
    version = record.optional("eventVersion")
    if version and version.partition(".")[0] != "2":
        raise record.wrong("eventVersion", "2.x")
    s3 = record.object("s3")
    item = s3.object("object")
    versitygw = s3.optional("configurationId") in _VERSITYGW
    return S3Event(
        name=record.event_name("eventName"),
        bucket=s3.object("bucket").text("name"),
        key=item.text("key") if versitygw else item.encoded("key"),
        etag=item.optional("eTag").strip('"'),
        time=record.time("eventTime"),
        size=item.size(),
        version_id=item.optional("versionId"),
        # versitygw's sequencer starts at 1 with each process (s3event/kafka.go)
        sequencer="" if versitygw else item.optional("sequencer"),
    )


def _from_eventbridge(message: _Object) -> S3Event:
    name = _DETAIL_TYPES.get(message.text("detail-type"))
    if name is None:
        raise message.wrong("detail-type", "one of S3's, such as 'Object Created'")
    detail = message.object("detail")
    reason = detail.optional("reason")
    if name == "ObjectCreated":
        name = _REASONS.get(reason, name)
    elif name == "ObjectRemoved":
        marker = detail.has("deletion-type", "Delete Marker Created")
        name = "LifecycleExpiration" if reason == "Lifecycle Expiration" else name
        name = f"{name}:{'DeleteMarkerCreated' if marker else 'Delete'}"
    item = detail.object("object")
    return S3Event(
        name=name,
        bucket=detail.object("bucket").text("name"),
        key=item.text("key"),
        etag=(item.optional("etag") or item.optional("eTag")).strip('"'),  # eTag: moto
        time=message.time("time"),
        size=item.size(),
        version_id=item.optional("version-id"),
        sequencer=item.optional("sequencer"),
    )


class _Object:
    """A JSON object of a message; its errors state the path of the field."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise NotificationError(f"{place} is {_shown(value)}, expected an object")
        self._fields: dict[str, Any] = value
        self._place = place

    @classmethod
    def read(cls, text: str, place: str) -> _Object:
        try:
            return cls(json.loads(text), place)
        except NotificationError:
            raise
        except RecursionError:
            raise NotificationError(f"{place} is nested too deeply, expected S3's JSON") from None
        except ValueError as e:
            raise NotificationError(f"{place} is not JSON: {e}") from None

    def has(self, name: str, value: str) -> bool:
        return bool(self._fields.get(name) == value)

    def wrong(self, name: str, expected: str) -> NotificationError:
        found = _shown(self._fields.get(name, ...))
        return NotificationError(f"{self._place}.{name} is {found}, expected {expected}")

    def object(self, name: str) -> _Object:
        return _Object(self._fields.get(name, ...), f"{self._place}.{name}")

    def objects(self, name: str) -> list[_Object]:
        values = self._fields.get(name)
        if not isinstance(values, list):
            raise self.wrong(name, "a list (S3), or a source aws.s3 (EventBridge), or a Type Notification (SNS)")
        return [_Object(value, f"{self._place}.{name}[{n}]") for n, value in enumerate(values)]

    def text(self, name: str, longest: int = _LONGEST) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "text")
        try:
            length = len(value.encode())
        except UnicodeEncodeError:
            raise self.wrong(name, "text without half of a surrogate pair") from None
        if length > longest:
            raise self.wrong(name, f"at most {longest} bytes")
        return value

    def optional(self, name: str) -> str:
        return "" if self._fields.get(name) in (None, "") else self.text(name)

    def encoded(self, name: str) -> str:
        """Decode a key. Raises NotificationError for invalid UTF-8, which would become another object's key."""
        try:
            key = unquote_plus(self.text(name, longest=3 * _LONGEST), errors="strict")
        except UnicodeDecodeError:
            raise self.wrong(name, "URL-encoded UTF-8") from None
        if len(key.encode()) > _LONGEST:
            raise self.wrong(name, f"at most {_LONGEST} bytes")
        return key

    def event_name(self, name: str) -> str:
        value = self.text(name).removeprefix("s3:")
        match = _EVENT_NAME.fullmatch(value)
        if match is None or match[1] not in _EFFECTS:
            raise self.wrong(name, "an event of S3, such as 'ObjectCreated:Put'")
        return value

    def size(self) -> int | None:
        value = self._fields.get("size")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _BIGGEST:
            raise self.wrong("size", "a number of bytes")
        return value

    def time(self, name: str) -> datetime:
        """Parse a time in ISO 8601. A time without a zone, such as moto's, counts as UTC, like all times of S3."""
        try:
            time = datetime.fromisoformat(self.text(name))
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
        except NotificationError:
            raise
        except (ValueError, OverflowError):
            raise self.wrong(name, "a time in ISO 8601") from None


def _shown(value: Any) -> str:
    """Describe a value briefly, because a message may contain data that must not appear in a log."""
    if isinstance(value, str):
        return f"{value!a}" if len(value) <= 40 else f"{value[:20]!a}... ({len(value)} characters)"
    if isinstance(value, bool | None):
        return json.dumps(value)
    return {dict: "an object", list: "a list", type(...): "missing"}.get(type(value), "a number")
