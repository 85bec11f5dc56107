"""The key of a job's objects in the ledger of copies and transforms, and the numbers that the ledger returns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Reasons of left-out objects that a run counts one by one; the others have one count.
REASONS = 20
OTHER_REASONS = "other reasons"


@dataclass(frozen=True)
class Pending:
    """One object that a job still has to process; `size` is in bytes."""

    object: str
    destination_object: str
    size: int
    version: str


@dataclass(frozen=True)
class Scope:
    """The key of a job's objects: a bucket pair, the effect between them, and the run.

    `selection` identifies the selected source objects, because tasks of one run may divide a bucket between them.
    `prepend` is the prefix of the names of the results: the ledger has one outcome of an object for each. It is empty
    for intermediate results, whose prefix is another in each run. `options` is a digest of what decides, beside the
    effect, whether an object can be processed.
    """

    source: str
    destination: str
    effect: str
    run_id: str
    selection: str = ""
    prepend: str = ""
    options: str = ""

    @property
    def job(self) -> str:
        """The key of this scope's listings."""
        text = "\0".join((self.source, self.destination, self.effect, self.run_id, self.selection))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def parameters(self) -> dict[str, Any]:
        """The scope as bound query parameters."""
        return {
            "source": self.source,
            "destination": self.destination,
            "prepend": self.prepend,
            "effect": self.effect,
            "options": self.options,
            "run_id": self.run_id,
            "job": self.job,
        }


@dataclass(frozen=True)
class Plan:
    """Numbers of objects: listed, pending, skipped because this version failed before, refused for their names."""

    listed: int
    pending: int
    known_bad: int
    refused: int


@dataclass(frozen=True)
class Others:
    """Planned objects without an outcome of their run: failed in another run, with examples, or left to another try.

    Other runs have processed the rest.
    """

    failed: int
    left: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Totals:
    """Objects and bytes of one run on one bucket pair; it recorded `left_out` objects as left out."""

    done: int
    failed: int
    bytes_in: int
    bytes_out: int
    left_out: int = 0


@dataclass(frozen=True)
class LeftOut:
    """The number of objects that the transformer left out, and the most frequent reasons with the number of each."""

    objects: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: LeftOut) -> LeftOut:
        counts = Counter(self.reasons) + Counter(other.reasons)
        return LeftOut(self.objects + other.objects, dict(counts.most_common(REASONS)))

    def by_reason(self) -> dict[str, int]:
        """Return the number of objects by reason; rare reasons are one entry."""
        rest = self.objects - sum(self.reasons.values())
        return {**self.reasons, **({OTHER_REASONS: rest} if rest else {})}
