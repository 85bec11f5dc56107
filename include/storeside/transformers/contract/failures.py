"""The failure journal, in which the server beside a target lists failed objects with their reasons.

AIStore 5.0 has no answer for a failed object over WebSocket: ext/etl/websocket_comm.go treats any text frame as
success. Servers therefore write one line per failure to their log, which AIStore returns for every target
(``GET /v1/etl/<name>/logs``). The worker that submitted the job reads the failures from there. In the same way it
learns which objects the transformer left out: for AIStore they are done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from storeside.transformers.transformer import utf8

MARK = "storeside-failure "
# It begins with `MARK`, which a transformer's own output cannot contain.
SHARD_MARK = MARK + "shard "
UNLISTED_MARK = MARK + "unlisted "
LEFT_OUT_MARK = MARK + "left out "
FACTS_MARK = MARK + "facts "
_REASON_LENGTH = 500
# Characters of the reason of a left-out object: reasons are counted, so they are brief.
LONGEST_LEFT_OUT = 200
# Characters of an object's facts.
LONGEST_FACTS = 6_000
E = TypeVar("E")


@dataclass(frozen=True)
class Failure:
    """One object that could not be transformed.

    `time` is the server's clock in seconds since 1970. `bucket` is the name of the source bucket; empty if AIStore
    did not send it. The object itself causes a `final` failure: a retry does not change the result. If a `member` of
    a shard failed, `object` is the shard, and its other members have results.
    """

    time: float
    bucket: str
    object: str
    reason: str
    final: bool
    member: str = ""

    def line(self) -> str:
        """Return the journal's line without a line end; line breaks in name and reason are escaped."""
        return _line(MARK, replace(self, reason=self.reason[:_REASON_LENGTH]), later="member")


@dataclass(frozen=True)
class LeftOut:
    """One object, or one `member` of a shard, that the transformer left out; the fields are those of `Failure`.

    The reason comes from a transformer, which may be hostile: it is shortened to `LONGEST_LEFT_OUT` characters, and
    each run of characters that cannot be printed becomes one space. `facts` are one JSON object; see `checked_facts`.
    """

    time: float
    bucket: str
    object: str
    reason: str
    member: str = ""
    facts: str = ""

    def __post_init__(self) -> None:
        text = "".join(c if c.isprintable() else " " for c in self.reason[: 4 * LONGEST_LEFT_OUT])
        object.__setattr__(self, "reason", " ".join(text.split())[:LONGEST_LEFT_OUT].rstrip() or "no reason given")
        object.__setattr__(self, "facts", checked_facts(self.facts))

    def line(self) -> str:
        """Return the journal's line without a line end."""
        return _line(LEFT_OUT_MARK, self, later="facts")


@dataclass(frozen=True)
class Facts:
    """The facts of an object with a result, as one JSON object; see `checked_facts`."""

    time: float
    bucket: str
    object: str
    facts: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", checked_facts(self.facts))

    def line(self) -> str:
        """Return the journal's line without a line end."""
        return _line(FACTS_MARK, self)


def checked_facts(text: str) -> str:
    """Return facts from a transformer, which may be hostile: empty unless they are one brief JSON object."""
    try:
        if len(text) <= LONGEST_FACTS and isinstance(json.loads(text, parse_constant=_no_number), dict):
            return utf8(text)
    except (ValueError, RecursionError):
        pass
    return ""


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True)
class Shard:
    """A shard whose result was delivered: how many members were transformed, kept unchanged, failed and left out.

    The lines of a shard's members precede its own, so a shard without a line has unknown failures.
    """

    time: float
    bucket: str
    object: str
    transformed: int
    kept: int
    failed: int
    left_out: int = 0

    def line(self) -> str:
        """Return the journal's line without a line end."""
        return _line(SHARD_MARK, self, later="left_out")


@dataclass(frozen=True)
class Unlisted:
    """Failures were too many to be listed: `time` is the time until which the server may have left out some."""

    time: float
    bucket: str = ""

    def line(self) -> str:
        """Return the journal's line without a line end."""
        return _line(UNLISTED_MARK, self)


def _line(mark: str, record: Failure | LeftOut | Facts | Shard | Unlisted, later: str = "") -> str:
    """Return a line of a record. Earlier versions do not know its field `later`, which is left out if it is empty."""
    fields = asdict(record)
    if later and not fields[later]:
        del fields[later]
    return mark + json.dumps(fields, separators=(",", ":"))


def parse(log: str) -> Iterator[Failure]:
    """Yield the failures in a server's log; skip all other lines and truncated ones."""
    yield from _parsed(log, MARK, Failure)


def parse_left_out(log: str) -> Iterator[LeftOut]:
    """Yield the objects and members that a server left out, by its log."""
    yield from _parsed(log, LEFT_OUT_MARK, LeftOut)


def parse_facts(log: str) -> Iterator[Facts]:
    """Yield the facts of objects with a result in a server's log."""
    yield from _parsed(log, FACTS_MARK, Facts)


def parse_shards(log: str) -> Iterator[Shard]:
    """Yield the shards in a server's log."""
    yield from _parsed(log, SHARD_MARK, Shard)


def parse_unlisted(log: str) -> Iterator[Unlisted]:
    """Yield the marks in a server's log that failures are not listed."""
    yield from _parsed(log, UNLISTED_MARK, Unlisted)


def _parsed(log: str, mark: str, kind: type[E]) -> Iterator[E]:
    for line in log.splitlines():
        _, found, text = line.partition(mark)
        if not found:
            continue
        try:
            fields = dict(json.loads(text))
            yield kind(**{key: utf8(value) if isinstance(value, str) else value for key, value in fields.items()})
        except (ValueError, TypeError):
            continue
