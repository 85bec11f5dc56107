"""Type checkers find mistakes in a DAG before Airflow parses it, and find none in DAGs that are right."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

# Each statement is one line. Those with the comment `# wrong` have a mistake, the others have none.
DAG = """\
from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from storeside.operators import (
    AfterLoad, AISCopyBucketOperator, AISCutUtterancesOperator, AISDeleteEtlOperator, AISGetObjectOperator,
    AISInspectBucketOperator, AISMakeShardsOperator, AISMeasureThroughputOperator, AISMeasureTransformsOperator,
    AISPrefetchBucketOperator, AISProbeAudioOperator, AISSplitShardsOperator, AISTranscodeAudioOperator,
    AISTransformBucketOperator, AISTransformObjectOperator, AISTransformObjectsOperator, CheckConnectionsOperator,
    ClickHouseExportManifestOperator, ClickHouseLoadManifestOperator, Columns, Csv, EtlSpec, Expression,
    HSDSExportDatasetOperator, HSDSImportDatasetOperator, LoadLimits, ReadOptions,
    S3EventsToClickHouseOperator, S3ToClickHouseOperator, SqsLeaseS3EventsOperator, SqsRedriveDeadLettersOperator,
    SqsS3EventsSensor, SqsSettleS3EventsOperator, StorageBenchmarkOperator, StorageCopyBucketOperator,
    TableOptions, Template, form_choices, params,
)

SPEC = EtlSpec("label", "image", environment={"a": "b"})
PAIR = Template("{{ params.policy }}")

form_choices("bucket", "read")
form_choices("buckets", "read")  # wrong
form_choices("bucket", "look")  # wrong

