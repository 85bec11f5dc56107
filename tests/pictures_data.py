"""Data for the pictures of the pages, on a running stack: ``python -m tests.pictures_data``. It takes some minutes.

Everything that the pages show comes from real runs: the speech pipeline, loads and events with objects that fail and
are fixed, a copy that fails at once, a benchmark, and an ETL that works while the pictures are taken.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from typing import Any

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.stack import authn, demo
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, default_folder
from tests.support import allow, allow_in_forms, put, small_spec

RECORDINGS, OBJECTS, BURST = 80, 12, 30


def main() -> None:
    stack = Stack.load(default_folder())
    if stack is None:
        raise SystemExit("there is no stack: start it with 'make up'")
    allow(default_folder())
    api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
    allow_in_forms(
        api, buckets=["s3://recordings", "s3://trips", "s3://tables", "s3://payroll", "ais://*"], queues=["*-events"],
        connections=["*_default"], tables=["analytics.*"], databases=["analytics"],
    )  # fmt: skip
    client = s3.of_stack("s3", stack)
    print(f"speech: {len(demo.run(stack, None, RECORDINGS))} figures", flush=True)
    corpus(api)
    load(api, client)
    events(stack, api, client)
    start(api, "ingest", {"source": "s3://payroll", "way": "worker"})
    start(api, "ingest", {"source": "s3://recordings", "destination": "ais://ingested", "way": "copy"})
    start(
        api, "backend_benchmark",
        {"backends": ["ais://bench-pages"], "rounds": 2, "megabytes": 4, "tune_seconds": 1, "tune_megabytes": 40},
    )  # fmt: skip
    work(stack)


def start(api: AirflowApi, dag: str, conf: Mapping[str, Any]) -> None:
    """Run a DAG and wait for its end."""
    api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
    run = api.trigger(dag, dict(conf))
    print(f"{dag}: {api.wait(dag, run, 300)['state']}", flush=True)


def corpus(api: AirflowApi) -> None:
    """Cut the recordings into utterances, of which a suite leaves some out."""
    between = "expect_column_values_to_be_between"
    expectations = [
        {"type": between, "kwargs": {"column": column, **limits}, "description": description}
        for column, limits, description in (
            ("duration_seconds", {"min_value": 2, "max_value": 20}, "duration is 2 to 20 s"),
            ("snr_db", {"min_value": 20}, "signal-to-noise ratio is at least 20 dB"),
            ("speech_probability", {"min_value": 0.9}, "speech is certain"),
            ("bandwidth_hz", {"min_value": 5000}, "bandwidth is more than a telephone's"),
        )
    ]
    value = json.dumps({"suite": {"name": "utterances", "expectations": expectations}})
    api.request("POST", "variables", json={"key": "storeside_speech_utterances", "value": value})
    start(api, "speech_utterances", {"source": "s3://recordings", "table": "analytics.utterances"})


def trips(seed: int, rows: int = 2000) -> bytes:
    """Return a table of taxi rides as CSV."""
    chance = random.Random(seed)  # noqa: S311
    lines = [f"{seed}{n:05},{chance.randint(1, 263)},{chance.uniform(3, 80):.2f}" for n in range(rows)]
    return "\n".join(["trip,zone,fare", *lines]).encode()


def load(api: AirflowApi, client: Any) -> None:
    """Load objects of which two fail; a later run loads one of them."""
    client.create_bucket(Bucket="trips")
    for n in range(OBJECTS):
        client.put_object(Bucket="trips", Key=f"2026/trips-{n:02}.csv", Body=trips(n))
    for name in ("2026/trips-12.csv.gz", "2026/trips-13.csv.gz"):
        client.put_object(Bucket="trips", Key=name, Body=b"no gzip")
    conf = {"bucket": "trips", "table": "analytics.trips", "order_by": "trip", "on_failure": "report"}
    start(api, "s3_to_clickhouse", conf)
    client.delete_object(Bucket="trips", Key="2026/trips-12.csv.gz")
    client.put_object(Bucket="trips", Key="2026/trips-14.csv", Body=trips(14))
    start(api, "s3_to_clickhouse", {**conf, "retry_failed": True})


def events(stack: Stack, api: AirflowApi, client: Any) -> None:
    """Announce objects to the queue of the bucket `tables`; some cannot be loaded and become dead letters."""
    api.request("PATCH", "dags/s3_events_to_clickhouse", json={"is_paused": False})
    for n in range(BURST):
        bad = n % 10 == 7
        body = b"no gzip" if bad else trips(100 + n, 200)
        client.put_object(Bucket="tables", Key=f"live/part-{n:03}.csv{'.gz' if bad else ''}", Body=body)
    start(
        api, "s3_events_to_clickhouse",
        {"queue": "tables-events", "bucket": "tables", "table": "analytics.live_trips", "order_by": "trip"},
    )  # fmt: skip
    time.sleep(5)  # the picture shows a run that has begun


def work(stack: Stack) -> None:
    """Begin a slow transform, as a task does: the pictures are taken while it runs."""
    client = authn.cluster(stack).client()
    source, destination = Bucket("ais", "interviews"), Bucket("ais", "interviews-upper")
    destination.handle(client).create(exist_ok=True)
    put(client, source, {f"{n:04}.txt": b"spoken words" for n in range(3000)})
    spec = small_spec("slow", environment={"SECONDS": "0.4"})
    api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
    api.request("PATCH", "dags/ingest", json={"is_paused": True})  # its tasks wait
    run = api.trigger("ingest", {"source": str(source), "destination": str(destination)})
    names = etls.ensure(client, spec)
    job = source.handle(client).transform(names[0], destination.handle(client), timeout="1m", num_workers=1)
    detail = {
        "job": job,
        "objects": 3000,
        "started": time.time(),
        "etls": names,
        "aistore_conn_id": "aistore_default",
    }
    row = {
        "run_id": f"ingest/{run}", "dag_id": "ingest", "task_id": "copy", "kind": "transform", "state": "running",
        "source": str(source), "destination": str(destination), "detail": json.dumps(detail),
    }  # fmt: skip
    Ledger(demo.clickhouse_client(stack)).record_run(row)
    print(f"ETL {names[0]}, job {job}", flush=True)


if __name__ == "__main__":
    main()
