"""The upgrade of a compose stack of version 0.1.0: this version starts on its volumes and continues its work.

The images of 0.1.0 are built from the history of this checkout, under a separate tag. The tests run in the order
of this file on one project.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from storeside.sql.migrate import migrations
from storeside.stack import demo
from storeside.stack.airflow.api import FINAL, AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT
from tests.containers.conftest import Figures
from tests.containers.project import BUILD_SECONDS, Project, prepare, remove
from tests.containers.test_compose import DAG, RUN_SECONDS, STEP, clickhouse, run_of, s3_of, upload
from tests.previous import unpack
from tests.support import until

pytestmark = pytest.mark.timeout(3600)

# Version 0.1.0 has one ClickHouse user, no AuthN, and ETLs in AIStore's container.
TAG = "previous"
BUILT = ("airflow-init", "aistore", "s3")
MANIFEST = "speech.manifest"
TABLES = ("storeside.objects", "storeside.runs", MANIFEST)
DEAD_LETTERS = f"{s3.QUEUE}-dlq"
FORMER_NAMES = {MANIFEST: "storeside.speech"}
OBJECTS = """
import hashlib, json, os
try:
    from storeside.doctor import connections
    client = connections.systems(connections.found(os.environ, connections.IDS), "recordings").aistore().client()
except ImportError:  # version 0.1.0
    from aistore import Client
    client = Client("http://aistore:51080")
found = {}
for name in ("recordings", "speech", "speech-facts"):
    bucket = client.bucket(name)
    for entry in bucket.list_all_objects():
        content = bucket.object(entry.name).get_reader().read_all()
        found[f"{name}/{entry.name}"] = hashlib.sha256(content).hexdigest()
print(json.dumps(found))
"""
UNKNOWN = """
import json, requests
address = "aistore:51080/v1/objects/speech/any"
found = requests.get("https://" + address, verify="/etc/storeside/tls/ca.pem", timeout=10)
plain = requests.get("http://" + address, timeout=10)
print(json.dumps({"https without a token": found.status_code, "http": plain.status_code}))
"""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Contents:
    """The contents of the volumes of a stack, as its servers show them; all but tables by name."""

    in_aistore: dict[str, str]
    in_s3: dict[str, bytes]
    runs: dict[str, dict[str, str]]
    logs: dict[str, str]
    tables: dict[str, Rows]


@dataclass(frozen=True)
class Upgrade:
    """This version on the volumes of the previous one, and their contents before."""

    project: Project
    before: Contents


@pytest.fixture(scope="module")
def upgrade(stack: Project, tmp_path_factory: pytest.TempPathFactory, figures: Figures) -> Iterator[Upgrade]:
    """Let version 0.1.0 work on new volumes, remove its containers, and start this version."""
    checkout = unpack(tmp_path_factory.mktemp("previous") / "checkout")
    name = f"storeside-test-{uuid.uuid4().hex[:8]}"
    folders = [tmp_path_factory.mktemp(part) for part in ("before", "after")]
    previous = prepare(stack.engine, name, folders[0], checkout, stack.ports, TAG)
    shutil.copy(folders[0] / ".env", folders[1])
    current = prepare(stack.engine, name, folders[1], CHECKOUT, stack.ports)  # adds missing secrets, as `make .env`
    started = time.monotonic()
    try:
        previous.compose("build", *BUILT, seconds=BUILD_SECONDS)
        figures["compose.build_previous_seconds"] = (time.monotonic() - started, "s")
        _work(previous)
        before = _contents(previous, FORMER_NAMES)
        previous.compose("down", "--timeout", "60")
        started = time.monotonic()
        current.up()
        figures["compose.upgrade_seconds"] = (time.monotonic() - started, "s")
        yield Upgrade(current, before)
    finally:
        remove(previous)
        remove(current)
        images = stack.engine.docker("images", "--quiet", "--filter", f"reference=storeside/*:{TAG}").stdout.split()
        stack.engine.docker("image", "rm", "--force", *images, check=False)
        shutil.rmtree(checkout)


def _work(previous: Project) -> None:
    """Start the previous version, let it do its demo, and wait for the end of all runs."""
    previous.compose("up", "--detach", "postgres")
    # Its health check also passes for the temporary server that creates the database.
    ready = ("exec", "-T", "postgres", "pg_isready", "--host", "127.0.0.1")
    until(lambda: previous.compose(*ready, check=False).returncode == 0, 120, "PostgreSQL", interval=1)
    previous.up()
    upload(previous, "demo/", sorted(demo.RECORDINGS.glob("*.flac")))
    api = _api(previous)
    run_of(api, DAG, {"prefix": "demo/"})  # as its demo does, which gives up when Airflow is slow
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": True})
    until(lambda: all(run["state"] in FINAL for run in api.runs(DAG)), RUN_SECONDS, "end of all runs", interval=1)
    sqs = s3_of(previous, "sqs")
    sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName=DEAD_LETTERS)["QueueUrl"], MessageBody="a dead letter")


def _contents(project: Project, names: dict[str, str]) -> Contents:
    """Return the contents of the volumes; `names` has the tables that are called differently."""
    listed = project.compose("exec", "-T", "scheduler", "python", "-c", OBJECTS)
    client = s3_of(project)
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=s3.BUCKET).get("Contents", [])]
    api = _api(project)
    runs = {run["dag_run_id"]: run["state"] for run in api.runs(DAG)}
    tasks = {name: api.task_instances(DAG, name) for name in runs}
    return Contents(
        in_aistore=json.loads(listed.stdout),
        in_s3={key: client.get_object(Bucket=s3.BUCKET, Key=key)["Body"].read() for key in keys},
        runs={
            name: {"": state, **{task["task_id"]: task["state"] for task in tasks[name]}}
            for name, state in runs.items()
        },
        logs={
            name: api.log(DAG, name, STEP, task["try_number"])
            for name, state in runs.items()
            for task in tasks[name]
            if task["task_id"] == STEP and state == "success"
        },
        tables={table: _rows(project, names.get(table, table)) for table in TABLES},
    )


def _rows(project: Project, table: str) -> Rows:
    """Return the rows of a table; those of a ledger's table without the ones that later rows replaced."""
    client = clickhouse(project)
    engine = "SELECT engine FROM system.tables WHERE database || '.' || name = {table:String}"
    final = "FINAL" if client.query(engine, parameters={"table": table}).first_row[0].startswith("Replacing") else ""
    found: Rows = list(client.query(f"SELECT * FROM {table} {final}").named_results())
    return found


