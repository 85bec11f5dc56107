"""Exports of the speech manifest: ClickHouse writes them into S3, in the documented formats of NeMo and Lhotse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from storeside.operators import ClickHouseExportManifestOperator
from storeside.speech.export import ExportError, export
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transfer.request.source import Source
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


# Name, channels, samples, share of silence, bandwidth and signal-to-noise ratio of recordings, and their run.
RECORDINGS = [
    ("a/b c.wav", 1, 16_000, 0.25, 7_800.0, 31.5, "dag/1"),
    ('odd"\\ü*.wav', 1, 8_001, 0.0, None, None, "dag/2"),
    ("two.wav", 2, 2**33, None, None, None, "dag/2"),
]
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def bucket(clickhouse: Any) -> str:
    """The URI of a bucket with rows in the manifest; one recording also has an older row."""
    name = f"ais://{unique('speech')}"
    rows = [
        [name, recording, channels, 16_000, samples, samples / 16_000, -20.0, silence, 0.0, band, snr, run]
        for recording, channels, samples, silence, band, snr, run in RECORDINGS
    ]
    columns = [
        "bucket", "object", "channels", "sample_rate", "samples", "duration_seconds", "rms_dbfs", "silence_share",
        "clipped_share", "bandwidth_hz", "snr_db", "run_id",
    ]  # fmt: skip
    for part in ([[*rows[0][:4], 1, 0.1, *rows[0][6:]]], rows):
        clickhouse.insert("speech.manifest", part, column_names=columns, settings={"async_insert": 0})
    return name


@pytest.fixture(scope="module")
def target(s3_client: S3Client) -> str:
    name = unique("datasets")
    s3_client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def lines(clickhouse: Any, s3_client: S3Client, bucket: str, target: str) -> Callable[..., Lines]:
    def lines(form: str, key: str = "train/x.jsonl.gz", run_id: str = "") -> Lines:
        """Return what an export wrote."""
        rows = export(clickhouse, Source(target, key, "storeside_s3"), form, bucket, run_id)
        content = s3_client.get_object(Bucket=target, Key=key)["Body"].read()
        found = (gzip.decompress(content) if key.endswith(".gz") else content).decode().splitlines()
        assert rows == len(found)
        return [json.loads(line) for line in found]

    return lines


@pytest.mark.parametrize("key", ["train/manifest é.json", "train/manifest.json.gz"])
def test_nemo_has_path_duration_and_facts(lines: Callable[..., Lines], bucket: str, key: str) -> None:
    found = lines("nemo", key)
    assert [(line["audio_filepath"], line["duration"]) for line in found] == [
        (f"{bucket}/{name}", samples / 16_000) for name, _, samples, *_ in RECORDINGS
    ]
    assert [line["snr_db"] for line in found] == [31.5, None, None]


def test_lhotse_has_recordings(lines: Callable[..., Lines], bucket: str) -> None:
    for line, (name, channels, samples, *_) in zip(lines("lhotse_recordings"), RECORDINGS, strict=True):
        assert line == recording(bucket, name, channels, samples)


def test_lhotse_has_cuts_with_facts(lines: Callable[..., Lines], bucket: str) -> None:
    for line, (name, channels, samples, silence, band, snr, _) in zip(lines("lhotse_cuts"), RECORDINGS, strict=True):
        assert line == {
            "id": name,
            "start": 0,
            "duration": samples / 16_000,
            "channel": 0 if channels == 1 else [0, 1],
            "supervisions": [],
            "recording": recording(bucket, name, channels, samples),
            "custom": {
                "rms_dbfs": -20,
                "silence_share": silence,
                "clipped_share": 0,
                "bandwidth_hz": band,
                "snr_db": snr,
            },
            "type": "MonoCut" if channels == 1 else "MultiCut",
        }


def recording(bucket: str, name: str, channels: int, samples: int) -> dict[str, Any]:
    """Return a recording as Lhotse's documentation describes it (docs/corpus.rst)."""
    return {
        "id": name,
        "sources": [{"type": "url", "channels": list(range(channels)), "source": f"{bucket}/{name}"}],
        "sampling_rate": 16_000,
        "num_samples": samples,
        "duration": samples / 16_000,
        "channel_ids": list(range(channels)),
    }


def test_the_export_of_a_run_replaces_the_object(lines: Callable[..., Lines], bucket: str) -> None:
    assert [line["audio_filepath"] for line in lines("nemo", run_id="dag/1")] == [f"{bucket}/a/b c.wav"]
    assert len(lines("nemo", run_id="dag/2")) == 2


def test_without_rows_nothing_is_written(clickhouse: Any, s3_client: S3Client, target: str) -> None:
    assert export(clickhouse, Source(target, "none.jsonl", "storeside_s3"), "nemo", "ais://none") == 0
    assert "Contents" not in s3_client.list_objects_v2(Bucket=target, Prefix="none")


@pytest.mark.parametrize("key", ["", "folder/", "a*.jsonl", "a.zip", "a//b", "a.jsonl.zst"])
def test_keys_that_clickhouse_cannot_write_are_refused(clickhouse: Any, target: str, key: str) -> None:
    with pytest.raises(ExportError, match="name one object"):
        export(clickhouse, Source(target, key), "nemo", "ais://none")


def test_the_operator_exports_its_run(
    stack: Stack, s3_client: S3Client, bucket: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = airflow.connections(stack)
    exports = {**connections["CLICKHOUSE_DEFAULT"], "login": "storeside", "password": stack.secrets["clickhouse"]}
    for name, value in {**connections, "EXPORTS": exports}.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))
    context: Any = {"dag_run": SimpleNamespace(dag_id="dag", run_id="2")}
    task = ClickHouseExportManifestOperator(
        task_id="export", bucket=bucket, destination=f"s3://{target}/cuts.jsonl.gz", format="lhotse_cuts",
        only_this_run=True, clickhouse_conn_id="exports",
    )  # fmt: skip
    assert task.execute(context) == {"recordings": 2, "destination": f"s3://{target}/cuts.jsonl.gz"}
    content = s3_client.get_object(Bucket=target, Key="cuts.jsonl.gz")["Body"].read()
    assert len(gzip.decompress(content).splitlines()) == 2
    task.destination = "ais://speech/cuts.jsonl"
    with pytest.raises(AirflowFailException, match="write s3://bucket/key"):
        task.execute(context)
