"""The speech pipeline in Airflow, from the REST API and from S3 events, on the whole embedded stack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from storeside.aistore.buckets import Bucket
from storeside.aistore.jobs import running_transforms
from storeside.stack import demo, speech_corpus
from storeside.stack.airflow.api import FINAL, AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.hostile_names import HOSTILE_NAMES
from tests.support import contents, etl_servers, process, switch_on, unique, until, until_known, versions

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


DAG = "speech_pipeline"
RUN_SECONDS = 120


@dataclass
class Pipeline:
    """The DAG with its servers, bucket, queue and table."""

    stack: Stack
    api: AirflowApi
    s3: S3Client
    sqs: SQSClient
    clickhouse: Any

    @property
    def queue(self) -> str:
        return self.sqs.get_queue_url(QueueName=s3.QUEUE)["QueueUrl"]

    def messages(self) -> int:
        """Return the number of messages in the queue, in flight or not."""
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=list(names))["Attributes"]
        return sum(int(found[name]) for name in names)

    def put(self, objects: Mapping[str, bytes]) -> None:
        for name, content in objects.items():
            self.s3.put_object(Bucket=s3.BUCKET, Key=name, Body=content)

    def run(self, **conf: Any) -> tuple[str, str]:
        """Run the DAG to its end; return the run's id and state."""
        run = self.api.trigger(DAG, conf)
        return run, self.api.wait(DAG, run, RUN_SECONDS)["state"]

    def tasks(self, run: str) -> dict[str, dict[str, Any]]:
        return {task["task_id"]: task for task in self.api.task_instances(DAG, run)}

    def log(self, run: str, task: str, attempt: int = 1) -> str:
        return self.api.log(DAG, run, task, attempt)

    def xcom(self, run: str, task: str) -> Any:
        value = self.api.xcom(DAG, run, task)
        return json.loads(value) if isinstance(value, str) else value

    def rows(self, prefix: str) -> tuple[int, int]:
        """Return the number of rows and of distinct objects of the manifest below a prefix of the recordings."""
        found = self.clickhouse.query(
            "SELECT count(), uniqExact(object) FROM speech.manifest WHERE startsWith(source_object, {prefix:String})",
            parameters={"prefix": prefix},
        )
        return tuple(found.first_row)

    def failures(self, prefix: str) -> dict[str, str]:
        found = self.clickhouse.query(
            "SELECT object, reason FROM storeside.objects FINAL"
            " WHERE status = 'failed' AND startsWith(object, {prefix:String})",
            parameters={"prefix": prefix},
        )
        return dict(found.result_rows)


@pytest.fixture(scope="module")
def pipeline(
    airflow: Stack, api: AirflowApi, s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any
) -> Iterator[Pipeline]:
    until_known(api, DAG)
    assert not api.get("importErrors")["import_errors"]
    found = Pipeline(airflow, api, s3_client, sqs_client, clickhouse)
    # Only these recordings start runs through events.
    (notification,) = s3_client.get_bucket_notification_configuration(Bucket=s3.BUCKET)["QueueConfigurations"]
    some = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "event"}]}}
    for configuration in ({**notification, "Filter": some}, notification):
        s3_client.put_bucket_notification_configuration(
            Bucket=s3.BUCKET,
            NotificationConfiguration={"QueueConfigurations": [configuration]},  # type: ignore[list-item]
        )
        if configuration is not notification:
            switch_on(api, DAG)
            until(lambda: not due(api), 90, "scheduled run")
            until(lambda: not found.messages(), 120, "end of the events of other tests")
            until(lambda: finished(api), 180, "end of the runs before")
            yield found


def due(api: AirflowApi, within: timedelta = timedelta()) -> bool:
    """Whether the schedule is about to start a run: for a while after its hour an unpaused DAG runs at once."""
    return datetime.fromisoformat(api.get(f"dags/{DAG}")["next_dagrun_run_after"]) < datetime.now(UTC) + within


def finished(api: AirflowApi) -> bool:
    return all(run["state"] in FINAL for run in api.runs(DAG))


def let_the_daily_run_pass(api: AirflowApi) -> None:
    """Wait if the daily run is near: it covers the whole bucket, and so also the objects of a test."""
    if due(api, within=timedelta(seconds=100)):
        until(lambda: not due(api, within=timedelta(seconds=100)), 150, "start of the daily run")
        until(lambda: finished(api), 120, "end of the daily run")


