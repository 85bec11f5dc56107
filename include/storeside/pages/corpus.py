"""The hours of recordings that transforms kept, and that they left out by reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from storeside import sql
from storeside.pages.tables import Tables

# The pairs of buckets on the page, and the rows of all of them.
MOST, _MOST_ROWS = 20, 2_000


@dataclass(frozen=True)
class Step:
    """Recordings with one outcome, and one reason if they are left out; `status` is that of the ledger.

    `parts` are utterances or segments of recordings that were cut, and otherwise the recordings. `objects` counts
    recordings, of which `unknown` have no known length.
    """

    status: str
    reason: str
    objects: int
    parts: int
    hours: float
    unknown: int


@dataclass(frozen=True)
class Funnel:
    """The steps from the hours of one bucket to the hours that are kept in another."""

    source: str
    destination: str
    steps: tuple[Step, ...]

    @property
    def hours(self) -> float:
        """The hours of all recordings, or of all parts of them."""
        return sum(step.hours for step in self.steps)

    @property
    def parts(self) -> int:
        """The number of recordings, or of the parts of them."""
        return sum(step.parts for step in self.steps)

    @property
    def unknown(self) -> int:
        """The number of recordings without a known length."""
        return sum(step.unknown for step in self.steps)

    @property
    def kept(self) -> Step:
        """The recordings or parts that are kept."""
        return next((step for step in self.steps if step.status == "done"), Step("done", "", 0, 0, 0.0, 0))

    def rows(self) -> Iterator[tuple[str, Step, float]]:
        """Yield the steps that leave audio out, and then the kept audio: name, numbers, hours after it."""
        left = self.hours
        for step in self.steps:
            if step.status == "left_out":
                left -= step.hours
                yield step.reason, step, max(left, 0.0)
        for step in self.steps:
            if step.status == "failed":
                yield "failed", step, max(left, 0.0)
        yield "kept", self.kept, self.kept.hours


def funnels(tables: Tables, bucket: str = "") -> list[Funnel]:
    """Return the funnels of the newest `MOST` pairs of buckets; `bucket` is a part of the name of one of them."""
    rows = tables.rows(sql.query("pages_corpus"), bucket=bucket, limit=MOST, rows=_MOST_ROWS)
    return [
        Funnel(*pair, tuple(
            Step(
                row["outcome"], row["reason"], int(row["objects"]), int(row["parts"]), row["seconds"] / 3600,
                int(row["unknown"]),
            )
            for row in found
        ))
        for pair, found in groupby(rows, lambda row: (row["source"], row["destination"]))
    ]  # fmt: skip
