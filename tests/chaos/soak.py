"""The pipelines under faults for hours, with a watch for leaks: python -m tests.chaos.soak --minutes 120

Each run is one session on a new stack: ten minutes of work, a rest with the first measurement, the other minutes of
work, and a rest with the last one. Sessions without a finding add up in `soak/sessions.json` of the state's folder.
The exit status is 1 if the stack holds more at the end than at the beginning, or if an object is lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storeside.stack.settings import CHECKOUT, default_folder
from tests.chaos import leaks, report
from tests.chaos.driver import Chaos, Work
from tests.chaos.leaks import MEGABYTE, Sample
from tests.chaos.rig import Rig, rig
from tests.chaos.watch import Watch

FOLDER = default_folder() / "soak"
GOAL_MINUTES = 360.0


@dataclass(frozen=True)
class Session:
    """The result of one run."""

    date: str
    commit: str
    minutes: float
    faults: int
    objects: int
    leaks: tuple[str, ...]
    lost: tuple[str, ...]
    doubled: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.leaks or self.lost or self.doubled)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one session; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--minutes", type=float, default=120, help="minutes of work; default: %(default)s")
    parser.add_argument("--first", type=float, default=10, help="minutes before the first measurement")
    parser.add_argument("--gap", type=float, default=40, help="mean seconds between faults; default: %(default)s")
    parser.add_argument("--rate", type=float, default=100, help="objects a minute; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: the number of the session")
    parser.add_argument("--only", default="", help="kinds of faults whose names contain one of these, with commas")
    options = parser.parse_args(arguments)
    if not 0 < options.first < options.minutes:
        parser.error("--first must be shorter than --minutes")
    logging.disable(logging.WARNING)  # of the driver's own clients, which meet the faults as well
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "sessions.json"
    sessions = read(path)
    seed = options.seed or len(sessions) + 1
    print(f"session {len(sessions) + 1}, seed {seed}; {told(sessions)}", flush=True)
    with rig() as made:
        session = run(made, Chaos(made, seed, options.gap, options.only), options)
    sessions.append(session)
    path.write_text(json.dumps([asdict(one) for one in sessions], indent=1))
    print(f"{told(sessions)}\n{bench(sessions)}")
    return 0 if session.clean else 1


def run(made: Rig, chaos: Chaos, options: argparse.Namespace) -> Session:
    """Work, rest, work, rest; then compare."""
    began = time.time()
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(began))
    chaos.prepare()
    first, rest = options.first, options.minutes - options.first
    with Watch(made, chaos, FOLDER / f"samples-{date.replace(' ', '-').replace(':', '')}.jsonl") as watch:
        chaos.work(Work(0, round(first * options.rate), first))
        before = watch.at_rest()
        with interruptible(chaos):
            chaos.work(Work(0, round(rest * options.rate), rest))
        worked = min(time.monotonic(), chaos.deadline) - chaos.began
        after = watch.at_rest()
    found = chaos.prove()
    found.seconds = time.time() - began
    print(report.table(chaos.done, chaos.pipelines))
    print(report.summary(found, chaos.pipelines))
    print(measured(before, after))
    session = Session(
        date=date,
        commit=_commit(),
        minutes=round(first + worked / 60, 1),
        faults=len(chaos.done),
        objects=found.objects,
        leaks=(*leaks.judge(before, after, watch.samples, first), *found.orphans),
        lost=(*found.lost, *found.truncated),
        doubled=tuple(found.duplicated),
    )
    for name in ("leaks", "lost", "doubled"):
        print("\n".join((f"{name}: {len(getattr(session, name))}", *(f"  {x}" for x in getattr(session, name)))))
    return session


@contextmanager
def interruptible(chaos: Chaos) -> Iterator[None]:
    """Let Ctrl-C end the work early, but not the comparison; a second one ends all."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, former)
        chaos.deadline = time.monotonic()
        print("interrupted: the work ends here", flush=True)

    former: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def read(path: Path) -> list[Session]:
    """Return the sessions of earlier runs."""
    if not path.exists():
        return []
    keys = ("leaks", "lost", "doubled")
    return [Session(**{**one, **{key: tuple(one[key]) for key in keys}}) for one in json.loads(path.read_text())]


def counted(sessions: Sequence[Session]) -> list[Session]:
    """Return the last sessions without a finding: one with a finding makes the hours begin again."""
    found: list[Session] = []
    for session in reversed(sessions):
        if not session.clean:
            break
        found.insert(0, session)
    return found


def told(sessions: Sequence[Session]) -> str:
    """Return how much is done."""
    some = counted(sessions)
    commits = ", ".join(dict.fromkeys(session.commit for session in some))
    hours = sum(session.minutes for session in some) / 60
    return f"{hours:.1f} of {GOAL_MINUTES / 60:.0f} hours are done" + (f" (commits {commits})" if commits else "")


def measured(first: Sample, last: Sample) -> str:
    """Return the table of what both rests had."""
    lines = ["", "| at rest | first | last |", "|---|---|---|"]
    before, after = leaks.components(first.processes), leaks.components(last.processes)
    for name in sorted(before.keys() | after.keys()):
        (memory, handles), (memory_now, handles_now) = before.get(name, (0, 0)), after.get(name, (0, 0))
        lines.append(f"| memory of {name} (MB) | {memory / MEGABYTE:.0f} | {memory_now / MEGABYTE:.0f} |")
        lines.append(f"| file handles of {name} | {handles} | {handles_now} |")
    lines.append(f"| objects | {first.objects} | {last.objects} |")
    for kind, values in asdict(last)["counts"].items():
        former = getattr(first.counts, kind)
        if not isinstance(values, dict):
            lines.append(f"| {kind.replace('_', ' ')} | {former} | {values} |")
            continue
        what = "" if kind == "things" else f"{kind} of "
        lines += [f"| {what}{n} | {former.get(n, 0)} | {v} |" for n, v in values.items() if v or former.get(n)]
    return "\n".join(lines)


def bench(sessions: Sequence[Session]) -> str:
    """Return the last lines: the findings of the last session, and the minutes of those that count."""
    last = sessions[-1]
    figures = (("leaks", "things"), ("lost", "objects"), ("doubled", "objects"))
    lines = [f"BENCH soak.{name} {len(getattr(last, name))} {unit}" for name, unit in figures]
    return "\n".join([*lines, f"BENCH soak.minutes {sum(one.minutes for one in counted(sessions)):g} minutes"])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=CHECKOUT, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