@pytest.fixture(autouse=True)
def undisturbed(pipeline: Pipeline) -> None:
    let_the_daily_run_pass(pipeline.api)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("corpus")
    return list(contents(folder, [o.name for o in speech_corpus.make(demo.RECORDINGS, folder, 60).objects]).values())


def below(prefix: str, names: Iterable[str], corpus: list[bytes]) -> dict[str, bytes]:
    return {prefix + name: content for name, content in zip(names, corpus, strict=False)}


@dataclass
class Loaded:
    """The input of a first run, and its outcome."""

    prefix: str
    good: set[str]
    refused: set[str]
    broken: set[str]
    run: str
    state: str


@pytest.fixture(scope="module")
def loaded(pipeline: Pipeline, corpus: list[bytes], bad: dict[str, bytes]) -> Loaded:
    prefix = unique("all") + "/"
    names = [*(f"{n:02}.flac" for n in range(12)), *HOSTILE_NAMES]
    refused = {prefix + name for name in names if "../" in name or "//" in name}
    let_the_daily_run_pass(pipeline.api)
    pipeline.put({**below(prefix, names, corpus), **{prefix + n: c for n, c in bad.items()}})
    run, state = pipeline.run(prefix=prefix, on_failure="report")
    return Loaded(prefix, {prefix + n for n in names} - refused, refused, {prefix + n for n in bad}, run, state)


@pytest.mark.guarantee("broken-recording")
def test_good_recordings_are_loaded_and_bad_ones_listed(pipeline: Pipeline, loaded: Loaded) -> None:
    prefix, run, good, broken = loaded.prefix, loaded.run, loaded.good, loaded.broken
    assert loaded.state == "success", {name: task["state"] for name, task in pipeline.tasks(run).items()}
    states = {name: task["state"] for name, task in pipeline.tasks(run).items()}
    assert states.pop("settle_events") == "skipped"  # the run has leased no messages
    assert set(states.values()) == {"success"}
    assert pipeline.rows(prefix) == (len(good), len(good))
    failures = pipeline.failures(prefix)
    assert set(failures) == loaded.refused | broken
    assert all(failures.values())
    ingest, transcode = pipeline.log(run, "ingest"), pipeline.log(run, "transcode")
    assert not [name for name in loaded.refused if failures[name] not in ingest or name not in ingest]
    assert not [name for name in broken if failures[name] not in transcode or name not in transcode]
    found = pipeline.xcom(run, "transcode")
    assert (found["done"], found["failed"]) == (len(good), len(broken))
    assert pipeline.xcom(run, "load")["rows"] == len(good)
    probed = pipeline.xcom(run, "probe")  # the transcode has probed all of them
    assert (probed["done"], probed["job_seconds"]) == (len(good), 0)
    assert "0 are missing" in pipeline.log(run, "probe")


def test_a_run_with_nothing_to_do_starts_two_processes(pipeline: Pipeline, loaded: Loaded) -> None:
    let_the_daily_run_pass(pipeline.api)
    run, state = pipeline.run(prefix=loaded.prefix, on_failure="report")
    assert state == "success"
    tasks = pipeline.tasks(run)
    ran = {name for name, task in tasks.items() if task["pid"]}
    assert ran == {"lease_events", "ingest"}
    assert {task["state"] for name, task in tasks.items() if name in ran} == {"success"}
    assert {task["state"] for name, task in tasks.items() if name not in ran} == {"skipped"}
    # the run has looked, as the page and the assets say; failures of earlier runs are still shown
    found = pipeline.clickhouse.query(
        "SELECT task_id, toString(state), listed, skipped, done FROM storeside.runs FINAL"
        " WHERE run_id = {run:String}",
        parameters={"run": f"{DAG}/{run}"},
    ).result_rows
    good, every = len(loaded.good), len(loaded.good) + len(loaded.broken)
    assert {row[0]: row[1:] for row in found if row[0] != "ingest"} == {
        "transcode": ("partial", every, good, 0), "probe": ("done", good, good, 0)
    }  # fmt: skip
    assert not [name for name in loaded.broken if name not in pipeline.log(run, "ingest")]
    events = pipeline.api.get("assets/events", source_dag_id=DAG, source_run_id=run)["asset_events"]
    assert {event["uri"].rstrip("/"): (event["extra"]["done"], event["source_task_id"]) for event in events} == {
        "ais://speech": (0, "ingest"), "clickhouse://speech/manifest": (0, "ingest")
    }  # fmt: skip
    assert pipeline.rows(loaded.prefix) == (good, good)