with DAG("typed", schedule=None, default_args={"retries": 3}):
    # loads
    S3ToClickHouseOperator(task_id="a1", bucket="b", table="x.y", retries=2, retry_delay=timedelta(seconds=5))
    S3ToClickHouseOperator(task_id="a2", source="s3://b/k", **params.LOAD, **params.CHECKED, **params.AFTER_LOAD)
    S3ToClickHouseOperator(task_id="a3", bucket="b", table="x.y", on_bad_rows=PAIR, format="iceberg", loader="push")
    S3ToClickHouseOperator(task_id="a4", bucket="b", table="x.y", options={"csv.quote": "'", "limits.rows": 5})
    S3ToClickHouseOperator(task_id="a5", bucket="b", table="x.y", options="{{ params.options | tojson }}")
    S3ToClickHouseOperator(task_id="a6", bucket="b", table="x.y", read=ReadOptions(nested="json", csv=Csv(";")))
    S3ToClickHouseOperator(task_id="a7", bucket="b", table="x.y", csv={"delimiter": ";"}, order_by="a")
    S3ToClickHouseOperator(task_id="a8", bucket="b", table="x.y", after_load=AfterLoad("delete"), on_nothing="skip")
    S3ToClickHouseOperator(task_id="a9", bucket="b", table="x.y", limits=LoadLimits(rows=5), deferrable=False)
    S3ToClickHouseOperator(task_id="b1", buckett="b-1", table="x.y")  # wrong
    S3ToClickHouseOperator(task_id="b2", bucket="b-1", table="x.y", on_bad_rows="ignore")  # wrong
    S3ToClickHouseOperator(task_id="b3", bucket="b-1", table=3)  # wrong
    S3ToClickHouseOperator(task_id="b4", bucket="b-1", table="x.y", keys=4)  # wrong
    S3ToClickHouseOperator(task_id="b5", bucket="b-1")  # wrong
    S3ToClickHouseOperator(bucket="b-1", table="x.y")  # wrong
    S3ToClickHouseOperator(task_id="b6", bucket="b-1", table="x.y", on_drift="{{ params.on_drift }}")  # wrong
    S3ToClickHouseOperator(task_id="b7", bucket="b-1", table="x.y", retires=3)  # wrong
    S3ToClickHouseOperator(task_id="b8", bucket="b-1", table="x.y", retry_delay="5 s")  # wrong
    S3ToClickHouseOperator(task_id="b9", bucket="b-1", table="x.y", options={"csv.quotes": "'"})  # wrong
    S3ToClickHouseOperator(task_id="c1", bucket="b-1", table="x.y", options={"limits.rows": "5"})  # wrong
    S3ToClickHouseOperator(task_id="c2", bucket="b-1", table="x.y", options={"on_drift": "no"})  # wrong
    S3ToClickHouseOperator(task_id="c3", bucket="b-1", table="x.y", read=ReadOptions(nested="list"))  # wrong
    S3ToClickHouseOperator(task_id="c4", bucket="b-1", table="x.y", read=Csv(delimiter=";"))  # wrong
    S3ToClickHouseOperator(task_id="c5", bucket="b-1", table="x.y", after_load=AfterLoad("remove"))  # wrong
    S3ToClickHouseOperator(task_id="c6", bucket="b-1", table="x.y", after_load="delete")  # wrong
    S3ToClickHouseOperator(task_id="c7", bucket="b-1", table="x.y", csv={"separator": ";"})  # wrong
    S3ToClickHouseOperator(task_id="c8", bucket="b-1", table="x.y", format="xml")  # wrong
    S3ToClickHouseOperator(task_id="c9", bucket="b-1", table="x.y", on_nothing="ignore")  # wrong
    S3ToClickHouseOperator(task_id="d1", bucket="b-1", table="x.y", on_failed_expectations="skip")  # wrong
    S3ToClickHouseOperator(task_id="d2", bucket="b-1", table="x.y", limits=LoadLimits(row=5))  # wrong
    S3ToClickHouseOperator(task_id="d3", bucket="b-1", table="x.y", table_options=TableOptions(order=()))  # wrong
    TableOptions(order_by=Expression("a, b"), columns={"a": "Int64"}, system_columns=("_object",))
    ReadOptions(columns=Columns(select=("a",), mask={"a": "sha256"}), on_null_nested="empty", codes="number")
    # events
    S3EventsToClickHouseOperator(task_id="e1", sqs_queue="q", bucket="b", max_messages="5", **params.LOAD)
    S3EventsToClickHouseOperator(task_id="e2", sqs_queue="q", bucket="b", table="x.y", max_seconds=5.0)
    S3EventsToClickHouseOperator(task_id="e3", sqs_queue="q", bucket="b", table="x.y", source="s3://b")  # wrong
    S3EventsToClickHouseOperator(task_id="e4", bucket="b", table="x.y")  # wrong
    SqsLeaseS3EventsOperator(task_id="e5", sqs_queue="q", max_messages=5, on_nothing="fail")
    SqsLeaseS3EventsOperator(task_id="e6", queues="q")  # wrong
    SqsLeaseS3EventsOperator(task_id="e7", sqs_queue="q", deferrable=True)  # wrong
    SqsS3EventsSensor(task_id="e8", sqs_queue="q", timeout=60, deferrable=True, lease_seconds=600)
    SqsS3EventsSensor(task_id="e9", sqs_queue="q", timeout="60 s")  # wrong
    SqsSettleS3EventsOperator(task_id="f1", sqs_queue="q", source="s3://in", complete=True, failed={"a": "broken"})
    SqsSettleS3EventsOperator(task_id="f2", sqs_queue="q", source="s3://in", complete=True, failed=["a"])  # wrong
    SqsRedriveDeadLettersOperator(task_id="f3", sqs_queue="q", message_ids=["a"], redrive="{{ params.redrive }}")
    SqsRedriveDeadLettersOperator(task_id="f4", sqs_queue="q", message_ids=4)  # wrong
    # transforms
    AISCopyBucketOperator(task_id="g1", source="s3://in", destination="ais://out", prepend="a/", stall_seconds=60)
    AISCopyBucketOperator(task_id="g2", source="s3://in", destination="ais://out", etl="e")  # wrong
    AISCopyBucketOperator(task_id="g3", source="s3://in")  # wrong
    AISTransformBucketOperator(task_id="g4", source="a", destination="b", workers=4, **params.ETL, **params.OBJECTS)
    AISTransformBucketOperator(task_id="g5", source="a", destination="b", etl=SPEC >> SPEC, communication="hpush")
    AISTransformBucketOperator(task_id="g6", source="a", destination="b", communication="tcp")  # wrong
    AISTransformBucketOperator(task_id="g7", source="a", destination="b", on_failed_objects="skip")  # wrong
    AISTransformBucketOperator(task_id="g8", source="a", destination="b", extension={"a": "b"})  # wrong
    AISTransformBucketOperator(task_id="g9", source="a", destination="b", environment={"A": 1})  # wrong
    AISTransformObjectsOperator(task_id="h1", source="a", destination="b", objects=["a"], command="run", members="*")
    AISTransformObjectsOperator(task_id="h2", source="a", destination="b")  # wrong
    AISTranscodeAudioOperator(task_id="h3", source="a", destination="b", container="", codec="opus", members="*.wav")
    AISTranscodeAudioOperator(task_id="h4", source="a", destination="b", codec="vorbis")  # wrong
    AISTranscodeAudioOperator(task_id="h5", source="a", destination="b", command="run")  # wrong
    AISProbeAudioOperator(task_id="h6", source="a", destination="b", object_timeout=60, communication=PAIR)
    AISProbeAudioOperator(task_id="h7", source="a", destination="b", extensions={"a": "b"})  # wrong
    AISCutUtterancesOperator(task_id="h8", source="a", destination="b", container="wav", threshold=0.4, workers=2)
    AISCutUtterancesOperator(task_id="h9", source="a", destination="b", container="mp3")  # wrong
    AISSplitShardsOperator(task_id="i1", source="a", destination="b", members="*.flac", prepend="a/")
    AISSplitShardsOperator(task_id="i2", source="a", destination="b", in_place=True)  # wrong
    AISMakeShardsOperator(task_id="i3", source="a", destination="b", objects="*.flac", shard_size=1 << 30)
    AISMakeShardsOperator(task_id="i4", source="a", destination="b", quarantine="ais://c")  # wrong
    AISInspectBucketOperator(task_id="i5", source="a", etl=SPEC, on_failed_objects="fail", deferrable=True)
    AISInspectBucketOperator(task_id="i6", source="a", etl="spec")  # wrong
    AISTransformObjectOperator(task_id="i7", source="a", name="n", destination="b", etl=SPEC, arguments={"a": 1})
    AISGetObjectOperator(task_id="i8", source="a", name="n", path="s3://a/b", latest=True)  # wrong
    AISDeleteEtlOperator(task_id="i9", etl=SPEC, trigger_rule="all_done")
    AISPrefetchBucketOperator(task_id="j1", bucket="s3://in", blob_threshold=1 << 20, on_nothing="fail")
    AISPrefetchBucketOperator(task_id="j2", bucket="s3://in", latest=3)  # wrong
    # others
    StorageCopyBucketOperator(task_id="k1", source="s3://a", destination="oci://b", multipart={"part_size": 1 << 23})
    StorageCopyBucketOperator(task_id="k2", source="s3://a", destination="oci://b", multipart={"parts": 3})  # wrong
    StorageBenchmarkOperator(task_id="k3", backends=["s3://a"], chart="s3://b/c.png", rounds=2)
    StorageBenchmarkOperator(task_id="k4", backends=["s3://a"], charts="s3://b/c.png")  # wrong
    HSDSExportDatasetOperator(task_id="k5", domain="/a.h5", dataset="/b", bucket="b", prefix="p", layout="wide")
    HSDSExportDatasetOperator(task_id="k6", domain="/a.h5", dataset="/b", bucket="b", prefix="p", layout="w")  # wrong
    HSDSImportDatasetOperator(task_id="k7", source="/f", domain="/a.h5", dataset="/b", layout="long")  # wrong
    CheckConnectionsOperator(task_id="k8", bucket="b", where="triggerer", sqs_queue="q")
    CheckConnectionsOperator(task_id="k9", bucket="b", where="scheduler")  # wrong
    AISMeasureThroughputOperator(task_id="l1", bucket="ais://b", workload="mixed", on_regression="report", chart="")
    AISMeasureThroughputOperator(task_id="l2", bucket="ais://b", workload="rw")  # wrong
    AISMeasureTransformsOperator(task_id="l3", source="ais://b", servers=["flask"], file_access="on")
    AISMeasureTransformsOperator(task_id="l4", source="ais://b", servers=["django"])  # wrong
    probe = AISProbeAudioOperator(task_id="l5", source="a", destination="b", outlets=[])
    ClickHouseLoadManifestOperator(task_id="l6", bucket="a", facts="b", effect=probe.output)
    ClickHouseLoadManifestOperator(task_id="l7", bucket="a", fact="b", effect="e")  # wrong
    ClickHouseLoadManifestOperator(task_id="l8", bucket="a", facts="b", effect="e", on_invalid_rows="report")
    ClickHouseLoadManifestOperator(task_id="l9", bucket="a", facts="b", effect="e", on_invalid_rows="skip")  # wrong
    ClickHouseExportManifestOperator(task_id="m1", bucket="a", destination="s3://b/c.jsonl", format="lhotse_cuts")
    ClickHouseExportManifestOperator(task_id="m2", bucket="a", destination="s3://b/c.jsonl", format="kaldi")  # wrong
