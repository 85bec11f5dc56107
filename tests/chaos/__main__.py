"""Three pipelines under faults: python -m tests.chaos --seed N --faults 300 --objects 20000

Prints a table of the faults and BENCH lines at its end. The exit status is 1 if an object was lost, duplicated,
truncated or left behind, if a pipeline made no progress after a fault, or if no log shows a visible kind of fault.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from storeside.events.queue import Queue
from tests.chaos import faults, orphans, report
from tests.chaos.pipelines import Events, Loads, Pipeline, Speech, patiently
from tests.chaos.rig import FOLDER, Rig, rig

REDRIVE = "sqs_redrive"
SHARES = {"speech": 0.2, "loads": 0.4, "events": 0.4}
# The part of the faults after which all objects have been put, so that the last faults still hit work.
_LAST_PUT = 0.97
# Number of faults by which objects may be put ahead of their faults.
_LEAD = 8
# Faults that last, or wait for a process to hit.
_AT_ONCE = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--gap", type=float, default=2.5, help="mean seconds between faults; default: %(default)s")
    parser.add_argument("--only", default="", help="kinds of faults whose names contain one of these, with commas")
    parser.add_argument("--minutes", type=float, default=120, help="no fault and no object after that")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the driver's own clients, which meet the faults as well
    began = time.time()
    with rig() as made:
        print(f"seed {options.seed}: {options.faults} faults, {options.objects} objects", flush=True)
        chaos = Chaos(made, options)
        chaos.run()
        found = chaos.prove()
    found.seconds = time.time() - began
    print(report.table(chaos.done, chaos.pipelines))
    print(report.summary(found, chaos.pipelines))
    (FOLDER / "report.json").write_text(json.dumps(report.record(chaos.done, found), indent=1))
    print(report.bench(chaos.done, found))
    return 1 if found.wrong else 0


class Chaos:
    """One run of the driver."""

    def __init__(self, made: Rig, options: argparse.Namespace) -> None:
        self.rig, self.options = made, options
        self.chance = random.Random(options.seed)  # noqa: S311
        self.done: list[faults.Fault] = []
        self.deadline = time.monotonic() + options.minutes * 60
        count = {name: round(options.objects * share) for name, share in SHARES.items()}
        self.speech = Speech(made, "speech", "speech_pipeline", count["speech"], self.allowed)
        self.loads = Loads(made, "loads", "s3_to_clickhouse", count["loads"], self.allowed)
        self.events = Events(made, "events", "s3_events_to_clickhouse", count["events"], self.allowed)
        self.pipelines: list[Pipeline] = [self.speech, self.loads, self.events]
        self._lock = threading.Lock()
        self._met_at = time.monotonic()

    def allowed(self) -> float:
        """Return which share of the objects may have been put by now."""
        if time.monotonic() > self.deadline:
            return 0.0
        # an idle pipeline gives a fault nothing to hit, and the last faults must also hit something
        quiet = time.monotonic() - self._met_at
        done = len(self.done) + min(quiet / (4 * self.options.gap), _LEAD)
        return min(1.0, 0.03 + done / (self.options.faults * _LAST_PUT))

    def run(self) -> None:
        """Put objects and do faults at the same time, until all faults are done and all objects in place."""
        for pipeline in self.pipelines:
            pipeline.prepare()
        threads = [threading.Thread(target=p.watch, daemon=True) for p in self.pipelines]
        threads += [threading.Thread(target=p.produce, daemon=True) for p in self.pipelines]
        threads.append(threading.Thread(target=self.loads.drive, daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._faults()
        finally:
            faults.resume(self.rig)
        for pipeline in self.pipelines:
            pipeline.count = pipeline.put if time.monotonic() > self.deadline else pipeline.count
        self._sweep()

    def _faults(self) -> None:
        known = faults.kinds(self.rig)
        # more faults than requested, because the last faults of a run may hit nothing
        count = self.options.faults + len(known) // 2
        waiting = faults.sequence(known, count, self.chance, self.options.only)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while len(self.done) < self.options.faults and time.monotonic() < self.deadline:
                time.sleep(self.chance.expovariate(1 / self.options.gap))
                with self._lock:
                    kind = waiting.pop(0) if waiting else None
                if kind is not None:
                    pool.submit(self._do, kind, random.Random(self.chance.random()), waiting)  # noqa: S311

    def _do(self, kind: faults.Kind, chance: random.Random, waiting: list[faults.Kind]) -> None:
        fault = faults.Fault(kind.name, kind.pipelines, began=time.time())
        try:
            fault.met = kind.act(self.rig, chance)
        except faults.NoVictim:
            fault.met = 0
        except Exception as e:
            print(f"{kind.name}: {e!r}", flush=True)
        fault.ended = time.time()
        with self._lock:
            if fault.met:
                self._met_at = time.monotonic()
                self.done.append(fault)
            else:  # it hit nothing: repeat it later
                waiting.insert(min(len(waiting), 5 + chance.randrange(10)), kind)
        if fault.met:
            state = ", ".join(f"{p.name} {p.progress[-1][1] if p.progress else 0}/{p.put}" for p in self.pipelines)
            print(
                f"{len(self.done):4} {kind.name} ({fault.met}, {fault.ended - fault.began:.1f} s); {state}",
                flush=True,
            )

    def _sweep(self) -> None:
        """Wait until all pipelines have ended; a run without events finds objects whose messages are lost."""
        for pipeline in self.pipelines:
            if not pipeline.finished.wait(240) and pipeline is not self.loads:
                dag = "s3_to_clickhouse" if pipeline is self.events else pipeline.dag
                missing = pipeline.put - patiently(pipeline.done)
                pipeline.trouble.append(f"{missing} objects only by a run without events")
                for conf in pipeline.sweeps():
                    pipeline.run(dag, conf)
        for pipeline in self.pipelines:
            pipeline.finished.wait(60)
            pipeline.finished.set()
        for name in orphans.QUEUES:
            self._redrive(name)

    def _redrive(self, name: str) -> None:
        """Send dead letters back, as a person would when their cause is gone."""
        pipeline = self.speech
        if count := patiently(lambda: Queue.find(pipeline.sqs, name).dead_letters.depth().visible):
            pipeline.api.request("PATCH", f"dags/{REDRIVE}", json={"is_paused": False})
            state = pipeline.run(REDRIVE, {"queue": name, "redrive": True})
            pipeline.trouble.append(f"{count} dead letters of {name} sent back: {state}")

    def prove(self) -> report.Findings:
        """Search for state that is left at the end, and compare the loaded objects with the uploaded objects."""
        left = orphans.left(self.rig, self.pipelines)
        verdicts = {p.name: patiently(p.verify) for p in self.pipelines}
        seen = report.seen(self.rig, {fault.kind for fault in self.done})
        return report.Findings(
            objects=sum(p.put for p in self.pipelines),
            lost=[x for v in verdicts.values() for x in v.lost],
            duplicated=[x for v in verdicts.values() for x in v.duplicated],
            truncated=[x for v in verdicts.values() for x in v.truncated],
            orphans=left,
            unrecovered=report.unrecovered(self.done, self.pipelines),
            runs={p.name: _states(self.rig, p) for p in self.pipelines},
            seen=seen,
            unseen=report.unseen(seen, self.done),
            notes=orphans.until_later(self.rig, self.pipelines),
        )


def _states(made: Rig, pipeline: Pipeline) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in patiently(lambda: made.api().runs(pipeline.dag)):
        found[run["state"]] = found.get(run["state"], 0) + 1
    return found


if __name__ == "__main__":
    raise SystemExit(main())
