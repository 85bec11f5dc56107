"""Errors of a queue of S3 events and its messages.

EventError
├── EventInputError       limits, queue or permissions are wrong: no retry helps
│   ├── NoQueueError      there is no queue of this name
│   ├── UnfitError        the queue refuses a message, such as one that is too long
│   └── NotificationError a message is no S3 event notification
└── EventTransientError   another try may succeed
    └── TriedOutError     several tries failed
"""

from __future__ import annotations

from storeside.errors import BadInput, StoresideError, Transient


class EventError(StoresideError):
    """Events cannot be received or processed; the message states the queue, the reason and the remedy."""


class EventInputError(EventError, BadInput):
    """The request is invalid, or the queue refuses it."""


class NoQueueError(EventInputError):
    """There is no queue of this name."""


class UnfitError(EventInputError):
    """The queue refuses a message, for example because it is too long with its attributes."""


class NotificationError(EventInputError):
    """The message is no S3 event notification; the text states the field, its value and the expected value."""


class EventTransientError(EventError, Transient):
    """The queue could not be reached, or throttled the requests."""


class TriedOutError(EventTransientError):
    """Several tries failed, so the next try should not be soon."""

    is_soon = False
