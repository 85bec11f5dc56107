"""The figures of the variants: medians, ranges, ratios to the client, and their table in ClickHouse."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from storeside.measure.transforms.variants import Variant
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# The client's name among the variants.
CLIENT = "client"
# Recordings in a report that were not measured; their number is always in it.
_MOST_LEFT_OUT = 20
_COLUMNS = (
    "run_id", "server", "channel", "file_access", "direct_put", "source", "format", "targets", "objects", "processes",
    "round", "seconds", "objects_per_second", "megabytes_per_second",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The seconds of each round of a variant, or of the client (`variant` is None)."""

    variant: Variant | None
    seconds: tuple[float, ...]

    @property
    def name(self) -> str:
        """The variant in words."""
        return str(self.variant or CLIENT)

    @property
    def median(self) -> float:
        """The median of the rounds in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Report:
    """The results of all variants that worked, and by name the reasons of those that failed.

    `objects` is the number of objects of each round, `size` the sum of their sizes in bytes. `form` describes the
    format of the results, and `processes` is the number of worker processes of a server (0: one per CPU). `left_out`
    are the reasons of recordings that cannot be transcoded and are not measured, by name.
    """

    source: str
    form: str
    targets: int
    processes: int
    objects: int
    size: int
    results: Sequence[Result]
    failed: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Result]:
        """The results, the fastest first."""
        return sorted(self.results, key=lambda result: result.median)

    def gain(self, result: Result) -> float | None:
        """Return how many times as fast as the client a variant is; None without the client's result."""
        client = next((one for one in self.results if one.variant is None), None)
        return client.median / result.median if client else None

    def table(self) -> str:
        """Return a Markdown table: medians with minimum and maximum, the fastest first, then the failures.

        A list of recordings that were not measured follows it.
        """
        lines = ["| variant | seconds | objects/s | MB/s | times as fast as the client |", "|---|---|---|---|---|"]
        for result in self.ranked:
            figures = [
                _spread(result.seconds),
                *(_spread([amount / s for s in result.seconds]) for amount in (self.objects, self.size / 1e6)),
            ]
            gain = self.gain(result)
            lines.append(f"| {' | '.join([result.name, *figures])} | {'' if gain is None else f'{gain:.2f}'} |")
        lines += [f"| {name} | failed: {reason} | | | |" for name, reason in self.failed.items()]
        if self.left_out:
            lines += ["", f"not measured, because they cannot be transcoded: {len(self.left_out)} recordings"]
            lines += [f"- {name!r}: {reason}" for name, reason in self._some_left_out().items()]
        return "\n".join(lines)

    def _some_left_out(self) -> dict[str, str]:
        return dict(islice(self.left_out.items(), _MOST_LEFT_OUT))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, the fastest variant first."""
        return {
            "source": self.source, "format": self.form, "targets": self.targets, "processes": self.processes,
            "objects": self.objects, "bytes": self.size, "failed": dict(self.failed),
            "left_out": len(self.left_out), "reasons": self._some_left_out(),
            "variants": [
                {
                    "variant": result.name, "seconds": list(result.seconds), "median": result.median,
                    "times_client": self.gain(result),
                }
                for result in self.ranked
            ],
        }  # fmt: skip

    def record(self, client: Client, run_id: str) -> None:
        """Insert every round into ``storeside.transform_benchmark``. Raises DatabaseError."""
        migrate(client)
        rows = [
            [
                run_id, *_place(result.variant), self.source, self.form, self.targets, self.objects, self.processes,
                number, seconds, self.objects / seconds, self.size / 1e6 / seconds,
            ]
            for result in self.results
            for number, seconds in enumerate(result.seconds, 1)
        ]  # fmt: skip
        client.insert("storeside.transform_benchmark", rows, column_names=_COLUMNS, settings={"async_insert": 0})


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _place(variant: Variant | None) -> tuple[str, str, str, str]:
    """Return the columns that identify a variant."""
    return (variant.server, variant.communication, *variant.options) if variant else (CLIENT, "", "", "")
