"""Mapped tasks, ``.partial().expand()``, that run at the same time on one bucket pair, one table or one ETL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.operators import (
    AISCopyBucketOperator,
    AISProbeAudioOperator,
    AISTransformBucketOperator,
    ClickHouseLoadManifestOperator,
    S3ToClickHouseOperator,
    StorageCopyBucketOperator,
)
from tests.support import INIT_SECONDS, put, read, sizes, small_spec, task_context, unique
from tests.transfers import Loading

pytestmark = pytest.mark.usefixtures("connections", "no_etl_is_left")

PREFIXES = ("a/", "b/", "c/")


def together(kind: Any, mapped: Sequence[dict[str, str]], run: Any = None, **common: Any) -> list[dict[str, Any]]:
    """Run a task for each of the mapped arguments, all at the same time, without retries."""
    run = run or task_context()["dag_run"]
    with DAG("mapped"):
        tasks = kind.partial(task_id="t", **common).expand_kwargs(list(mapped))

    def execute(index: int) -> dict[str, Any]:
        return dict(tasks.unmap(mapped[index]).execute(task_context("t", run, index)))

    with ThreadPoolExecutor(len(mapped)) as threads:
        return list(threads.map(execute, range(len(mapped))))


def by_prefix() -> list[dict[str, str]]:
    return [{"prefix": prefix} for prefix in PREFIXES]


def texts() -> dict[str, bytes]:
    return {f"{prefix}{n}.txt": f"{prefix}{n}".encode() for prefix in PREFIXES for n in range(3)}


@pytest.mark.guarantee("mapped-tasks")
def test_probes_of_prefixes(aistore: Any, clickhouse: Any, recordings: Callable[[int], list[Path]]) -> None:
    audio, facts = Bucket("ais", unique("audio")), Bucket("ais", unique("facts"))
    (sound,) = (path.read_bytes() for path in recordings(1))
    names = [f"{prefix}{n}.flac" for prefix in PREFIXES for n in range(2)]
    put(aistore, audio, dict.fromkeys(names, sound))
    Ledger(clickhouse).create()
    clickhouse.insert(  # as if a transcode had made them
        "storeside.objects", [["s3://made", str(audio), name, name, "done"] for name in names],
        column_names=["source", "destination", "object", "destination_object", "status"],
    )  # fmt: skip
    run = task_context()["dag_run"]
    buckets = {"task_id": "t", "bucket": str(audio), "facts": str(facts)}
    found = together(
        AISProbeAudioOperator, by_prefix(), run, source=str(audio), destination=str(facts), deferrable=False,
        init_timeout=INIT_SECONDS,
    )  # fmt: skip
    assert [(one["listed"], one["done"], one["failed"]) for one in found] == [(2, 2, 0)] * 3
    context = task_context("t", run)
    effect = found[0]["effect"]
    assert ClickHouseLoadManifestOperator(effect=effect, **buckets).execute(context)["rows"] == 6
    done = clickhouse.query(
        "SELECT object FROM storeside.objects FINAL WHERE source = {source:String} AND status = 'done'"
        " ORDER BY object",
        parameters={"source": str(audio)},
    ).result_rows
    assert [name for (name,) in done] == names


def test_transforms_of_prefixes(aistore: Any) -> None:
    source, to = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {**texts(), "b/bad.txt": b"bad"})
    found = together(
        AISTransformBucketOperator, by_prefix(), source=str(source), destination=str(to), on_failed_objects="report",
        etl=small_spec("upper", environment={"SUFFIX": "!"}), deferrable=False,
    )  # fmt: skip
    assert [(one["listed"], one["done"], one["failed"]) for one in found] == [(3, 3, 0), (4, 3, 1), (3, 3, 0)]
    assert found[1]["examples"] == [["b/bad.txt", "this object is bad"]]
    assert {name: read(aistore, to, name) for name in sizes(aistore, to)} == {
        name: content.upper() + b"!" for name, content in texts().items()
    }


def test_an_etl_that_another_task_ends_before_the_submission_is_started_again(
    aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to = Bucket("ais", unique("in")), f"ais://{unique('out')}"
    put(aistore, source, {"a.txt": b"a"})
    ensure, started = etls.ensure, []

    def ended(client: Any, spec: Any, pods: Any, **options: Any) -> list[str]:
        names = ensure(client, spec, pods, **options)
        if not started:
            assert etls.release(client, names)
        started.extend(names)
        return names

    monkeypatch.setattr(etls, "ensure", ended)
    spec = small_spec("upper", environment={"SUFFIX": "."})
    (found,) = together(
        AISTransformBucketOperator, [{"source": str(source)}], destination=to, etl=spec, deferrable=False
    )
    assert (found["done"], found["failed"], len(started)) == (1, 0, 2)


def test_no_etl_ends_while_a_transform_is_submitted(aistore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etls, "_END_SECONDS", 0.5)
    names = etls.ensure(aistore, small_spec("upper"))
    with etls.kept(aistore, names):
        assert not etls.release(aistore, names)
        assert etls.are_there(aistore, names)


@pytest.mark.parametrize(
    ("kind", "more"), [(AISCopyBucketOperator, {"deferrable": False}), (StorageCopyBucketOperator, {})]
)
def test_copies_of_prefixes(kind: Any, more: dict[str, Any], aistore: Any, s3_client: Any) -> None:
    source, to = unique("in"), Bucket("ais", unique("out"))
    s3_client.create_bucket(Bucket=source)
    for name, content in texts().items():
        s3_client.put_object(Bucket=source, Key=name, Body=content)
    found = together(kind, by_prefix(), source=f"s3://{source}", destination=str(to), **more)
    assert [(one["listed"], one["done"], one["failed"]) for one in found] == [(3, 3, 0)] * 3
    assert {name: read(aistore, to, name) for name in sizes(aistore, to)} == texts()


@pytest.mark.guarantee("mapped-tasks")
def test_loads_of_prefixes_and_of_buckets_into_one_table(loading: Loading, s3_client: Any) -> None:
    other = unique("other")
    s3_client.create_bucket(Bucket=other)
    for bucket in (loading.bucket, other):
        for prefix in PREFIXES:
            for n in range(2):
                body = b"".join(b'{"a": %d}\n' % row for row in range(10))
                s3_client.put_object(Bucket=bucket, Key=f"{prefix}{n}.jsonl", Body=body)
    mapped = [{"source": f"s3://{bucket}/{prefix}"} for bucket in (loading.bucket, other) for prefix in PREFIXES]
    found = together(S3ToClickHouseOperator, mapped, table=loading.table, format="jsonl", deferrable=False)
    assert [(one["listed"], one["loaded"], one["rows"]) for one in found] == [(2, 2, 20)] * 6
    assert loading.query(f"SELECT count(), uniqExact(_storeside_load) FROM {loading.table}") == [(120, 12)]
