"""Measurements of a cloud bucket through AIStore's own backend, on the embedded stack's S3."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.names import SCRATCH
from storeside.copying.errors import CopyCancelled, CopyInputError
from storeside.measure.backends import draw, table
from storeside.measure.through import Through, benchmark
from storeside.operators import StorageBenchmarkOperator
from tests.support import task_context, unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

MB = 1_000_000


@pytest.fixture
def subject(aistore: Any, s3_client: S3Client) -> Through:
    name = unique("measured")
    s3_client.create_bucket(Bucket=name)
    return Through(aistore, Bucket("s3", name), "aistore test", change_parts=True)


def part_size(subject: Through) -> Any:
    props = json.loads(subject.bucket.handle(subject.client).head()["Ais-Bucket-Props"])
    return ((props.get("extra") or {}).get("aws") or {}).get("multipart_size", 0)


def test_each_operation_has_its_parts_and_leaves_nothing(
    subject: Through, s3_client: S3Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    etags: dict[str, str] = {}
    delete = Through.delete

    def look(self: Through, key: str) -> None:
        (found,) = s3_client.list_objects_v2(Bucket=self.bucket.name)["Contents"]
        assert found["Key"] == key
        assert key.startswith(SCRATCH)
        etags[operations[len(etags)]] = found["ETag"].strip('"').partition("-")[2]
        delete(self, key)

    operations = subject.operations
    monkeypatch.setattr(Through, "delete", look)
    before = part_size(subject)
    results = benchmark([subject], rounds=1, get_bytes=MB, put_bytes=22 * MB)
    assert [(r.operation, r.object_size, r.part_size) for r in results] == [
        ("get cold", MB, 0), ("get large", 22 * MB, 0), ("put single", 22 * MB, 0),
        ("put few parts", 22 * MB, 10 * MB), ("put many parts", 22 * MB, 5 << 20),
    ]  # fmt: skip
    assert [etags[name] for name in ("put single", "put few parts", "put many parts")] == ["", "3", "5"]
    assert all(r.median > 0 for r in results)
    assert part_size(subject) == before
    assert s3_client.list_objects_v2(Bucket=subject.bucket.name)["KeyCount"] == 0
    assert f"| put few parts | {results[3].median:.2f} |" in table(results)
    draw(str(tmp_path / "chart.png"), results)


def test_a_cold_get_reads_from_the_cloud(subject: Through, s3_client: S3Client) -> None:
    subject.put("a", MB)
    s3_client.put_object(Bucket=subject.bucket.name, Key="a", Body=b"x" * MB)  # behind AIStore's back
    assert subject.get_cold("a", MB) > 0
    assert subject.bucket.handle(subject.client).object("a").get_reader().read_all() == b"x" * MB


def test_a_stopped_measurement_restores_the_bucket(subject: Through, s3_client: S3Client) -> None:
    before, stop = part_size(subject), threading.Event()
    stop.set()
    with pytest.raises(CopyCancelled):
        benchmark([subject], rounds=1, put_bytes=MB, stop=stop)
    with pytest.raises(CopyCancelled), subject.parts_of("put single"):
        subject.put("a", MB, stop)
    assert part_size(subject) == before
    assert s3_client.list_objects_v2(Bucket=subject.bucket.name)["KeyCount"] == 0


def test_other_buckets_are_refused(aistore: Any) -> None:
    with pytest.raises(CopyInputError, match="AIStore stores it itself"):
        Through(aistore, Bucket("ais", "own"), "")
    with pytest.raises(CopyInputError, match="no-such-bucket"):
        benchmark([Through(aistore, Bucket("s3", "no-such-bucket"), "")], rounds=1, put_bytes=1)
    with pytest.raises(CopyInputError, match="at least one"):
        benchmark([])


@pytest.mark.usefixtures("connections")
def test_the_operator_records_both_ways(subject: Through, table_of: Callable[[str], Any]) -> None:
    task = StorageBenchmarkOperator(
        task_id="measure", backends=f"s3://{subject.bucket.name}", through_aistore=f"s3://{subject.bucket.name}",
        rounds=1, megabytes=1,
    )  # fmt: skip
    results = task.execute(task_context("measure", SimpleNamespace(dag_id="dag", run_id=unique("run"))))
    through = [r for r in results if "through AIStore" in r["backend"]]
    assert [r["operation"] for r in through] == ["get cold", "get large", "put as set"]
    assert len(results) == 7
    rows = table_of(through[0]["backend"])
    assert sorted(rows) == [("get cold", 10_000_000), ("get large", MB), ("put as set", MB)]


@pytest.fixture
def table_of(clickhouse: Any) -> Callable[[str], Any]:
    def read(backend: str) -> Any:
        return clickhouse.query(
            "SELECT operation, object_size FROM storeside.backend_benchmark WHERE backend = {backend:String}",
            parameters={"backend": backend},
        ).result_rows

    return read