@pytest.mark.guarantee("pipeline-twice")
def test_an_upload_alone_starts_a_run_that_loads_it_and_nothing_again(
    pipeline: Pipeline, corpus: list[bytes], loaded: Loaded
) -> None:
    before = {run["dag_run_id"] for run in pipeline.api.runs(DAG)}
    name = unique("event") + "/one.flac"
    pipeline.put({name: corpus[1]})
    until(lambda: pipeline.rows(name) == (1, 1), 120, "row of the recording", interval=0.5)
    until(lambda: not pipeline.messages(), 90, "empty queue", interval=0.5)
    started = [run for run in pipeline.api.runs(DAG) if run["dag_run_id"] not in before]
    assert {run["run_type"] for run in started} == {"asset_triggered"}
    for run in started:
        assert pipeline.api.wait(DAG, run["dag_run_id"])["state"] == "success"
    assert pipeline.rows(name) == (1, 1)
    # these runs covered the whole bucket: objects that the first one loaded or gave up are unchanged
    found = [pipeline.xcom(run["dag_run_id"], "transcode") for run in started]
    assert min(one["skipped"] for one in found) >= len(loaded.good)
    assert min(one["known_bad"] for one in found) >= len(loaded.broken)
    assert pipeline.rows(loaded.prefix) == (len(loaded.good), len(loaded.good))
    assert set(pipeline.failures(loaded.prefix)) == loaded.refused | loaded.broken


def test_a_bad_recording_fails_the_run_when_asked_to(
    pipeline: Pipeline, corpus: list[bytes], bad: dict[str, bytes]
) -> None:
    prefix = unique("fail") + "/"
    pipeline.put({prefix + "good.flac": corpus[0], prefix + "text.flac": bad["bad/text.flac"]})
    run, state = pipeline.run(prefix=prefix, on_failure="fail")
    assert state == "failed"
    tasks = pipeline.tasks(run)
    assert (tasks["transcode"]["state"], tasks["transcode"]["try_number"]) == ("failed", 1)
    assert tasks["load"]["state"] == "upstream_failed"
    log = pipeline.log(run, "transcode")
    assert "AirflowFailException" in log
    assert f"{prefix}text.flac" in log
    assert "not an audio container" in log
    assert pipeline.rows(prefix) == (0, 0)


def test_parameters_that_do_not_go_together_fail_at_once(pipeline: Pipeline) -> None:
    run, state = pipeline.run(prefix=unique("none") + "/", codec="opus", channels=3)
    assert state == "failed"
    task = pipeline.tasks(run)["transcode"]
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert "opus does not support 3 channels: use one of 1, 2, 5, 6, 7, 8" in pipeline.log(run, "transcode")
    with pytest.raises(requests.HTTPError) as refused:  # values that the form would reject
        pipeline.api.trigger(DAG, {"channels": 9})
    assert refused.value.response.status_code in (400, 422)


@pytest.mark.chaos
def test_a_killed_triggerer_neither_loses_nor_repeats_work(
    pipeline: Pipeline, corpus: list[bytes], aistore: Any
) -> None:
    prefix = unique("kill") + "/"
    pipeline.put(below(prefix, [f"{n:02}.flac" for n in range(60)], corpus))
    run = pipeline.api.trigger(DAG, {"prefix": prefix})

    def deferred() -> bool:
        task = pipeline.tasks(run).get("transcode")
        return bool(task and task["state"] == "deferred")

    until(lambda: running_transforms(aistore), 60, "transform", interval=0.01)
    with frozen_servers(pipeline):
        until(deferred, 60, "deferred transcode", interval=0.2)
        triggerer = process(pipeline.stack, "triggerer")
        triggerer.kill()
    assert pipeline.api.wait(DAG, run)["state"] == "success"
    assert process(pipeline.stack, "triggerer").pid != triggerer.pid
    # the tasks of events are skipped, and a skipped task has no try
    assert {(t["state"], t["try_number"]) for t in pipeline.tasks(run).values()} == {("success", 1), ("skipped", 0)}
    assert pipeline.rows(prefix) == (60, 60)
    made = {n: v for n, v in versions(aistore, Bucket("ais", "speech")).items() if n.startswith(prefix)}
    assert len(made) == 60
    assert {version.partition("/")[0] for version in made.values()} == {"1"}  # each was written once


