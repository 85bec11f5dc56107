"""The measurements of a soak, and its verdict: whether the stack has more at the end than after the first minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

MEGABYTE = 1 << 20
# Tables that have rows only while a task works: their partitions, by this column. A run that has failed for good may
# leave one until the table's TTL.
PLANS = {"load_plan": "transfer", "load_listings": "transfer", "event_leases": "batch", "listings": "job"}


@dataclass(frozen=True)
class Margin:
    """Growth that is no leak: up to `factor` times the former value, and `more`."""

    factor: float
    more: float

    def exceeded(self, before: float, after: float) -> bool:
        """Return whether the growth is a leak."""
        return after > before * self.factor + self.more


MEMORY = Margin(1.5, 100 * MEGABYTE)
HANDLES = Margin(1.5, 50)
ROWS = Margin(1.25, 100)
PARTS = Margin(2, 30)


@dataclass(frozen=True)
class Process:
    """A process of the stack; `component` is its own or its parent's name, `started` in seconds since the epoch."""

    component: str
    pid: int
    started: float
    memory: int
    handles: int


@dataclass(frozen=True)
class Counts:
    """The state of the servers.

    `things` are those that must not become more: staging tables, locks, ETLs. `plans` counts partitions of the tables
    in `PLANS`; `rows` (after merges) and `parts` are those of the ledger's other tables.
    """

    things: dict[str, int]
    plans: dict[str, int]
    rows: dict[str, int]
    parts: dict[str, int]
    tasks: int
    xcoms: int
    failed_runs: int


@dataclass(frozen=True)
class Sample:
    """The stack at one moment; `objects` have been put. Without `counts` if a server did not answer."""

    at: float
    objects: int
    processes: tuple[Process, ...]
    counts: Counts | None = None


def judge(first: Sample, last: Sample, between: Sequence[Sample], minutes: float) -> list[str]:
    """Return the leaks.

    :param first: at rest, after the first minutes of work
    :param last: at rest, at the end
    :param between: while the pipelines worked
    :param minutes: the length of the first work; each process that lived three times as long is judged too
    """
    return [*_counts(first, last), *_rests(first, last), *_lives(between, minutes * 60)]


def _counts(first: Sample, last: Sample) -> Iterator[str]:
    if first.counts is None or last.counts is None:
        yield "counts: not known"
        return
    before, after = first.counts, last.counts
    for name, count in after.things.items():
        if count > before.things.get(name, 0):
            yield f"{name}: {before.things.get(name, 0)}, then {count}"
    failed = after.failed_runs - before.failed_runs
    for name, count in after.plans.items():
        if count > before.plans.get(name, 0) + failed:
            yield f"partitions of {name}: {before.plans.get(name, 0)}, then {count}; {failed} runs failed in between"
    for table, rows in after.rows.items():
        yield from _share(f"rows of {table}", before.rows.get(table, 0), first.objects, rows, last.objects, "object")
    for table, parts in after.parts.items():
        if PARTS.exceeded(before.parts.get(table, 0), parts):
            yield f"parts of {table}: {before.parts.get(table, 0)}, then {parts}"
    yield from _share("rows of XCom", before.xcoms, before.tasks, after.xcoms, after.tasks, "task")


def _share(name: str, before: int, units: int, after: int, more_units: int, unit: str) -> Iterator[str]:
    """Judge rows that grow with the units of work: each unit may have as many as before."""
    if ROWS.exceeded(before * more_units / max(units, 1), after):
        yield (
            f"{name}: {before / max(units, 1):.2f} for each {unit} ({before}),"
            f" then {after / max(more_units, 1):.2f} ({after})"
        )


def _rests(first: Sample, last: Sample) -> Iterator[str]:
    """Compare the components, with the processes below them."""
    before, after = components(first.processes), components(last.processes)
    for component in sorted(after.keys() & before.keys()):
        (memory, handles), (memory_now, handles_now) = before[component], after[component]
        if MEMORY.exceeded(memory, memory_now):
            yield f"memory of {component}: {memory / MEGABYTE:.0f} MB, then {memory_now / MEGABYTE:.0f} MB"
        if HANDLES.exceeded(handles, handles_now):
            yield f"file handles of {component}: {handles}, then {handles_now}"


def components(processes: Iterable[Process]) -> dict[str, tuple[int, int]]:
    """Return memory and file handles of each component."""
    found: dict[str, tuple[int, int]] = {}
    for process in processes:
        memory, handles = found.get(process.component, (0, 0))
        found[process.component] = (memory + process.memory, handles + process.handles)
    return found


def _lives(samples: Sequence[Sample], seconds: float) -> Iterator[str]:
    """Compare each process that lived long enough with itself: medians after its start, and before its end."""
    lives: dict[tuple[str, int, float], list[tuple[float, Process]]] = defaultdict(list)
    for sample in samples:
        for process in sample.processes:
            lives[process.component, process.pid, process.started].append((sample.at - process.started, process))
    for (component, pid, _), life in sorted(lives.items()):
        end = life[-1][0]
        early = [process for age, process in life if seconds / 2 <= age < seconds * 1.5]
        late = [process for age, process in life if age > end - seconds]
        if end < 3 * seconds or not early:
            continue
        memory, memory_now = median(p.memory for p in early), median(p.memory for p in late)
        handles, handles_now = median(p.handles for p in early), median(p.handles for p in late)
        aged = f"of {component}, process {pid}"
        if MEMORY.exceeded(memory, memory_now):
            yield (
                f"memory {aged}: {memory / MEGABYTE:.0f} MB after {seconds / 60:.0f} minutes,"
                f" {memory_now / MEGABYTE:.0f} MB after {end / 60:.0f}"
            )
        if HANDLES.exceeded(handles, handles_now):
            yield (
                f"file handles {aged}: {handles:.0f} after {seconds / 60:.0f} minutes,"
                f" {handles_now:.0f} after {end / 60:.0f}"
            )