def _lost_rows(before: Rows, after: Rows, new: Collection[str]) -> Rows:
    """Return the rows of `before` that are not in `after`, which may have more columns, and other values in `new`."""
    names = [name for name in before[0] if name not in new]
    there = [[row.get(name) for name in names] for row in after]
    return [row for row in before if [row[name] for name in names] not in there]


def _lost(before: Contents, after: Contents) -> list[str]:
    """Return the names of contents besides tables that are absent or different."""
    return [
        f"{part}: {name}"
        for part in ("in_aistore", "in_s3", "runs", "logs")
        for name, value in getattr(before, part).items()
        if getattr(after, part).get(name) != value
    ]


def _api(project: Project) -> AirflowApi:
    return AirflowApi(project.url("api-server"), "admin", project.secrets["AIRFLOW_ADMIN_PASSWORD"])


def test_objects_and_the_history_of_airflow_are_kept(upgrade: Upgrade) -> None:
    assert upgrade.before.in_aistore
    assert upgrade.before.in_s3
    assert upgrade.before.logs
    assert _lost(upgrade.before, _contents(upgrade.project, FORMER_NAMES)) == []


def test_queues_keep_their_messages(upgrade: Upgrade) -> None:
    sqs = s3_of(upgrade.project, "sqs")
    url = sqs.get_queue_url(QueueName=DEAD_LETTERS)["QueueUrl"]
    assert url.startswith("https://")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0).get("Messages", [])
    assert [message["Body"] for message in found] == ["a dead letter"]


def test_the_old_cluster_gets_tls_and_requires_tokens(upgrade: Upgrade) -> None:
    seen = upgrade.project.compose("exec", "-T", "scheduler", "python", "-c", UNKNOWN)
    assert json.loads(seen.stdout) == {"https without a token": 401, "http": 400}


def test_the_tables_are_migrated_and_no_recording_is_copied_again(upgrade: Upgrade) -> None:
    conf = {"source": f"s3://{s3.BUCKET}", "prefix": "demo/", "keep_extension": False}
    run = run_of(_api(upgrade.project), DAG, conf)
    rows = {table: _rows(upgrade.project, table) for table in TABLES}
    reports = {row["task_id"]: row for row in rows["storeside.runs"] if row["run_id"] == run}
    count = len(upgrade.before.in_s3)
    assert (reports["ingest"]["skipped"], reports["ingest"]["done"]) == (count, 0)
    # The command of the transformers has another name, so their results have another effect.
    assert (reports[STEP]["skipped"], reports[STEP]["done"]) == (0, count)
    for table in TABLES:
        before = [row for row in upgrade.before.tables[table] if not row.get("effect")]
        assert before, table
        # This version's results have more facts, so the manifest has new rows of the same recordings.
        assert not _lost_rows(before, rows[table], ("run_id", "loaded_at") if table == MANIFEST else ()), table
    assert {row["run_id"] for row in rows[MANIFEST]} == {run}
    assert not _rows(upgrade.project, FORMER_NAMES[MANIFEST])
    applied = {row["number"] for row in _rows(upgrade.project, "storeside.migrations")}
    assert applied == {one.number for one in migrations()}


def test_the_doctor_finds_results_without_versions_alone(upgrade: Upgrade) -> None:
    """Version 0.1.0 did not record which version of an object a result belongs to."""
    done = upgrade.project.compose("run", "--rm", "doctor", check=False)
    failed = [line for line in done.stdout.splitlines() if " failed " in line]
    assert len(failed) == 1, done.stdout[-3000:] + done.stderr[-1000:]
    assert "results of cloud buckets were recorded before versions were compared" in failed[0]
    assert "storeside unproven lists them" in done.stdout


def test_the_demo_passes(upgrade: Upgrade) -> None:
    done = upgrade.project.compose("run", "--rm", "demo", check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_nothing_is_lost_in_the_end(upgrade: Upgrade) -> None:
    assert _lost(upgrade.before, _contents(upgrade.project, {})) == []
