"""Runs of a pipeline: which of its tasks run when there is nothing to do, and when an earlier run ended half-way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped
from airflow.sdk.execution_time.context import OutletEventAccessors

from storeside.aistore.buckets import Bucket
from storeside.operators import (
    AISCopyBucketOperator,
    AISProbeAudioOperator,
    AISTransformBucketOperator,
    ClickHouseLoadManifestOperator,
    S3ToClickHouseOperator,
)
from storeside.speech.manifest import SpeechManifest
from tests.integration.test_manifest import tone
from tests.support import probe_spec, put, small_spec, transcode_spec, unique

pytestmark = pytest.mark.usefixtures("connections", "no_etl_is_left")

EVERY = ["ingest", "transcode", "probe", "load"]


@dataclass
class Run:
    """One run of the pipeline: results of its tasks by name, in their order, and its asset events by URI."""

    id: str
    ran: dict[str, Any] = field(default_factory=dict)
    xcoms: dict[tuple[str, str], Any] = field(default_factory=dict)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        return list(self.ran)


def run_tasks(dag: DAG, names: list[str]) -> Run:
    """Run these tasks of a DAG in a new run, one after the other, as Airflow does."""
    run = Run(unique("run"))
    identity = SimpleNamespace(dag_id=dag.dag_id, run_id=run.id)
    skipped: set[str] = set()
    for name in names:
        if name in skipped:
            continue
        task = dag.get_task(name)
        instance = SimpleNamespace(
            dag_id=dag.dag_id, task_id=name, map_index=-1, try_number=1,
            xcom_pull=lambda task_id, key="return_value": run.xcoms.get((task_id, key)),
            xcom_push=lambda key, value, name=name: run.xcoms.update({(name, key): value}),
        )  # fmt: skip
        context: Any = {
            "dag": dag, "dag_run": identity, "task": task, "ti": instance, "params": {"prefix": ""},
            "outlet_events": OutletEventAccessors(),
        }  # fmt: skip
        task.render_template_fields(context)
        task.pre_execute(context)
        try:
            run.ran[name] = None
            run.ran[name] = run.xcoms[name, "return_value"] = task.execute(context)
        except DownstreamTasksSkipped as e:
            run.ran[name] = run.xcoms[name, "return_value"]
            skipped.update(e.tasks)
        for accessor in context["outlet_events"]._dict.values():
            run.events |= {event.dest_asset_key.uri: event.extra for event in accessor.asset_alias_events}
    return run


@dataclass
class Pipeline:
    """The tasks of the speech pipeline on buckets of one test."""

    aistore: Any
    clickhouse: Any
    name: str = field(default_factory=lambda: unique("idle"))

    def bucket(self, label: str) -> Bucket:
        return Bucket("ais", f"{self.name}-{label}")

    def put(self, **recordings: bytes) -> None:
        put(self.aistore, self.bucket("in"), {f"{name}.wav": content for name, content in recordings.items()})

    def dag(self, policy: str) -> DAG:
        source, copies, speech, facts = (str(self.bucket(label)) for label in ("in", "copies", "speech", "facts"))
        common: Any = {"on_failed_objects": policy, "deferrable": False}
        effect = "{{ ti.xcom_pull('probe')['effect'] }}"
        with DAG(self.name) as dag:
            ingest = AISCopyBucketOperator(
                task_id="ingest",
                source=source,
                destination=copies,
                prefix="{{ params.prefix }}",
                skip_idle=True,
                **common,
            )
            transcode = AISTransformBucketOperator(
                task_id="transcode", source=copies, destination=speech, prefix="{{ params.prefix }}",
                etl=transcode_spec(), extensions={"wav": "wav"}, keep_etl=True, outlets=[Asset(speech)], **common,
            )  # fmt: skip
            probe = AISProbeAudioOperator(
                task_id="probe", source=speech, destination=facts, etl=probe_spec(), keep_etl=True, **common
            )
            load = ClickHouseLoadManifestOperator(
                task_id="load",
                bucket=speech,
                facts=facts,
                effect=effect,
                outlets=[Asset("clickhouse://speech/manifest")],
            )
            ingest >> transcode >> probe >> load
        return dag

    def run(self, *, policy: str = "report", until: str = "load") -> Run:
        return run_tasks(self.dag(policy), EVERY[: EVERY.index(until) + 1])

    def rows(self) -> int:
        found = self.clickhouse.query(
            "SELECT count() FROM speech.manifest WHERE bucket = {bucket:String}",
            parameters={"bucket": str(self.bucket("speech"))},
        )
        return int(found.first_row[0])

    def recorded(self, run: Run) -> dict[str, tuple[Any, ...]]:
        """Return state, listed, skipped and done objects, and known failures of each task on the page of a run."""
        found = self.clickhouse.query(
            "SELECT task_id, toString(state), listed, skipped, done, detail FROM storeside.runs FINAL"
            " WHERE run_id = {run:String}",
            parameters={"run": f"{self.name}/{run.id}"},
        )
        return {row[0]: (*row[1:5], json.loads(row[5])["known_bad"]) for row in found.result_rows}


@pytest.fixture
def pipeline(aistore: Any, clickhouse: Any) -> Pipeline:
    return Pipeline(aistore, clickhouse)


@pytest.mark.guarantee("idle-run")
def test_a_run_with_nothing_to_do_is_its_first_task_and_any_other_runs_whole(pipeline: Pipeline) -> None:
    pipeline.put(a=tone(0.3), b=tone(0.4))
    for last in ("transcode", "probe"):  # two runs end half-way, each with another recording
        pipeline.put(**{last: tone(0.5)})
        assert pipeline.run(until=last).tasks == EVERY[: EVERY.index(last) + 1]
        assert pipeline.rows() == 0
    whole = pipeline.run()  # nothing to copy and nothing to transcode, but facts to publish
    assert (whole.tasks, whole.ran["ingest"]["done"], whole.ran["transcode"]["done"]) == (EVERY, 0, 0)
    assert whole.ran["load"]["rows"] == 4

    idle = pipeline.run()
    assert idle.tasks == ["ingest"]
    assert (idle.ran["ingest"]["listed"], idle.ran["ingest"]["skipped"]) == (4, 4)
    assert idle.xcoms["ingest", "nothing_to_do"] == EVERY[1:]
    assert idle.xcoms["ingest", "skipmixin_key"] == {"skipped": EVERY[1:]}
    assert pipeline.recorded(idle) == dict.fromkeys(EVERY[:3], ("done", 4, 4, 0, 0))
    assert {uri.rstrip("/"): event["done"] for uri, event in idle.events.items()} == {
        str(pipeline.bucket("speech")): 0, "clickhouse://speech/manifest": 0
    }  # fmt: skip

    pipeline.put(bad=b"RIFF, and no audio")
    failed = pipeline.run()
    assert (failed.tasks, failed.ran["transcode"]["failed"]) == (EVERY, 1)
    known = pipeline.run()  # a failure that is known and accepted by the policy is nothing to do, and is still shown
    assert known.tasks == ["ingest"]
    assert pipeline.recorded(known)["transcode"] == ("partial", 5, 4, 0, 1)
    with pytest.raises(AirflowFailException, match=r"1 of 5 objects are not done"):
        pipeline.run(policy="fail")

    pipeline.bucket("speech").handle(pipeline.aistore).object("a.wav").delete()
    again = pipeline.run()  # a result that another program deleted is made again
    assert (again.tasks, again.ran["ingest"]["done"], again.ran["transcode"]["done"]) == (EVERY, 0, 1)
    assert pipeline.rows() == 4
    assert pipeline.run().tasks == ["ingest"]


def test_a_repeated_task_of_a_run_with_leftovers_skips_nothing(pipeline: Pipeline) -> None:
    """A user clears the first task of a run that has facts or rows."""
    pipeline.put(a=tone(0.3))
    assert pipeline.run().tasks == EVERY
    run = unique("run")
    manifest = SpeechManifest(
        pipeline.clickhouse, pipeline.bucket("speech"), pipeline.bucket("facts"), f"{pipeline.name}/{run}"
    )
    assert not manifest.has_begun(pipeline.aistore)
    for name in (f"{manifest.prefix}a.wav.json", manifest.key):
        put(pipeline.aistore, pipeline.bucket("facts"), {name: b"{}"})
        assert manifest.has_begun(pipeline.aistore)
        pipeline.bucket("facts").object(pipeline.aistore, name).delete()


def test_a_load_after_a_transform_is_skipped_unless_an_object_is_missing(aistore: Any, clickhouse: Any) -> None:
    source, results = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    table = f"data.{unique('t').replace('-', '_')}"
    put(aistore, source, {"a.jsonl": b'{"n": 1}\n'})

    def run(*names: str, policy: Literal["fail", "report"] = "report") -> Run:
        with DAG(unique("dag")) as dag:
            transform = AISTransformBucketOperator(
                task_id="transform", source=str(source), destination=str(results), etl=small_spec("upper"),
                keep_etl=True, deferrable=False, skip_idle=True,
            )  # fmt: skip
            load = S3ToClickHouseOperator(
                task_id="load", source=f"{results}/", table=table, format="jsonl", on_failed_objects=policy,
                deferrable=False,
            )  # fmt: skip
            transform >> load
        return run_tasks(dag, list(names) or ["transform", "load"])

    assert run("transform").ran["transform"]["done"] == 1  # ended before its load
    missing = run()
    assert (missing.ran["transform"]["done"], missing.ran["load"]["loaded"]) == (0, 1)
    idle = run()
    assert idle.tasks == ["transform"]
    recorded = "SELECT kind, listed, skipped, done FROM storeside.runs FINAL WHERE endsWith(run_id, {run:String})"
    found = clickhouse.query(recorded, parameters={"run": f"/{idle.id}"}).result_rows
    assert sorted(found) == [("load", 1, 1, 0), ("transform", 1, 1, 0)]

    put(aistore, source, {"b.jsonl": b"{no json"})
    assert run().ran["load"]["failed"] == 1
    assert run().tasks == ["transform"]
    with pytest.raises(AirflowFailException, match="1 of 2 objects are not loaded"):
        run(policy="fail")