@contextmanager
def frozen_servers(pipeline: Pipeline) -> Iterator[None]:
    """Stop the servers of the transcode in the middle of a job."""
    servers = etl_servers(pipeline.stack, "transcode")
    frozen = [p for server in servers for p in (server, *server.children(recursive=True))]
    for one in frozen:
        one.suspend()
    try:
        yield
    finally:
        for one in frozen:
            if one.is_running():
                one.resume()


def test_a_cleared_task_ends_its_job_and_does_the_rest_again(
    pipeline: Pipeline, corpus: list[bytes], aistore: Any
) -> None:
    prefix = unique("clear") + "/"
    pipeline.put(below(prefix, [f"{n:03}.flac" for n in range(180)], corpus * 3))
    run = pipeline.api.trigger(DAG, {"prefix": prefix})
    until(lambda: running_transforms(aistore), 60, "transform", interval=0.01)
    with frozen_servers(pipeline):
        (job,) = running_transforms(aistore)
        # the task's trigger ends the job; it starts some seconds after the task is deferred
        logs = pipeline.stack.state / "airflow"
        trigger = f"**/run_id={run}/task_id=transcode/attempt=1.log.trigger*"
        until(lambda: list(logs.glob(trigger)), 30, "trigger of the transcode")
        clear = {"dry_run": False, "dag_run_id": run, "task_ids": ["transcode"], "only_failed": False}
        pipeline.api.request("POST", f"dags/{DAG}/clearTaskInstances", json=clear)
        until(
            lambda: any("aborting AIStore job" in log.read_text() for log in logs.glob(trigger)),
            60,
            "abort of the job",
        )
    # The next try may have begun before: then it follows the job, whose ETL stays.
    until(lambda: job not in running_transforms(aistore), 30, "end of the job")
    assert pipeline.api.wait(DAG, run)["state"] == "success"
    assert pipeline.tasks(run)["transcode"]["try_number"] == 2
    assert pipeline.rows(prefix) == (180, 180)
    assert not pipeline.failures(prefix)


def test_a_viewer_looks_and_does_not_touch(pipeline: Pipeline) -> None:
    viewer = AirflowApi(pipeline.stack.url("airflow"), "viewer", pipeline.stack.secrets["airflow_viewer"])
    assert viewer.get(f"dags/{DAG}")["dag_id"] == DAG
    for method, path, body in (
        ("POST", f"dags/{DAG}/dagRuns", {"logical_date": None, "conf": {}}),
        ("PATCH", f"dags/{DAG}", {"is_paused": True}),
    ):
        with pytest.raises(requests.HTTPError) as refused:
            viewer.request(method, path, json=body)
        assert refused.value.response.status_code == 403


def test_no_secret_is_shown_anywhere(pipeline: Pipeline) -> None:
    """Covers all runs of this session; therefore this test is the last."""
    secrets = pipeline.stack.secrets
    shown: dict[str, str] = {}

    def look(place: str, text: str) -> None:
        shown.update({name: place for name, secret in secrets.items() if secret in text})

    runs = [run["dag_run_id"] for run in pipeline.api.runs(DAG)]
    assert runs
    for run in runs:
        for task in pipeline.tasks(run).values():
            name = task["task_id"]
            look(f"rendered template or details of {name}", json.dumps(task))
            if task["state"] not in ("success", "failed"):
                continue
            for attempt in range(1, task["try_number"] + 1):
                look(f"log of {name}", pipeline.log(run, name, attempt))
            for entry in pipeline.api.xcoms(DAG, run, name):
                look(f"XCom of {name}", json.dumps(pipeline.api.xcom(DAG, run, name, entry["key"])))
    pipeline.clickhouse.command("SYSTEM FLUSH LOGS")
    queries = pipeline.clickhouse.query("SELECT query, exception FROM system.query_log").result_rows
    assert any("storeside.objects" in query for query, _ in queries)
    for query, exception in queries:
        look("ClickHouse's query_log", query + exception)
    home = pipeline.stack.state / "airflow"
    for path in Path(home).rglob("*.log"):
        look(f"file {path.relative_to(home)}", path.read_text(errors="replace"))
    assert not shown
