"""The DAGs that copy objects into the cluster and compare backends, on the whole embedded stack."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import Stack
from tests.support import read, sizes, unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

INGEST, BENCHMARK = "ingest", "backend_benchmark"
pytestmark = pytest.mark.dags(INGEST, BENCHMARK)


@pytest.mark.essential
def test_objects_come_in_through_the_worker_and_by_prefetch(
    api: AirflowApi, airflow: Stack, s3_client: S3Client, aistore: Any, clickhouse: Any
) -> None:
    source, to = unique("ingest"), unique("ingested")
    s3_client.create_bucket(Bucket=source)
    bodies = {f"in/{n}": os.urandom(1000) for n in range(3)} | {"in/large": os.urandom(17 << 20)}
    for key, body in bodies.items():
        s3_client.put_object(Bucket=source, Key=key, Body=body)
    s3_client.put_object(Bucket=source, Key="in/bad//name", Body=b"x")
    measured = api.trigger(
        BENCHMARK,
        {
            "backends": [f"ais://{to}-bench"], "rounds": 1, "megabytes": 2, "tune_seconds": 1, "tune_megabytes": 40,
            "chart": f"s3://aws_default@{source}/chart.png",
        },
    )  # fmt: skip
    prefetched = api.trigger(INGEST, {"source": f"s3://{source}", "way": "prefetch", "prefix": "in/l"})
    worker = api.trigger(
        INGEST, {"source": f"s3://{source}", "destination": f"ais://{to}", "way": "worker", "prefix": "in/"}
    )
    assert api.wait(INGEST, worker)["state"] == "success"
    assert sizes(aistore, Bucket("ais", to)) == {key: len(body) for key, body in bodies.items()}
    assert read(aistore, Bucket("ais", to), "in/large") == bodies["in/large"]
    log = api.log(INGEST, worker, "copy_through_worker")
    assert "4 objects copied, 1 failed" in log
    assert "empty component" in log
    assert airflow.secrets["s3_secret_key"] not in log
    assert api.wait(INGEST, prefetched)["state"] == "success"
    value = api.xcom(INGEST, prefetched, "prefetch")
    summary = json.loads(value) if isinstance(value, str) else value
    assert (summary["done"], summary["failed"]) == (1, 0)
    assert api.wait(BENCHMARK, measured)["state"] == "success"
    rows = clickhouse.query(
        "SELECT operation, count() FROM storeside.backend_benchmark WHERE backend = {b:String} GROUP BY 1 ORDER BY 1",
        parameters={"b": f"ais://{to}-bench"},
    ).result_rows
    assert [tuple(row) for row in rows] == [
        ("get cold", 1), ("put few parts", 1), ("put many parts", 1), ("put single", 1),
    ]  # fmt: skip
    assert s3_client.get_object(Bucket=source, Key="chart.png")["Body"].read().startswith(b"\x89PNG")
    tuned = clickhouse.query(
        "SELECT DISTINCT direction FROM storeside.multipart_settings WHERE endpoint = {e:String} ORDER BY 1",
        parameters={"e": f"ais {airflow.url('ais_proxy')}/s3"},
    ).result_rows
    assert [row[0] for row in tuned] == ["put", "get"]
