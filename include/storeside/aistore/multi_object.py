"""Detects that a multi-object job has done all that was requested, seconds before AIStore reports it as idle.

Such a job does not end: it waits for further requests. AIStore reports it as idle only after its keep-alive interval,
which is eleven seconds by default (``DemandBase.IsIdle`` in xact/demand.go of AIStore 5.0). Its control message has
exact counters (``XactTCO.CtlMsg`` in xact/xs/tcobjs.go).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# The end of the message: after it, AIStore lists the requests whose senders are still at work.
_COUNTERS = re.compile(
    r"job:\[ xid:\S+ txns:(?P<done>\d+)/(?P<begun>\d+) pending:(?P<pending>\d+) sent:(?P<sent>\d+)"
    r" received:(?P<received>\d+) [^\[\]]*\]"
)


def is_done(messages: Sequence[str], kind: str) -> bool:
    """Return whether a job has processed all requested objects; False if its counters do not prove that.

    `messages` has the control message of each target. A target counts a sent object before it counts the request as
    done, and a received object after it has stored it. So all objects are stored if every target has done all its
    requests and as many objects were received as sent. Transforms send results in other ways, which these counters
    leave out: theirs are proof on a single target only.
    """
    counters = [_counters(message) for message in messages]
    if not counters or (kind != "copy-listrange" and len(counters) > 1):
        return False
    return _prove(counters)


def _prove(counters: Sequence[dict[str, int] | None]) -> bool:
    known = [one for one in counters if one is not None]
    if len(known) < len(counters):
        return False
    if any(one["done"] != one["begun"] or not one["begun"] or one["pending"] for one in known):
        return False
    return sum(one["sent"] for one in known) == sum(one["received"] for one in known)


def _counters(message: str) -> dict[str, int] | None:
    found = _COUNTERS.search(message)
    if found is None or found.end() < len(message):
        return None
    return {name: int(text) for name, text in found.groupdict().items()}
