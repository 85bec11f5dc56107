"""The report of a run: the table of the faults, whether each is visible in the logs, and the figures."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import Fault
from tests.chaos.pipelines import Pipeline
from tests.chaos.rig import Rig

# Words in the logs for each kind of fault; the first matching beginning of its name counts. VICTIM was killed.
SIGNS = {
    "kill -9 worker": r"Workload finished.*Negsignal\.SIGKILL|Detected a task instance without a heartbeat",
    "kill -9 ETL server": r"exitCode: (137|-9)\b|websocket: close 1006|control message \S+: .*broken pipe",
    "kill -9": r"exited: VICTIM\S* \(terminated by SIGKILL",
    "reset AIStore": r"reset by peer|connection abort|broken pipe|unexpected EOF",
    "reset": r"reset by peer|Connection (was )?(reset|aborted)|[Bb]roken pipe|RemoteDisconnected",
    "slow": r"timed out|deadline exceeded|(Read|Connect|Socket) ?[Tt]imeout",
    "truncated AIStore": r"IncompleteRead|unexpected EOF",
    "truncated": r"IncompleteRead|Unexpected end|Cannot read all data",
    "expired credentials": r"ExpiredToken|provided token has expired",
    "clock step": r"(?!)",
    "clock": r"TooSkewed|difference between the request time",
    # S3's own words, and those of the load balancer that answers in tests/chaos/answers.py
    "500": r"\bInternalError\b|We encountered an internal error|<h1>500 ",
    "503": r"\bSlowDown\b|reduce your request rate|<h1>503 ",
    "too many parts": r"\bTOO_MANY_PARTS\b|Too many parts",
    "disk full ClickHouse": r"NOT_ENOUGH_SPACE|Cannot reserve|No space left on device",
    "disk full": r"\bOOS\b|out of space|[Nn]o space left on device|ENOSPC",
    "SIGSTOP": r"timed out|deadline exceeded|(Read|Connect|Socket) ?[Tt]imeout",
}
# Kinds that no log shows: faults shorter than every time-out, steps of another server's clock, and requests that
# AIStore's SDK retries.
SILENT = ("clock step", "SIGSTOP", "slow", "500 workers > AIStore", "503 workers > AIStore")
# Faults of a kind that at least one log has to show: fewer may all have met what a client tries again in silence.
ENOUGH = 4


@dataclass
class Findings:
    """The results of a run."""

    objects: int
    lost: list[str]
    duplicated: list[str]
    truncated: list[str]
    orphans: list[str]
    unrecovered: list[str]
    runs: dict[str, dict[str, int]]
    seen: dict[str, int]
    unseen: list[str]
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        """Whether anything is not as it should be."""
        told = self.lost, self.duplicated, self.truncated, self.orphans, self.unrecovered, self.unseen
        return any(told)


def seen(rig: Rig, kinds: Iterable[str]) -> dict[str, int]:
    """Return the number of lines in all logs that show each kind of fault."""
    patterns = {kind: re.compile(_sign(kind)) for kind in kinds}
    counts = dict.fromkeys(patterns, 0)
    for path in _logs(rig.stack.state):
        with path.open(errors="replace") as file:
            for line in file:
                for kind, pattern in patterns.items():
                    if pattern.search(line):
                        counts[kind] += 1
    return counts


def unseen(lines: Mapping[str, int], done: Iterable[Fault]) -> list[str]:
    """Return the kinds of faults that should show in a log, and do not."""
    counts = Counter(fault.kind for fault in done)
    return sorted(
        kind for kind, n in counts.items() if n >= ENOUGH and not lines[kind] and not kind.startswith(SILENT)
    )


def _sign(kind: str) -> str:
    sign = next(sign for start, sign in SIGNS.items() if kind.startswith(start))
    return sign.replace("VICTIM", re.escape(kind.removeprefix("kill -9 ")))


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


def unrecovered(done: Iterable[Fault], pipelines: Sequence[Pipeline]) -> list[str]:
    """Return the faults after which a pipeline that they could hold up had work left, and finished none of it."""
    return [
        f"{fault.kind} at {time.strftime('%H:%M:%S', time.gmtime(fault.began))} UTC"
        for fault in done
        if None in delays(fault, pipelines)
    ]


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
    for what in ("lost", "duplicated", "truncated", "orphans", "unrecovered"):
        some = getattr(found, what)
        lines += [f"{what}: {len(some)}", *(f"  {text}" for text in some[:20])]
    lines += [f"taken away later: {text}" for text in found.notes]
    silent = sorted(kind for kind, count in found.seen.items() if not count and kind not in found.unseen)
    lines.append(f"not visible in any log, as may be: {', '.join(silent) or 'none'}")
    lines += [f"not visible in any log: {len(found.unseen)}", *(f"  {kind}" for kind in found.unseen)]
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
        "unrecovered": (len(found.unrecovered), "faults"),
        "unseen": (len(found.unseen), "kinds"),
    }
    return "\n".join(f"BENCH chaos.{name} {value} {unit}" for name, (value, unit) in figures.items())
