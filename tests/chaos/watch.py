"""Measures the stack of a soak: its processes, and what ClickHouse, AIStore and Airflow's database hold."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from storeside.aistore import lock
from storeside.stack import authn, demo
from storeside.stack.airflow.airflow import DATABASE_FILE
from storeside.stack.settings import Stack
from storeside.transfer.base.staging_tables import STAGING
from tests.chaos import orphans
from tests.chaos.driver import Chaos
from tests.chaos.leaks import PLANS, Counts, Process, Sample
from tests.chaos.patience import patiently
from tests.chaos.rig import Rig

SAMPLE_SECONDS = 60.0


class Watch:
    """Takes a sample every minute, and keeps them in a file too."""

    def __init__(self, made: Rig, chaos: Chaos, path: Path) -> None:
        self.rig, self.chaos, self.path = made, chaos, path
        self.samples: list[Sample] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(SAMPLE_SECONDS)

    def at_rest(self) -> Sample:
        """Return a sample with all counts, once the pipelines have settled."""
        for left in orphans.settled(self.rig, self.chaos.pipelines):
            print(f"at rest: {left}", flush=True)
        counted = patiently(lambda: counts(self.rig.stack))
        sample = replace(self._sample(), counts=counted)
        self._keep(sample)
        return sample

    def _run(self) -> None:
        while not self._ends.wait(SAMPLE_SECONDS):
            sample = self._sample()
            with suppress(Exception):
                sample = replace(sample, counts=counts(self.rig.stack))
            self.samples.append(sample)
            self._keep(sample)

    def _sample(self) -> Sample:
        return Sample(time.time(), sum(p.put for p in self.chaos.pipelines), tuple(processes(self.rig)))

    def _keep(self, sample: Sample) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")


def processes(made: Rig) -> Iterator[Process]:
    """Yield the processes of all components and those below them."""
    pids: dict[str, int] = {}
    with suppress(Exception):  # the supervisor does not answer
        pids = made.pids()
    for name, pid in pids.items():
        with suppress(psutil.Error):
            top = psutil.Process(pid)
            for process in (top, *top.children(recursive=True)):
                with suppress(psutil.Error):
                    memory, handles = process.memory_info().rss, process.num_fds()
                    yield Process(name, process.pid, process.create_time(), memory, handles)


def counts(stack: Stack) -> Counts:
    """Count the state of ClickHouse, AIStore and Airflow's database."""
    with closing(demo.clickhouse_client(stack)) as client:

        def query(statement: str) -> list[Sequence[Any]]:
            return list(client.query(statement).result_rows)

        ((staging,),) = query(f"SELECT count() FROM system.tables WHERE database = '{STAGING}'")
        tables = query(
            "SELECT name, engine = 'ReplacingMergeTree' FROM system.tables"
            " WHERE database = 'storeside' AND engine LIKE '%MergeTree' ORDER BY name"
        )
        final = {name: " FINAL" if replaces else "" for name, replaces in tables if name not in PLANS}
        rows = {name: query(f"SELECT count() FROM storeside.{name}{end}")[0][0] for name, end in final.items()}
        held = query("SELECT table, count() FROM system.parts WHERE database = 'storeside' AND active GROUP BY 1")
        plans = {
            name: query(f"SELECT uniqExact({column}) FROM storeside.{name}")[0][0] for name, column in PLANS.items()
        }
        parts = {name: count for name, count in held if name not in PLANS}
    cluster = authn.cluster(stack).client().cluster()
    locks = [bucket.name for bucket in cluster.list_buckets() if bucket.name.startswith(lock.PREFIX)]
    things = {f"tables in {STAGING}": staging, "locks in AIStore": len(locks), "ETLs": len(cluster.list_etls())}
    database = f"file:{stack.state / 'airflow' / DATABASE_FILE}?mode=ro"
    with closing(sqlite3.connect(database, uri=True, timeout=20)) as connection:
        tasks, xcoms, failed = (
            connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0]
            for what in ("task_instance", "xcom", "dag_run WHERE state = 'failed'")
        )
    return Counts(things, plans, rows, parts, tasks, xcoms, failed)