"""
WRONG = {number for number, line in enumerate(DAG.splitlines(), 1) if line.endswith("# wrong")}
DAGS = sorted((CHECKOUT / "dags").glob("*.py"))


@pytest.fixture
def dag(tmp_path: Path) -> Path:
    path = tmp_path / "typed_dag.py"
    path.write_text(DAG)
    return path


def places(found: list[tuple[str, int, str]], dag: Path) -> set[int]:
    """Return the lines with errors in the DAG above. Fail for errors in any other file."""
    assert [error for error in found if not error[0].endswith(dag.name)] == []
    return {line for _, line, _ in found}


def test_pyright_finds_the_mistakes_and_none_in_our_dags(dag: Path) -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["pyright"]
    settings["include"] = [str(dag), *(str(CHECKOUT / folder) for folder in settings["include"])]
    settings["extraPaths"] = [str(CHECKOUT / folder) for folder in settings["extraPaths"]]
    (dag.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    program = str(Path(sys.executable).with_name("basedpyright"))
    command = [program, "--project", str(dag.parent), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1 + len(DAGS)
    found = [
        (error["file"], error["range"]["start"]["line"] + 1, error["message"])
        for error in report["generalDiagnostics"]
        if error["severity"] == "error"
    ]
    assert places(found, dag) == WRONG


def test_mypy_finds_the_mistakes_and_none_in_our_dags(dag: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--output", "json", str(dag), *map(str, DAGS)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(error["file"], error["line"], error["message"]) for error in errors if error["severity"] == "error"]
    assert places(found, dag) == WRONG, done.stderr
