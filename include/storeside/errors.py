"""The one tree of errors, and the kinds that decide whether a task fails or is retried.

Every error is a `StoresideError` of exactly one kind:

BadInput    request, configuration or data that stay wrong: no retry helps
Transient   another try may succeed: the task is retried
Partial     some objects failed for good, and the rest is done: no retry
Cancelled   a user stopped the operation, or its process ends: no failure

The errors of a system are next to its code. A system's base class has no kind and is not raised. Its other errors
derive from that base, or from `StoresideError` if there is only one, and from a kind, such as
``class CopyInputError(CopyError, BadInput)``; their names are unique. A plain ValueError has no kind: a bug or a
truncated response causes it, and the task is retried.
"""

from __future__ import annotations


class StoresideError(Exception):
    """An operation failed; the message states the object, the reason and the remedy."""


class BadInput(ValueError):
    """A request, a configuration or data are wrong and stay wrong: no retry helps.

    It is also a ValueError, because constructors raise it while a DAG is parsed.
    """


class Transient(Exception):
    """A server could not be reached, was busy, or closed the connection: a retry may succeed.

    `is_soon` tells whether a retry may succeed within seconds; otherwise, the next try should be later.
    """

    is_soon = True


class Partial(Exception):
    """Some objects failed for good; the rest is done or continues."""


class Cancelled(Exception):
    """A user stopped the operation, or its process ends."""
