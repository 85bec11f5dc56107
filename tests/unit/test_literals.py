"""Literal arguments are checked while a DAG is parsed, and results are plain JSON."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.spec import EtlSpec
from storeside.errors import BadInput
from storeside.operators import (
    AfterLoad,
    AISCopyBucketOperator,
    AISCutSegmentsOperator,
    AISCutUtterancesOperator,
    AISDeleteEtlOperator,
    AISGetObjectOperator,
    AISInitEtlOperator,
    AISInspectBucketOperator,
    AISMakeShardsOperator,
    AISPrefetchBucketOperator,
    AISProbeAudioOperator,
    AISStartEtlOperator,
    AISStopEtlOperator,
    AISTranscodeAudioOperator,
    AISTransformBucketOperator,
    AISTransformObjectOperator,
    CheckConnectionsOperator,
    ClickHouseExportManifestOperator,
    ClickHouseLoadManifestOperator,
    S3EventsToClickHouseOperator,
    S3ToClickHouseOperator,
    SqsLeaseS3EventsOperator,
    SqsS3EventsSensor,
    SqsSettleS3EventsOperator,
    SqsSettleSpeechEventsOperator,
    StorageCopyBucketOperator,
    Upsert,
)
from storeside.operators.shared import plain

PAIR = {"source": "s3://in", "destination": "ais://out"}
FACTS = {"bucket": "ais://speech", "facts": "ais://facts"}
EXPORT = {"bucket": "ais://speech", "destination": "s3://out/a.jsonl"}
LOAD = {"bucket": "trips", "table": "data.trips"}
FROM = {"table": "data.trips"}
ETL = {"etl": EtlSpec("e", "image")}
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (AISCopyBucketOperator, {**PAIR, "source": "s4://in"}, "source: bucket 's4://in': write it as one of"),
    (AISCopyBucketOperator, {**PAIR, "destination": "ais://out/x"}, "destination: bucket 'ais://out/x': needs"),
    (AISCopyBucketOperator, {**PAIR, "quarantine": "bad"}, "quarantine: bucket 'bad'"),
    (AISCopyBucketOperator, {**PAIR, "on_failed_objects": "no"}, "on_failed_objects 'no': use"),
    (AISCopyBucketOperator, {**PAIR, "retry_failed": "maybe"}, "retry_failed 'maybe' is neither"),
    (AISTransformBucketOperator, {**PAIR, **ETL, "communication": "tcp"}, "communication 'tcp' is not one of"),
    (AISTransformBucketOperator, {**PAIR, **ETL, "in_place": "perhaps"}, "in_place 'perhaps' is neither"),
    (AISTransformBucketOperator, {**PAIR, "direct_put": "no"}, "direct_put 'no' is neither"),
    (AISTransformBucketOperator, {**PAIR, "direct_put": False}, "no WebSocket transform without direct put"),
    (AISTransformBucketOperator, {**PAIR, "file_access": "no"}, "file_access 'no' is neither"),
    (AISTransformBucketOperator, {**PAIR, "init_timeout": "soon"}, "init_timeout 'soon' is not a whole number"),
    (AISTransformBucketOperator, {**PAIR, "init_timeout": 0}, "init_timeout 0 is not a positive number"),
    (AISTransformBucketOperator, {**PAIR, "extensions": "txt"}, "extensions 'txt' is not a mapping"),
    (AISTransformBucketOperator, {**PAIR, "members": " , "}, "members ' , ': name members of shards, such as *.flac"),
    (
        AISMakeShardsOperator,
        {**PAIR, "name": "shard.tar"},
        "name 'shard.tar': write the names of shards with one place",
    ),
    (AISMakeShardsOperator, {**PAIR, "objects": " , "}, "objects ' , ': name objects, such as *.flac"),
    (AISMakeShardsOperator, {**PAIR, "shard_size": "1 GB"}, "shard_size '1 GB' is not a whole number"),
    (AISMakeShardsOperator, {**PAIR, "shard_size": 0}, "shard_size 0: state a positive number of bytes"),
    (AISMakeShardsOperator, {**PAIR, "samples_per_shard": -1}, "samples_per_shard -1: state a number"),
    (AISTransformBucketOperator, {**PAIR, "etl": "etl"}, "existing_etl: ETL name 'etl' is too short"),
    (
        SqsSettleS3EventsOperator,
        {**PAIR, "sqs_queue": "q", "destination": "out"},
        "destination: bucket 'out'",
    ),
    (
        SqsSettleS3EventsOperator,
        {**PAIR, "sqs_queue": "q", "failed": {"a": "broken"}},
        "omit failed: with destination or table",
    ),
    (
        SqsSettleS3EventsOperator,
        {"source": "s3://in", "destination": "s3://out", "table": "data.trips", "sqs_queue": "q"},
        "only loads of results in an ais:// bucket can be settled",
    ),
    (
        SqsSettleS3EventsOperator,
        {"source": "s3://in", "sqs_queue": "q"},
        "set complete: without destination or table",
    ),
    (
        SqsSettleS3EventsOperator,
        {"source": "s3://in", "sqs_queue": "q", "table": "trips"},
        "table 'trips': write database.table",
    ),
    (SqsSettleS3EventsOperator, {**PAIR, "source": "ais://in", "sqs_queue": "q"}, "source 'ais://in': only S3 sends"),
    (
        SqsLeaseS3EventsOperator,
        {"sqs_queue": "q", "lease_seconds": 0},
        "lease_seconds 0: needs to be from 3 to 43200",
    ),
    (
        SqsLeaseS3EventsOperator,
        {"sqs_queue": "q", "lease_seconds": 50_000},
        "lease_seconds 50000: needs to be from 3",
    ),
    (SqsLeaseS3EventsOperator, {"sqs_queue": "q", "max_messages": 0}, "max_messages 0: needs to be 1 or more"),
    (SqsS3EventsSensor, {"sqs_queue": "q", "poke_interval": 0}, "poke_interval 0: needs to be 0.1 or more"),
    (SqsS3EventsSensor, {"sqs_queue": "q", "timeout": -1}, "timeout -1: needs to be 0 or more"),
    (
        CheckConnectionsOperator,
        {"bucket": "trips", "where": "triggrer"},
        "where 'triggrer': write worker or triggerer",
    ),
    (AISInitEtlOperator, {"etl": "my-etl"}, "etl 'my-etl' is no EtlSpec"),
    (AISInspectBucketOperator, {"source": "ais://in", "etl": "my-etl"}, "etl 'my-etl' is no EtlSpec"),
    (AISTransformObjectOperator, {**PAIR, "name": "a", "etl": "my-etl"}, "etl 'my-etl' is no EtlSpec"),
    (
        AISGetObjectOperator,
        {"source": "ais://in", "name": "a", "path": "a", "etl": "my-etl"},
        "'my-etl' is no EtlSpec",
    ),
    (SqsSettleSpeechEventsOperator, {"source": "recordings", "sqs_queue": "q"}, "source: bucket 'recordings'"),
    (
        SqsSettleSpeechEventsOperator,
        {"source": "s3://in", "complete": "maybe", "sqs_queue": "q"},
        "complete 'maybe' is neither true nor false",
    ),
    (AISStartEtlOperator, {"etl_name": "My-etl"}, "etl_name: ETL name 'My-etl' is invalid"),
    (AISStopEtlOperator, {"etl_name": "My-etl"}, "etl_name: ETL name 'My-etl' is invalid"),
    (AISDeleteEtlOperator, {"etl": EtlSpec.existing("my-etl")}, "my-etl is an existing ETL"),
    (AISTranscodeAudioOperator, {**PAIR, "codec": "opus"}, "container wav cannot contain codec 'opus'"),
    (AISTranscodeAudioOperator, {**PAIR, "sample_rate": 10}, "sample rate 10 Hz is outside"),
    (AISTranscodeAudioOperator, {**PAIR, "channel": "middle"}, "channel 'middle': use left, right, or a number"),
    (AISTranscodeAudioOperator, {**PAIR, "channel": 1, "channels": 2}, "channel 1 is one channel: set channels to 1"),
    (AISTranscodeAudioOperator, {**PAIR, "facts": "facts"}, "facts: bucket 'facts'"),
    (AISCutSegmentsOperator, {**PAIR, "segments": "ais://c/a.csv"}, "a file is named as one of"),
    (AISCutSegmentsOperator, {**PAIR, "segments": "ais://c/a.stm", "container": "mp3"}, "codec 'flac'"),
    (AISCutUtterancesOperator, {**PAIR, "container": "mp3"}, "codec 'flac'"),
    (AISCutUtterancesOperator, {**PAIR, "threshold": 2}, "threshold 2.0 is outside 0.2 to 0.95"),
    (AISProbeAudioOperator, {**PAIR, "source": "in"}, "source: bucket 'in'"),
    (AISInspectBucketOperator, {"source": "in", **ETL}, "source: bucket 'in'"),
    (AISPrefetchBucketOperator, {"bucket": "in"}, "bucket 'in'"),
    (StorageCopyBucketOperator, {**PAIR, "source": "gs://in"}, "source: gs://in: a worker reaches"),
    (ClickHouseLoadManifestOperator, {**FACTS, "bucket": "speech", "effect": ""}, "bucket 'speech'"),
    (
        ClickHouseExportManifestOperator,
        {**EXPORT, "format": "kaldi"},
        "format 'kaldi' is not one of nemo, nemo_",
    ),
    (ClickHouseExportManifestOperator, {**EXPORT, "bucket": "speech"}, "bucket 'speech'"),
    (ClickHouseExportManifestOperator, {**EXPORT, "destination": "out"}, "destination 'out': write s3://bucket"),
    (
        ClickHouseExportManifestOperator,
        {**EXPORT, "destination": "s3://out/"},
        "destination: key '': name one object",
    ),
    (
        ClickHouseExportManifestOperator,
        {**EXPORT, "destination": "ais://out/a"},
        "destination 'ais://out/a': ClickHouse's token for AIStore only reads",
    ),
    (ClickHouseLoadManifestOperator, {**FACTS, "effect": "", "on_invalid_rows": "no"}, "on_invalid_rows 'no': use"),
    (S3ToClickHouseOperator, {**LOAD, "bucket": "s3://trips"}, "bucket 's3://trips': a bucket's name has"),
    (S3ToClickHouseOperator, {**LOAD, "bucket": "ais://facts"}, "bucket 'ais://facts': write source='ais://facts'"),
    (S3ToClickHouseOperator, {**LOAD, "source": "ais://facts"}, "source: set it, or bucket and keys, but not both"),
    (S3ToClickHouseOperator, {"table": "data.trips"}, "source: set it, or bucket and keys, but not both"),
    (S3ToClickHouseOperator, {**FROM, "source": "gs://in"}, "source 'gs://in': copy the bucket into AIStore"),
    (S3ToClickHouseOperator, {**FROM, "source": "ais://@c/in"}, "source 'ais://@c/in': write"),
    (S3ToClickHouseOperator, {**FROM, "source": "ais://in/a{b"}, "source: keys 'a{b': close each brace"),
    (
        S3EventsToClickHouseOperator,
        {**LOAD, "bucket": "ais://in", "sqs_queue": "q"},
        "bucket 'ais://in': write source=",
    ),
    (
        S3ToClickHouseOperator,
        {**LOAD, "keys": "raw/", "table": "raw.{table}"},
        "write {table} once in the keys, and once in the name",
    ),
    (S3ToClickHouseOperator, {**LOAD, "table": "trips"}, "table 'trips': write database.table"),
    (S3ToClickHouseOperator, {**LOAD, "keys": "a{b"}, "keys 'a{b': close each brace"),
    (S3EventsToClickHouseOperator, {**LOAD, "sqs_queue": "q", "on_drift": "no"}, "on_drift 'no': choose one of"),
    (S3ToClickHouseOperator, {**LOAD, "after_load": AfterLoad("move")}, "after_load: move_to: set it"),
    (S3ToClickHouseOperator, {**LOAD, "upsert": Upsert(("id",))}, "upsert: name the column that orders the changes"),
    (
        S3EventsToClickHouseOperator,
        {**LOAD, "sqs_queue": "q", "after_load": AfterLoad("drop")},
        "after_load 'drop': choose",
    ),
    (S3ToClickHouseOperator, {**LOAD, "modified_after": "2026-01-01"}, "modified_after '2026-01-01': write a date"),
    (CheckConnectionsOperator, {"bucket": "s3://in"}, "bucket 's3://in'"),
]


@pytest.mark.parametrize(("kind", "arguments", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_a_wrong_literal_is_found_while_the_dag_is_parsed(kind: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        kind(task_id="move", **arguments)
    assert str(error.value).startswith("task 'move': ")
    assert said in str(error.value)
    assert isinstance(error.value, AirflowFailException), "a mapped task, which is made at run time, is not retried"


@task
def names() -> str:
    return "s3://in"


def test_templates_and_results_of_tasks_are_checked_later() -> None:
    with DAG("d"):
        made = AISTranscodeAudioOperator(
            task_id="t", source=names(), destination="{{ params.out }}", codec="{% if 1 %}flac{% endif %}",
            sample_rate="{{ params.rate }}", on_failed_objects="{{ params.on_failure }}",
        )  # fmt: skip
        S3ToClickHouseOperator(task_id="load", bucket=names(), table="{{ params.table }}", keys="{{ ds }}/")
    assert made.codec == "{% if 1 %}flac{% endif %}"


class Colour(Enum):
    RED = "red"


def test_results_are_plain_json() -> None:
    found = {"examples": (("a", "why"),), "colour": Colour.RED, "deep": [{"n": (1, None)}]}
    assert plain(found) == json.loads(json.dumps(plain(found)))
    assert plain(found) == {"examples": [["a", "why"]], "colour": "red", "deep": [{"n": [1, None]}]}
