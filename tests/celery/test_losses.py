"""A worker, a triggerer and a scheduler are killed with their disks while all pipelines run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack.airflow.api import FINAL, AirflowApi
from storeside.stack.airflow.celery import ADDRESSES
from storeside.stack.settings import Stack
from storeside.stack.supervision.processes import kill, marked
from storeside.transfer.run.preparation import BRIEF_OBJECTS
from tests.e2e.test_s3_events import Arrivals, arrivals  # noqa: F401 (fixture)
from tests.e2e.test_s3_to_clickhouse import Loader
from tests.e2e.test_speech_pipeline import Pipeline, below, corpus, pipeline  # noqa: F401 (fixtures)
from tests.e2e.test_transform_bucket import TEXTS
from tests.support import also_in_forms, process, put, read, sizes, unique, until

LOAD, TRANSFORM, INGEST = "s3_to_clickhouse", "transform_bucket", "ingest"
pytestmark = [pytest.mark.timeout(900), pytest.mark.dags(LOAD, TRANSFORM, INGEST)]
RUN_SECONDS = 400
RECORDINGS, EVENTS, TEXT_COUNT, ROWS = 30, 40, 60, 1000
WORKERS = ("worker", "worker-2")
NAMES = {address: name for name, address in ADDRESSES.items()}


@pytest.fixture(scope="module")
def api(several: Stack, api: AirflowApi) -> Iterator[AirflowApi]:
    with also_in_forms(api, transformers=["text_facts"]):
        yield api


def slow_table(loader: Loader, seconds: float) -> None:
    """Create a table that receives each row only after some time."""
    slow = f"slow UInt8 MATERIALIZED sleepEachRow({seconds})"
    loader.clickhouse.command(f"CREATE TABLE {loader.table} (n UInt32, {slow}) ENGINE = MergeTree ORDER BY n")


@dataclass
class Work:
    """The runs of one round: a brief and a deferred load, a transform, a copy, two queues of events."""

    api: AirflowApi
    brief: Loader
    deferred: Loader
    pipeline: Pipeline
    arrivals: Arrivals
    prefix: str = field(default_factory=lambda: unique("event"))
    texts: Bucket = field(default_factory=lambda: Bucket("ais", unique("texts")))
    facts: Bucket = field(default_factory=lambda: Bucket("ais", unique("facts")))
    copy: Bucket = field(default_factory=lambda: Bucket("ais", unique("copied")))
    copied: dict[str, bytes] = field(default_factory=dict)
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)

    def start(self, aistore: Any, recordings: list[bytes]) -> None:
        """Put the objects, which starts the runs of events, and trigger the other runs."""
        s3 = self.brief.s3
        for n in range(8):
            rows = b"\n".join(b"%d" % (n * ROWS + row) for row in range(ROWS))
            s3.put_object(Bucket=self.brief.bucket, Key=f"{n}.csv", Body=b"n\n" + rows)
        slow_table(self.brief, 0.0025)
        for n in range(BRIEF_OBJECTS + 1):
            s3.put_object(Bucket=self.deferred.bucket, Key=f"{n}.csv", Body=b"n\n%d" % n)
        slow_table(self.deferred, 0.3)
        names = sorted(TEXTS)
        put(aistore, self.texts, {f"{n:02}.txt": TEXTS[names[n % len(names)]] for n in range(TEXT_COUNT)})
        self.copied = {f"{n}": os.urandom(100_000) for n in range(40)} | {"large": os.urandom(20 << 20)}
        source = unique("copied")
        s3.create_bucket(Bucket=source)
        for key, body in self.copied.items():
            s3.put_object(Bucket=source, Key=key, Body=body)
        self.arrivals.put(self.prefix, EVENTS)
        self.pipeline.put(below(f"{self.prefix}/", [f"{n:02}.flac" for n in range(RECORDINGS)], recordings))
        self._trigger("copy", INGEST, {"source": f"s3://{source}", "destination": str(self.copy), "way": "worker"})
        facts = {"source": str(self.texts), "destination": str(self.facts), "transformer": "text_facts"}
        self._trigger("transform", TRANSFORM, {**facts, "extensions": {"txt": "json"}})
        self._trigger(
            "deferred", LOAD, {"bucket": self.deferred.bucket, "table": self.deferred.table, "format": "csv"}
        )
        self._trigger("brief", LOAD, {"bucket": self.brief.bucket, "table": self.brief.table, "format": "csv"})

    def _trigger(self, name: str, dag: str, conf: dict[str, Any]) -> None:
        self.runs[name] = dag, self.api.trigger(dag, conf)

    def tasks(self, name: str) -> list[dict[str, Any]]:
        return self.api.task_instances(*self.runs[name])

    def busy(self, kind: str) -> str:
        """Return the component of a kind that works on one of the loads; empty if there is none yet."""
        (brief,), (deferred,) = self.tasks("brief"), self.tasks("deferred")
        if kind == "worker":
            return NAMES.get(brief["hostname"], "") if brief["state"] == "running" and self.brief_reads() else ""
        if kind == "triggerer":
            job = deferred["triggerer_job"] if deferred["state"] == "deferred" else None
            return NAMES.get(job["hostname"], "") if job else ""
        return kind if {"running", "deferred"} & {brief["state"], deferred["state"]} else ""

    def brief_reads(self) -> bool:
        statement = "SELECT count() FROM system.processes WHERE position(query, '{}') > 0 AND is_initial_query"
        return bool(self.brief.query(statement.replace("{}", self.brief.bucket))[0][0])

    def finish(self) -> None:
        """Wait for the end of all runs."""
        states = {name: self.api.wait(*run, RUN_SECONDS)["state"] for name, run in self.runs.items()}
        assert set(states.values()) == {"success"}, states
        until(lambda: self.arrivals.rows(self.prefix) == (EVENTS, EVENTS), RUN_SECONDS, "rows of events", 1)
        until(lambda: self.pipeline.rows(f"{self.prefix}/") == (RECORDINGS,) * 2, RUN_SECONDS, "recordings", 1)
        until(lambda: not self.arrivals.messages() and not self.pipeline.messages(), 200, "empty queues", 1)

    def verify(self, aistore: Any) -> None:
        """Compare everything that arrived with everything that was put."""
        count = "SELECT count(), uniqExact(n) FROM {table}"
        assert self.brief.query(count) == [(8 * ROWS, 8 * ROWS)]
        assert self.deferred.query(count) == [(BRIEF_OBJECTS + 1, BRIEF_OBJECTS + 1)]
        assert sizes(aistore, self.copy) == {key: len(body) for key, body in self.copied.items()}
        assert read(aistore, self.copy, "large") == self.copied["large"]
        facts = sizes(aistore, self.facts)
        assert set(facts) == {f"{n:02}.json" for n in range(TEXT_COUNT)}
        assert 0 not in facts.values()
        assert self.arrivals.rows(self.prefix) == (EVENTS, EVENTS)
        assert self.pipeline.rows(f"{self.prefix}/") == (RECORDINGS, RECORDINGS)


def lose(stack: Stack, name: str) -> None:
    """Kill all processes of a component and delete its files, as if its machine was gone; a new one starts."""
    kill(marked(stack.state, name))
    home = stack.state / "airflow" / name
    for folder in ("logs", "tmp", "work"):
        for path in (home / folder).iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["triggerer", "scheduler", "worker"])
def test_a_lost_machine_loses_and_repeats_nothing(
    kind: str, several: Stack, api: AirflowApi, aistore: Any, s3_client: Any, clickhouse: Any,
    pipeline: Pipeline, arrivals: Arrivals, corpus: list[bytes],  # noqa: F811
) -> None:  # fmt: skip
    brief, deferred = (Loader(several, s3_client, clickhouse) for _ in range(2))
    work = Work(api, brief, deferred, pipeline, arrivals)
    work.start(aistore, corpus)
    victim = until(lambda: work.busy(kind), 120, f"busy {kind}")
    old = process(several, victim)
    lose(several, victim)
    work.finish()
    work.verify(aistore)
    assert process(several, victim).pid != old.pid
    (brief_task,), (deferred_task,) = work.tasks("brief"), work.tasks("deferred")
    attempts = {"brief": brief_task["try_number"], "deferred": deferred_task["try_number"]}
    # Only the loss of a worker ends an attempt: another triggerer or scheduler takes the work of a lost one over.
    assert attempts == {"brief": 2 if kind == "worker" else 1, "deferred": attempts["deferred"]}
    assert kind == "worker" or attempts["deferred"] == 1
    log = api.log(*work.runs["deferred"], "load", deferred_task["try_number"])
    assert "by pull" in log, "the part before the task was deferred"
    assert "Done. Returned value was" in log or "loaded" in log, "the part of the worker that resumed it"


def test_logs_of_running_and_deferred_tasks_are_read_from_their_hosts(
    several: Stack, api: AirflowApi, s3_client: Any, clickhouse: Any
) -> None:
    loader = Loader(several, s3_client, clickhouse)
    slow_table(loader, 0.3)
    for n in range(BRIEF_OBJECTS + 1):
        s3_client.put_object(Bucket=loader.bucket, Key=f"{n}.csv", Body=b"n\n%d" % n)
    run = api.trigger(LOAD, {"bucket": loader.bucket, "table": loader.table, "format": "csv"})
    hosts: dict[str, Any] = {}

    def seen() -> bool:
        (task,) = api.task_instances(LOAD, run)
        assert task["state"] not in FINAL, hosts
        port = {"running": "airflow_logs", "deferred": "airflow_trigger_logs"}.get(task["state"], "")
        log = api.log(LOAD, run, "load") if port else ""
        host = task["hostname"] if task["state"] == "running" else (task["triggerer_job"] or {}).get("hostname")
        if port and f"http://{host}:{several.ports[port]}/log/" in log:
            hosts[task["state"]] = host
        return set(hosts) == {"running", "deferred"}

    until(seen, 120, "logs of a worker and a triggerer", interval=0.05)
    assert hosts["running"] in {ADDRESSES[name] for name in WORKERS}
    assert api.wait(LOAD, run, RUN_SECONDS)["state"] == "success"


def test_both_workers_ran_tasks_and_kept_their_files_apart(several: Stack, api: AirflowApi) -> None:
    hosts = {
        task["hostname"]
        for dag in (LOAD, TRANSFORM, INGEST)
        for run in api.runs(dag)
        for task in api.task_instances(dag, run["dag_run_id"])
    }
    assert {ADDRESSES[name] for name in WORKERS} <= hosts
    for name in ADDRESSES:
        others = [several.state / "airflow" / other for other in ADDRESSES if other != name]
        for found in marked(several.state, name):
            opened = [file.path for file in found.open_files()]
            assert not [path for path in opened for other in others if path.startswith(f"{other}/")], name
            listening = [c.laddr.ip for c in found.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert all(address.startswith("127.0.0.") for address in listening), (name, listening)
    left = [path for name in WORKERS for path in (several.state / "airflow" / name / "work").iterdir()]
    assert left == [], "tasks leave no files"
