"""A user who may trigger a DAG tries to use connections, buckets and queues that its form does not offer (finding 7).

The requests go to Airflow's API, past the form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import requests

from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import Stack
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

SECRET = b"name,salary\nada,1\n"
DAGS = ("ingest", "s3_to_clickhouse", "sqs_redrive", "cluster_throughput", "check_connections", "backend_benchmark")
pytestmark = pytest.mark.dags(*DAGS)


@pytest.fixture(scope="module")
def payroll(airflow: Stack, api: AirflowApi, s3_client: S3Client) -> str:
    """A bucket, and a connection to it, that no list names; Airflow's connections reach both."""
    s3_client.create_bucket(Bucket="payroll")
    s3_client.put_object(Bucket="payroll", Key="2026.csv", Body=SECRET)
    connection = {
        "connection_id": "payroll_s3",
        "conn_type": "aws",
        "login": airflow.secrets["s3_access_key"],
        "password": airflow.secrets["s3_secret_key"],
        "extra": json.dumps({"region_name": "us-east-1", "endpoint_url": airflow.url("s3")}),
    }
    api.request("POST", "connections", json=connection)
    return "payroll"


def refused(api: AirflowApi, dag: str, task: str, named: str, conf: dict[str, Any]) -> None:
    """Start a run and see that its task is refused, once, with the name and what to do."""
    run = api.trigger(dag, conf)
    assert api.wait(dag, run)["state"] == "failed"
    (tried,) = [one for one in api.task_instances(dag, run) if one["task_id"] == task]
    assert (tried["state"], tried["try_number"]) == ("failed", 1)
    log = api.log(dag, run, task)
    assert f"'{named}' is not one of the" in log
    assert "Airflow Variable storeside_forms" in log


def test_a_bucket_that_is_not_listed(api: AirflowApi, payroll: str, s3_client: S3Client, aistore: Any) -> None:
    stolen = unique("stolen")
    source = {"source": f"s3://{payroll}", "destination": f"ais://{stolen}"}
    for way, task in (("copy", "copy"), ("prefetch", "prefetch"), ("worker", "copy_through_worker")):
        refused(api, "ingest", task, "s3://payroll", {**source, "way": way})
    assert stolen not in {bucket.name for bucket in aistore.cluster().list_buckets()}
    s3_client.create_bucket(Bucket=stolen)
    there = {"source": f"s3://{stolen}", "destination": f"s3://{payroll}", "way": "worker"}
    refused(api, "ingest", "copy_through_worker", "s3://payroll", there)


def test_a_connection_that_is_not_listed(api: AirflowApi, payroll: str, s3_client: S3Client) -> None:
    allowed = unique("listed")
    s3_client.create_bucket(Bucket=allowed)
    conf = {"source": f"s3://{allowed}", "destination": f"ais://{allowed}", "way": "worker"}
    refused(api, "ingest", "copy_through_worker", "payroll_s3", {**conf, "source_connection": "payroll_s3"})
    backends = {"backends": [f"s3://{allowed}@payroll_s3"], "rounds": 1, "megabytes": 1}
    refused(api, "backend_benchmark", "measure", "payroll_s3", backends)
    assert not s3_client.list_objects_v2(Bucket=allowed).get("Contents")


def test_rows_of_a_bucket_that_is_not_listed(api: AirflowApi, payroll: str, clickhouse: Any) -> None:
    table = unique("stolen").replace("-", "_")
    clickhouse.command("CREATE DATABASE IF NOT EXISTS data")
    refused(api, "s3_to_clickhouse", "load", "s3://payroll", {"bucket": payroll, "table": f"data.{table}"})
    assert not clickhouse.command(f"EXISTS TABLE data.{table}")


def test_an_object_written_to_a_bucket_that_is_not_listed(api: AirflowApi, payroll: str, s3_client: S3Client) -> None:
    chart = f"s3://aws_default@{payroll}/2026.csv.svg"
    refused(api, "cluster_throughput", "measure", "s3://payroll", {"bucket": "ais://some-where", "chart": chart})
    refused(api, "check_connections", "worker", "s3://payroll", {"bucket": payroll})
    assert [one["Key"] for one in s3_client.list_objects_v2(Bucket=payroll)["Contents"]] == ["2026.csv"]


def test_a_queue_that_is_not_listed(api: AirflowApi, sqs_client: SQSClient) -> None:
    """By its name, and by a URL that ends like a listed queue: the request is signed with Airflow's keys."""
    url = sqs_client.create_queue(QueueName="payroll-events")["QueueUrl"]
    for queue in ("payroll-events", url, "http://127.0.0.1:1/000000000000/tables-events"):
        refused(api, "sqs_redrive", "redrive", queue, {"queue": queue})


def test_a_viewer_cannot_change_the_lists(airflow: Stack, api: AirflowApi) -> None:
    viewer = AirflowApi(airflow.url("airflow"), "viewer", airflow.secrets["airflow_viewer"])
    value = {"key": "storeside_forms", "value": json.dumps({"read": ["s3://payroll"]})}
    for method, path in (("POST", "variables"), ("PATCH", "variables/storeside_forms")):
        with pytest.raises(requests.HTTPError, match="403"):
            viewer.request(method, path, json=value)


def test_control_a_listed_bucket_is_loaded(api: AirflowApi, s3_client: S3Client, clickhouse: Any) -> None:
    """Otherwise the attacks above could fail for another reason."""
    bucket, table = unique("listed"), unique("listed").replace("-", "_")
    clickhouse.command("CREATE DATABASE IF NOT EXISTS data")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="a.csv", Body=SECRET)
    run = api.trigger("s3_to_clickhouse", {"bucket": bucket, "table": f"data.{table}"})
    assert api.wait("s3_to_clickhouse", run)["state"] == "success"
    assert clickhouse.command(f"SELECT count() FROM data.{table}") == 1
