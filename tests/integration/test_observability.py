"""Airflow's metrics, assets and OpenLineage events of a movement: a real run, a real StatsD listener."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.airflow import airflow as stack_airflow
from storeside.stack.settings import CHECKOUT, HOST, SOURCES, Stack, default_folder
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

IMAGE = CHECKOUT / "include" / "storeside" / "stack" / "images" / "airflow.txt"


@dataclass
class Seen:
    """The events and metrics of a run of the DAG in `tests/dags/observed.py`."""

    bucket: str
    table: str
    state: str
    events: dict[str, tuple[str, str, dict[str, Any]]]
    packets: dict[str, str]
    lineage: dict[str, dict[str, Any]]
    said: str
    clickhouse: str


def packages() -> Path:
    """Return a folder with the Airflow image's packages for observability that this environment lacks."""
    folder = default_folder() / "cache" / "observability"
    lines = IMAGE.read_text().partition("# Observability")[2].splitlines()[1:]
    pinned = list(itertools.takewhile(lambda line: line and not line.startswith("#"), lines))
    stamp = folder / "pinned.txt"
    if not stamp.exists() or stamp.read_text().splitlines() != pinned:
        shutil.rmtree(folder, ignore_errors=True)
        own = default_folder() / "uv" / "bin" / "uv"
        uv = str(own) if own.exists() else shutil.which("uv")
        assert uv, f"uv is needed and is not at {own}: run 'make install'"
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder)]
        subprocess.run([*command, *pinned], check=True)
        stamp.write_text("\n".join(pinned))
    return folder


@pytest.fixture(scope="module")
def seen(stack: Stack, clickhouse: Any, s3_client: S3Client, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    bucket, table = unique("observed"), "data." + unique("observed").replace("-", "_")
    for name in (bucket, f"{bucket}-copy"):
        s3_client.create_bucket(Bucket=name)
    s3_client.put_object(Bucket=bucket, Key="in/a.csv", Body=b"n,x\n1,a\n2,b\n")
    s3_client.put_object(Bucket=bucket, Key="in/b.csv", Body=b"n,x\n3,c\n4\n")
    s3_client.put_object(Bucket=bucket, Key="in/\u00fc#.parquet", Body=b"PAR1")
    home = tmp_path_factory.mktemp("observed")
    (home / "plugins").mkdir()
    shutil.copy(stack_airflow.template(stack.cache), home / stack_airflow.DATABASE_FILE)
    transport = {"type": "file", "log_file_path": str(home / "lineage.json"), "append": True}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        statsd.bind(("127.0.0.1", 0))
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            **stack_airflow.environment(stack),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / stack_airflow.DATABASE_FILE}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "tests" / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_PORT": str(statsd.getsockname()[1]),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
            "PYTHONPATH": f"{SOURCES}:{packages()}",
            "BUCKET": bucket,
            "TABLE": table,
        }
        command = [sys.executable, "tests/dags/observed.py"]
        done = subprocess.run(
            command, env=variables, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        statsd.setblocking(False)
        packets = {}
        while True:
            try:
                name, _, value = statsd.recv(65_536).decode().partition(":")
            except BlockingIOError:
                break
            packets[name] = value
    told = json.loads(done.stdout.rpartition("EVENTS ")[2].splitlines()[0])
    events = {task: (name, uri, extra) for task, name, uri, extra in told["events"]}
    written = [json.loads(line) for line in (home / "lineage.json").read_text().splitlines()]
    lineage = {
        event["job"]["name"]: event for event in written if event["eventType"] == "COMPLETE" and event["outputs"]
    }
    server = f"{HOST}:{stack.ports['clickhouse_http']}"
    return Seen(bucket, table, told["state"], events, packets, lineage, done.stdout, server)


def test_metrics_count_what_was_moved(seen: Seen) -> None:
    assert seen.state == "success"
    ours = {}
    for name, value in seen.packets.items():
        metric, *tags = name.split(",")
        if metric.startswith("airflow.storeside."):
            task = dict(tag.split("=") for tag in tags)["task_id"]
            ours[task, metric.removeprefix("airflow.storeside.")] = value
    assert float(ours.pop(("load", "load.duration")).partition("|ms")[0]) > 0
    assert float(ours.pop(("copy", "copy.duration")).partition("|ms")[0]) > 0
    assert ours == {
        ("load", "load.objects"): "2|c", ("load", "load.failed"): "1|c", ("load", "load.rows"): "3|c",
        ("load", "load.rejected"): "1|c", ("load", "load.bytes_in"): "22|c", ("load", "load.bytes_out"): "0|c",
        ("copy", "copy.objects"): "3|c", ("copy", "copy.failed"): "0|c", ("copy", "copy.bytes_in"): "26|c",
        ("copy", "copy.bytes_out"): "26|c",
    }  # fmt: skip


def test_assets_are_the_destinations(seen: Seen) -> None:
    name, uri, extra = seen.events["load"]
    assert name == uri == f"clickhouse://{seen.table.replace('.', '/')}"
    assert (extra["source"], extra["done"], extra["failed"], extra["rows"]) == (f"s3://{seen.bucket}/in/", 2, 1, 3)
    name, uri, extra = seen.events["copy"]
    assert (name, uri) == ("copies", f"s3://{seen.bucket}-copy/")
    assert (extra["source"], extra["done"], extra["bytes_in"]) == (f"s3://{seen.bucket}", 3, 26)


def test_openlineage_has_both_ends(seen: Seen) -> None:
    (source,), (table,) = seen.lineage["observed.load"]["inputs"], seen.lineage["observed.load"]["outputs"]
    assert (source["namespace"], source["name"]) == (f"s3://{seen.bucket}", "in/")
    assert (source["inputFacets"]["inputStatistics"]["fileCount"], table["name"]) == (2, seen.table)
    assert table["namespace"] == f"clickhouse://{seen.clickhouse}"
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 3
    (copied,) = seen.lineage["observed.copy"]["outputs"]
    assert (copied["namespace"], copied["name"]) == (f"s3://{seen.bucket}-copy", "/")
    assert copied["outputFacets"]["outputStatistics"]["size"] == 26


def test_lines_about_objects_have_their_names(seen: Seen) -> None:
    assert "object=in/\u00fc#.parquet" in seen.said
