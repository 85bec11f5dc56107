"""State that must not be left after all pipelines: jobs, pods, tables, plans, uploads, files, leases, messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from storeside.events.queue import Queue
from storeside.stack import authn
from storeside.stack.servers import s3
from storeside.transfer.base.staging_tables import BROKEN, STAGING
from tests.chaos.pipelines import Pipeline
from tests.chaos.rig import Rig
from tests.support import etl_servers

# Seconds after which the next process has removed the state of a killed one, and all time-outs have ended.
SETTLE_SECONDS = 240.0
QUEUES = (f"{s3.BUCKET}-events", f"{s3.TABLES}-events")
# Work files of AIStore, by the folder that they are in; their names end with their target's process, in hexadecimal
# digits (fs/content.go). Its own cleanup takes those of killed targets, when they are a quarter of an hour old:
# space.dont_cleanup_time. Files that a running target loses track of stay until its restart.
_WORK = "%wk"
CLEANUP_SECONDS = 960.0
Look = Callable[[Rig, list[Pipeline]], list[str]]


def left(rig: Rig, pipelines: Iterable[Pipeline]) -> list[str]:
    """Return the state that is left after the time in which all processes must have cleaned up."""
    some = list(pipelines)
    began = time.monotonic()
    found = settled(rig, some)
    if _work_files(rig, some):
        print("waiting for AIStore's cleanup of the work files of killed targets", flush=True)
        time.sleep(max(0.0, began + CLEANUP_SECONDS - time.monotonic()))
        authn.cluster(rig.stack).client().job(job_kind="cleanup-store").start()
    return found + _settled(rig, some, [_work_files])


def settled(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    """Return the state that is left when the pipelines rest, without work files of AIStore; waits until none is."""
    return _settled(
        rig, pipelines, [_runs, _tables, _statements, _batches, _messages, _uploads, _jobs, _pods, _files]
    )


def until_later(rig: Rig, pipelines: Iterable[Pipeline]) -> list[str]:
    """Return state that is removed later: by ClickHouse after days, a load after an hour, AIStore after a restart."""
    statements = [
        f"SELECT 'broken locks', count() FROM system.tables WHERE database = '{STAGING}'"
        f" AND startsWith(name, '{BROKEN}') HAVING count() > 0"
    ] + [
        f"SELECT '{table}', count() FROM storeside.{table} HAVING count() > 0"
        for table in ("load_plan", "load_listings", "event_leases")
    ]
    some = list(pipelines)
    found = [f"{count} of {table}" for statement in statements for table, count in _query(some, statement)]
    try:
        return found + [f"{text}, of a running target" for text in _named(rig, _work(rig, of_killed=False))]
    except OSError as e:  # AIStore may just be removing a folder
        return [*found, f"work files of running targets: not known, {e}"]


def _settled(rig: Rig, pipelines: list[Pipeline], looks: list[Look]) -> list[str]:
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = []
        for look in looks:
            try:
                found += look(rig, pipelines)
            except Exception as e:
                found.append(f"not known, {look.__name__.strip('_')}: {e}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(2)


def _runs(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    api = rig.api()
    return [
        f"run {run['dag_run_id']} of {dag} is {run['state']}"
        for dag in sorted({p.dag for p in pipelines})
        for state in ("queued", "running")
        for run in api.runs(dag, state=state)
    ]


def _query(pipelines: list[Pipeline], statement: str) -> list[tuple[Any, ...]]:
    return pipelines[0].query(statement)


def _tables(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    tables = _query(
        pipelines,
        f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND NOT startsWith(name, '{BROKEN}')",
    )
    return [f"table {STAGING}.{name}" for (name,) in tables]


def _statements(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    found = _query(pipelines, "SELECT query_id FROM system.processes WHERE startsWith(query_id, 'storeside-')")
    return [f"statement {name}" for (name,) in found]


def _batches(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    statement = (
        "SELECT batch, toString(state), run_id FROM storeside.event_batches FINAL WHERE state IN ('open', 'taken')"
    )
    return [f"lease of batch {row}" for row in _query(pipelines, statement)]


def _messages(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    found = []
    for name in QUEUES:
        queue = Queue.find(pipelines[0].sqs, name)
        for one in (queue, queue.dead_letters):
            depth = one.depth()
            if depth.visible or depth.in_flight or depth.delayed:
                found.append(f"messages of {one.name}: {depth}")
    return found


def _uploads(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    client = pipelines[0].s3
    return [
        f"multipart upload of s3://{p.bucket}/{upload['Key']}"
        for p in pipelines
        for upload in client.list_multipart_uploads(Bucket=p.bucket).get("Uploads", [])
    ]


def _jobs(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    running = authn.cluster(rig.stack).client().cluster().list_running_jobs()
    return [f"AIStore job {job}" for job in running if not job.startswith("etl-inline")]


def _pods(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    client = authn.cluster(rig.stack).client()
    etls = {etl.id: etl.stage for etl in client.cluster().list_etls()}
    found = [f"ETL {name} is {stage}" for name, stage in etls.items() if stage.lower() != "running"]
    for server in etl_servers(rig.stack):
        pod = server.environ().get("HOSTNAME", "")
        if not any(pod.startswith(name) for name in etls):
            found.append(f"pod {pod} without an ETL")
    return found


def _files(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    return _named(rig, (rig.stack.state / "clickhouse" / "tmp").rglob("*"))


def _work_files(rig: Rig, pipelines: list[Pipeline]) -> list[str]:
    return _named(rig, _work(rig, of_killed=True))


def _work(rig: Rig, *, of_killed: bool) -> list[Path]:
    running = {f".{pid:x}" for name, pid in rig.pids().items() if name.startswith("ais-target")}
    files = (rig.stack.state / "aistore" / "data").rglob("*")
    return [path for path in files if _WORK in path.parts and (path.suffix not in running) == of_killed]


def _named(rig: Rig, paths: Iterable[Path]) -> list[str]:
    return [f"file {path.relative_to(rig.stack.state)}" for path in paths if path.is_file()]
