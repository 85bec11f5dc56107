"""What is told of a run: the table of the faults, whether each was seen in the logs, and the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import Fault
from tests.chaos.pipelines import Pipeline
from tests.chaos.rig import Rig

# What the logs say of each kind of fault, by the beginning of its name.
SIGNS = {
    "kill -9 worker": r"SIGKILL|-9\b|heartbeat timeout|Detected a task instance without a heartbeat|killed",
    "kill -9 ETL server": r"SIGKILL|signal 9|exit(ed|Code)\D{0,8}(-9|137)|connection (refused|reset)|broken pipe|EOF",
    "kill -9": r"terminated by SIGKILL",
    "reset": r"[Cc]onnection (was )?(reset|aborted|broken)|[Bb]roken pipe|IncompleteRead|EOF",
    "slow": r"[Tt]ime[d ]*-?out|[Tt]imeout",
    "truncated": r"IncompleteRead|premature|Unexpected end|unexpected EOF|Cannot read all data|incomplete",
    "expired credentials": r"ExpiredToken|token has expired",
    "clock step": r"$^",
    "clock": r"TooSkewed|difference between the request time",
    "500": r"InternalError|internal error|500",
    "503": r"SlowDown|reduce your request rate|503",
    "disk full": r"[Nn]o space left|NOT_ENOUGH_SPACE|out of space|OOS|ENOSPC|Cannot reserve",
    "SIGSTOP": r"[Tt]ime[d ]*-?out|[Tt]imeout",
}


@dataclass
class Findings:
    """What was proven, and what was not."""

    objects: int
    lost: list[str]
    duplicated: list[str]
    truncated: list[str]
    orphans: list[str]
    runs: dict[str, dict[str, int]]
    seen: dict[str, int]
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        """Whether anything is not as it should be."""
        return bool(self.lost or self.duplicated or self.truncated or self.orphans)


def seen(rig: Rig, kinds: Iterable[str]) -> dict[str, int]:
    """Return how many lines of all logs show each kind of fault as what it was; 0 for those that none shows."""
    patterns = {kind: re.compile(_sign(kind)) for kind in kinds}
    counts = dict.fromkeys(patterns, 0)
    for path in _logs(rig.stack.state):
        with path.open(errors="replace") as file:
            for line in file:
                for kind, pattern in patterns.items():
                    if pattern.search(line):
                        counts[kind] += 1
    return counts


def _sign(kind: str) -> str:
    return next(sign for start, sign in SIGNS.items() if kind.startswith(start))


def _logs(state: Path) -> list[Path]:
    folders = (
        state / "logs",
        state / "airflow" / "logs",
        state / "clickhouse",
        state / "aistore",
        state / "podrunner",
    )
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [p for p in found if ".log" in p.name or p.name.startswith("aisnode") or p.suffix in (".INFO", ".ERROR")]


def delays(fault: Fault, pipelines: Iterable[Pipeline]) -> list[float | None]:
    """Return the seconds from a fault to the next objects of each pipeline that it could hold up; None for never.

    A pipeline that had nothing to do any more is left out.
    """
    found: list[float | None] = []
    for pipeline in pipelines:
        if pipeline.dag not in fault.pipelines:
            continue
        later = [when for when, _ in pipeline.progress if when > fault.ended]
        if later:
            found.append(later[0] - fault.began)
        elif not pipeline.progress or pipeline.progress[-1][1] < pipeline.put:
            found.append(None)
    return found


def rows_of(done: list[Fault], pipelines: list[Pipeline]) -> list[tuple[str, int, int, float]]:
    """Return kind, count, recovered and worst delay."""
    table = []
    for kind in sorted({fault.kind for fault in done}):
        some = [delays(fault, pipelines) for fault in done if fault.kind == kind]
        recovered = sum(None not in one for one in some)
        worst = max((seconds for one in some for seconds in one if seconds is not None), default=0.0)
        table.append((kind, len(some), recovered, worst))
    return table


def table(done: list[Fault], pipelines: list[Pipeline]) -> str:
    """Return the table of the faults, as Markdown."""
    lines = ["", "| fault | count | recovered | worst delay (s) |", "|---|---|---|---|"]
    lines += [f"| {k} | {count} | {well} | {worst:.0f} |" for k, count, well, worst in rows_of(done, pipelines)]
    return "\n".join(lines)


def summary(found: Findings, pipelines: list[Pipeline]) -> str:
    """Return what else there is to tell."""
    lines = ["", f"{found.seconds / 60:.1f} minutes"]
    for pipeline in pipelines:
        lines.append(f"{pipeline.name}: {pipeline.put} objects put; runs {found.runs[pipeline.name]}")
        lines += [f"  {text}" for text in pipeline.trouble]
    for what in ("lost", "duplicated", "truncated", "orphans"):
        some = getattr(found, what)
        lines += [f"{what}: {len(some)}", *(f"  {text}" for text in some[:20])]
    unseen = sorted(kind for kind, count in found.seen.items() if not count)
    lines += [f"until its TTL: {text}" for text in found.notes]
    lines.append(f"not visible in any log: {', '.join(unseen) or 'none'}")
    return "\n".join(lines)


def record(done: list[Fault], found: Findings) -> dict[str, Any]:
    """Return all that is known, for a file."""
    return {"faults": [vars(fault) for fault in done], "findings": vars(found)}


def bench(done: list[Fault], found: Findings) -> str:
    """Return the last lines."""
    figures = {
        "faults": (len(done), "faults"),
        "objects": (found.objects, "objects"),
        "lost": (len(found.lost), "objects"),
        "duplicated": (len(found.duplicated), "objects"),
        "truncated": (len(found.truncated), "objects"),
        "orphans": (len(found.orphans), "things"),
    }
    return "\n".join(f"BENCH chaos.{name} {value} {unit}" for name, (value, unit) in figures.items())
