"""The driver: it puts objects and does faults at the same time, then compares the loaded objects with those put."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from storeside.events.queue import Queue
from tests.chaos import faults, orphans, report
from tests.chaos.patience import PATIENCE_SECONDS, patiently
from tests.chaos.pipelines import Events, Loads, Pipeline, Speech
from tests.chaos.rig import Rig

REDRIVE = "sqs_redrive"
SHARES = {"speech": 0.2, "loads": 0.4, "events": 0.4}
# The part of the faults after which all objects have been put, so that the last faults still hit work.
_LAST_PUT = 0.97
# Number of faults by which objects may be put ahead of their faults.
_LEAD = 8
# Faults that last, or wait for a process to hit.
_AT_ONCE = 24


@dataclass(frozen=True)
class Work:
    """The number of faults and objects within these minutes; with 0 faults, both continue for all of the minutes."""

    faults: int
    objects: int
    minutes: float


class Chaos:
    """One run of the driver: `prepare`, then `work` once or several times, then `prove`.

    `gap` is the mean number of seconds between faults; `only` selects kinds of faults, see `faults.sequence`.
    """

    def __init__(self, made: Rig, seed: int, gap: float, only: str = "") -> None:
        self.rig, self.gap, self.only = made, gap, only
        self.chance = random.Random(seed)  # noqa: S311
        self.done: list[faults.Fault] = []
        self.speech = Speech(made, "speech", "speech_pipeline", self.allowed)
        self.loads = Loads(made, "loads", "s3_to_clickhouse", self.allowed)
        self.events = Events(made, "events", "s3_events_to_clickhouse", self.allowed)
        self.pipelines: list[Pipeline] = [self.speech, self.loads, self.events]
        self.wanted = Work(0, 0, 0.0)
        self.began = self.deadline = self._met_at = 0.0
        self._before = 0
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the buckets and tables of the pipelines."""
        for pipeline in self.pipelines:
            pipeline.prepare()

    def allowed(self) -> float:
        """Return which share of the objects of this work may have been put by now."""
        now = time.monotonic()
        if now > self.deadline:
            return 0.0
        if not self.wanted.faults:
            return (now - self.began) / (self.wanted.minutes * 60)
        # an idle pipeline gives a fault nothing to hit, and the last faults must also hit something
        done = len(self.done) - self._before + min((now - self._met_at) / (4 * self.gap), _LEAD)
        return min(1.0, 0.03 + done / (self.wanted.faults * _LAST_PUT))

    def work(self, wanted: Work) -> None:
        """Put objects and do faults at the same time, until all faults are done and all objects in place."""
        self.wanted, self._before = wanted, len(self.done)
        self.began = self._met_at = time.monotonic()
        self.deadline = self.began + wanted.minutes * 60
        for pipeline in self.pipelines:
            pipeline.more(round(wanted.objects * SHARES[pipeline.name]))
        producers = [threading.Thread(target=p.produce, daemon=True) for p in self.pipelines]
        others = [threading.Thread(target=p.watch, daemon=True) for p in self.pipelines]
        others.append(threading.Thread(target=self.loads.drive, daemon=True))
        for thread in (*producers, *others):
            thread.start()
        try:
            self._faults()
        finally:
            faults.resume(self.rig)
        if time.monotonic() > self.deadline:
            for pipeline in self.pipelines:
                pipeline.stopped.set()
        for thread in producers:
            thread.join(2 * PATIENCE_SECONDS)
        for pipeline in self.pipelines:
            pipeline.count = pipeline.put
        self._sweep()
        for thread in others:
            thread.join(2 * PATIENCE_SECONDS)

    def _faults(self) -> None:
        known = faults.kinds(self.rig)
        wanted = self.wanted.faults or round(self.wanted.minutes * 60 / self.gap)
        # more faults than requested, because the last faults of a run may hit nothing
        waiting = faults.sequence(known, wanted + len(known) // 2, self.chance, self.only)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while time.monotonic() < self.deadline:
                if self.wanted.faults and len(self.done) - self._before >= self.wanted.faults:
                    break
                time.sleep(self.chance.expovariate(1 / self.gap))
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
            runs={p.name: states(self.rig, p) for p in self.pipelines},
            seen=seen,
            unseen=report.unseen(seen, self.done),
            notes=orphans.until_later(self.rig, self.pipelines),
        )


def states(made: Rig, pipeline: Pipeline) -> dict[str, int]:
    """Return how many runs the pipeline's DAG has in each state."""
    found: dict[str, int] = {}
    for run in patiently(lambda: made.api().runs(pipeline.dag)):
        found[run["state"]] = found.get(run["state"], 0) + 1
    return found
