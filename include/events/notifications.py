"""S3 event notifications as they arrive on SQS."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus


class NotificationError(ValueError):
    """The message is not an S3 event notification; the text says why."""


@dataclass(frozen=True)
class S3Event:
    """One object of a notification. `name` is the event without its ``s3:`` prefix, such as ``ObjectCreated:Put``."""

    name: str
    bucket: str
    key: str
    etag: str
    time: datetime

    @property
    def created(self) -> bool:
        """Whether the event says that an object was made or replaced."""
        return self.name.startswith("ObjectCreated")


def parse(body: str) -> list[S3Event]:
    """Read one SQS message body: plain, or wrapped by SNS. ``s3:TestEvent`` gives an empty list.

    Keys are URL-encoded in notifications and decoded here (AWS, "Event message structure"). Raises
    NotificationError for anything else.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise NotificationError(f"not JSON: {e}") from e
    if not isinstance(document, dict):
        raise NotificationError("not a JSON object")
    if document.get("Type") == "Notification" and isinstance(document.get("Message"), str):
        return parse(document["Message"])
    if document.get("Event") == "s3:TestEvent":
        return []
    records = document.get("Records")
    if not isinstance(records, list):
        raise NotificationError("no Records")
    return [_event(record) for record in records]


def _event(record: Any) -> S3Event:
    try:
        s3 = record["s3"]
        return S3Event(
            name=str(record["eventName"]).removeprefix("s3:"),
            bucket=str(s3["bucket"]["name"]),
            key=unquote_plus(str(s3["object"]["key"])),
            etag=str(s3["object"].get("eTag") or "").strip('"'),
            time=datetime.fromisoformat(str(record["eventTime"])),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise NotificationError(f"a record without {e}") from e
