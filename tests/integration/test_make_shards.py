"""Shards that a cluster makes of objects: complete, in order and repeatable, or with a reason in the ledger."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket, delete_objects, objects_url
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.objects import Ledger
from storeside.operators import AISMakeShardsOperator
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transform import shard_check
from storeside.transform.make_shards import ShardsJob
from storeside.transform.shard_check import members_of
from storeside.transform.shard_plan import Packing
from storeside.transform.state import Options, Summary
from tests.shards import files, tar
from tests.support import failures, put, read, shared_etls, small_spec, task_context, unique, until

Drive = Callable[[Any], Summary]


@dataclass
class Making:
    """A test's folder of the source, its destination, and the jobs that make shards."""

    client: Any
    ledger: Ledger
    endpoint: str
    source: Bucket
    destination: Bucket
    folder: str

    def put(self, objects: Mapping[str, bytes]) -> None:
        put(self.client, self.source, {self.folder + name: content for name, content in objects.items()})

    def job(self, run: str = "", task: str = "", **packing: Any) -> ShardsJob:
        return ShardsJob(
            self.client, self.ledger, self.source, self.destination, run_id=run or unique("run"),
            spec=small_spec("upper").gathering(objects_url(self.endpoint, self.source, "")),
            packing=Packing(**{"prefix": self.folder, **packing}), task=task, options=Options(keep_etl=True),
        )  # fmt: skip

    def shard(self, name: str) -> list[tuple[str, bytes]]:
        shard = files(read(self.client, self.destination, name))
        return [(name.removeprefix(self.folder), content) for name, content in shard]

    def shards(self) -> dict[str, list[tuple[str, bytes]]]:
        return {name: self.shard(name) for name in self.versions()}

    def versions(self) -> dict[str, str]:
        return {found.name: found.version for found in list_aistore(self.client, self.destination)}

    def work_buckets(self) -> list[str]:
        return [b.name for b in self.client.cluster().list_buckets() if b.name.startswith("storeside-shards-")]


@pytest.fixture(scope="module")
def source(aistore: Any) -> Iterator[Bucket]:
    """The bucket of all tests: they share its ETL, because a start and an end of an ETL take seconds."""
    bucket = Bucket("ais", unique("files"))
    bucket.handle(aistore).create()
    yield bucket
    until(lambda: not jobs.running_transforms(aistore), 30, "end of the transforms")
    etls.release(aistore, set(etls.ours(aistore)) - shared_etls())


@pytest.fixture
def making(aistore: Any, clickhouse: Any, stack: Stack, source: Bucket) -> Making:
    destination = Bucket("ais", unique("shards"))
    return Making(aistore, Ledger(clickhouse), stack.url("ais_proxy"), source, destination, unique("in") + "/")


def samples(count: int) -> dict[str, bytes]:
    """Return objects of 3 files per sample; the contents have different sizes, and some are empty."""
    return {
        f"{n:03}.{extension}": f"{n}{extension}".encode() * (97 * n % 1000)
        for n in range(count)
        for extension in ("flac", "json", "seg.txt")
    }


def test_shards_have_whole_samples_in_order(making: Making, drive: Drive) -> None:
    objects = {**samples(40), "z/large.bin": bytes(40 << 20), "z/ü #?%41.txt": b"umlaut", f"é{'é' * 90}.txt": b"long"}
    making.put({**objects, ".skipped": b"", "other.md": b"", "_SUCCESS.json": b"", "z/.a.flac": b"", "z/b.crc": b""})
    summary = drive(making.job(objects="*.flac,*.json,*.txt,*.bin", samples_per_shard=7))
    assert (summary.source, summary.listed, summary.done, summary.failed) == (str(making.source), 7, 7, 0)
    assert summary.bytes_in == sum(map(len, objects.values()))
    assert summary.ignored == {"_*": 1, ".*": 1}, "of the objects that the patterns select"
    shards = making.shards()
    assert list(shards) == [f"shard-{n:06d}.tar" for n in range(7)]
    assert [member for shard in shards.values() for member in shard] == sorted(objects.items())
    assert [len(shard) for shard in shards.values()] == [21, 21, 21, 21, 21, 17, 1]
    assert making.work_buckets() == []
    read_as_samples = [sample for shard in shards.values() for sample in groups(shard)]
    assert len(read_as_samples) == 43
    assert read_as_samples[5] == {
        "__key__": "005", **{kind: objects[f"005.{kind}"] for kind in ("flac", "json", "seg.txt")}
    }  # fmt: skip


def test_webdataset_reads_the_samples(making: Making, drive: Drive) -> None:
    wds = pytest.importorskip("webdataset.tariterators")
    objects = samples(9)
    making.put(objects)
    assert drive(making.job(samples_per_shard=4)).done == 3
    shards = {name: BytesIO(read(making.client, making.destination, name)) for name in making.versions()}
    streams = ({"url": name, "stream": content} for name, content in shards.items())
    found = list(wds.group_by_keys(wds.tar_file_expander(streams)))
    assert [sample["__key__"] for sample in found] == [f"{making.folder}{n:03}" for n in range(9)]
    for n, sample in enumerate(found):
        assert {kind: sample[kind] for kind in sample if not kind.startswith("__")} == {
            kind: objects[f"{n:03}.{kind}"] for kind in ("flac", "json", "seg.txt")
        }


def test_a_later_run_makes_only_shards_whose_objects_changed(
    making: Making, drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    objects = samples(12)
    making.put(objects)
    assert drive(making.job(samples_per_shard=3)).done == 4
    before = making.versions()
    again = drive(making.job(samples_per_shard=3))
    assert (again.skipped, again.done) == (4, 0)
    making.put({"004.json": b"x" * len(objects["004.json"]), "001.json": objects["001.json"]})
    # a foreign object in place of a shard
    put(making.client, making.destination, {"shard-000002.tar": tar([("006.flac", b"")])})
    delete_objects(making.client, making.destination, ["shard-000003.tar"])
    third = drive(making.job(samples_per_shard=3))
    assert (third.skipped, third.done) == (1, 3)
    after = making.versions()
    content = {name: version.rpartition("/")[2] for name, version in before.items()}
    changed = [name for name, version in after.items() if version.rpartition("/")[2] != content[name]]
    assert changed == ["shard-000001.tar"], "the same objects make the same bytes"
    with caplog.at_level(logging.WARNING):
        drive(making.job(samples_per_shard=6))
    assert "has 2 shards after the last one of this run, such as shard-000002.tar" in caplog.text


def test_a_missing_object_fails_its_shard_alone(
    making: Making, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first part of these shards is sent before the server finds that the next one cannot be made
    large = {"000.bin": bytes(20 << 20), "006.bin": bytes(20 << 20)}
    objects = {**samples(9), **large}
    making.put(objects)
    lost, grown = "001.json", "007.flac"
    write, run = ShardsJob._write, unique("run")

    def planned(self: ShardsJob, shard: Any) -> Any:
        found = write(self, shard)
        if shard.name == "shard-000002.tar":  # the listing is complete
            delete_objects(making.client, making.source, [making.folder + lost])
            making.put({grown: b"other"})
        return found

    monkeypatch.setattr(ShardsJob, "_write", planned)
    summary = drive(making.job(run, samples_per_shard=3))
    assert (summary.done, summary.failed) == (1, 2)
    assert making.versions().keys() == {"shard-000001.tar"}, "nothing has the name of a failed shard"
    reasons = failures(making.ledger.client, run, making.destination)
    assert reasons.keys() == {"shard-000000.tar", "shard-000002.tar"}
    assert reasons["shard-000000.tar"].startswith(f"{making.folder}{lost}: HTTP 404: ")
    size = len(objects[grown])
    assert reasons["shard-000002.tar"] == (
        f"{making.folder}{grown}: it has 5 bytes, and had {size} when the shard was planned: run the task again"
    )
    monkeypatch.undo()
    assert drive(making.job(samples_per_shard=3)).failed == 0
    assert [name for shard in making.shards().values() for name, _ in shard] == sorted(objects.keys() - {lost})


def test_a_killed_task_continues_and_keeps_other_tasks_out(
    making: Making, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = samples(4)
    making.put(objects)
    run = unique("run")
    killed = making.job(run, samples_per_shard=1)
    state = killed.begin()
    with monkeypatch.context() as patched:
        patched.setattr("storeside.transform.make_shards.jobs.running_between", lambda *_: "a job")
        with pytest.raises(AIStoreTransientError, match="another task makes shards of"):
            making.job(samples_per_shard=2).begin()
    making.put({"009.flac": b"it is not in the plan"})
    killed.submit(state)
    assert drive(making.job(run, samples_per_shard=1)).done == 4
    assert [member for shard in making.shards().values() for member in shard] == sorted(objects.items())
    assert making.work_buckets() == []


@pytest.mark.parametrize("moment", ["begun", "done"])
def test_tasks_of_a_run_with_other_objects_need_other_names(making: Making, drive: Drive, moment: str) -> None:
    making.put({"2024/a.txt": b"a", "2025/b.txt": b"b"})
    run, (old, new) = unique("run"), (f"{making.folder}{year}/" for year in (2024, 2025))
    first = making.job(run, "task/0", prefix=old)
    if moment == "begun":
        first.begin()
    else:
        assert drive(first).done == 1
    names = "another task of this run makes shards 'shard-.*2024/.*2025/.*would overwrite them: give each task"
    with pytest.raises(AIStoreInputError, match=names):
        making.job(run, "task/1", prefix=new).begin()
    with pytest.raises(AIStoreInputError, match=names):
        making.job(run, "task/1", prefix=making.folder, objects="*2025/*").begin()
    assert drive(making.job(run, "task/1", prefix=new, name="2025-{:06d}.tar")).done == 1
    assert drive(making.job(run, "task/0", prefix=old)).failed == 0, "a cleared task"
    assert making.shards() == {
        "2025-000000.tar": [("2025/b.txt", b"b")], "shard-000000.tar": [("2024/a.txt", b"a")],
    }  # fmt: skip
    assert drive(making.job(run, "task/0", prefix=new)).done == 1, "a cleared task with a corrected prefix"
    assert drive(making.job(prefix=old)).done == 1, "a later run"
    assert making.work_buckets() == []


def test_current_versions_of_remote_objects(making: Making, drive: Drive, s3_client: Any) -> None:
    making.source, making.folder = Bucket("s3", unique("remote")), "in/"
    s3_client.create_bucket(Bucket=making.source.name)
    objects = samples(4)
    for name, content in objects.items():
        s3_client.put_object(Bucket=making.source.name, Key=f"in/{name}", Body=content)
    assert drive(making.job()).done == 1
    objects["001.json"] = objects["001.json"].swapcase()  # AIStore has cached the former content
    s3_client.put_object(Bucket=making.source.name, Key="in/001.json", Body=objects["001.json"])
    assert drive(making.job()).done == 1
    assert [member for shard in making.shards().values() for member in shard] == sorted(objects.items())


def test_a_shard_counts_only_with_the_planned_members(
    making: Making, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.put(samples(4))
    found, calls, wrong = members_of, [], making.folder + "002.json"

    def differs(client: Any, bucket: Bucket, shard: str) -> dict[str, int]:
        calls.append(shard)
        members = found(client, bucket, shard)
        assert len(members) == 6
        return {**members, wrong: 1} if shard == "shard-000001.tar" else members

    monkeypatch.setattr(shard_check, "members_of", differs)
    monkeypatch.setattr("storeside.transform.bucket_job.RETRIES", 1)
    run = unique("run")
    summary = drive(making.job(run, samples_per_shard=2))
    assert (summary.done, summary.failed) == (1, 1)
    assert calls.count("shard-000001.tar") > 1, "it was made again"
    (reason,) = failures(making.ledger.client, run, making.destination).values()
    assert reason == f"its members are not the planned ones: 1 differ, such as {wrong!r}"


def test_wrong_names_and_places_are_refused_before_anything_is_written(making: Making) -> None:
    making.put({"a.JPG": b"1", "a.jpg": b"2", "README": b"3"})
    wrong = r"2 objects cannot be .*README': .*; '.*a.JPG' and '.*a.jpg' are the same"
    with pytest.raises(AIStoreInputError, match=wrong):
        making.job().begin()
    assert making.versions() == {}
    assert making.work_buckets() == []
    assert making.job(objects="*.jpg").preview() == {"listed": 1, "pending": 1, "known_bad": 0, "refused": 0}
    assert making.work_buckets() == []
    making.destination = making.source
    with pytest.raises(AIStoreInputError, match=r"would take '.*/0.tar' for one of its objects"):
        making.job(name=making.folder + "{}.tar").begin()


def test_a_task_defers_and_makes_shards_in_the_bucket_of_their_objects(
    making: Making, stack: Stack, clickhouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(airflow.connections(stack)["AISTORE_DEFAULT"]))
    monkeypatch.setattr("storeside.operators.operators.shards.ledger", lambda _: Ledger(clickhouse))
    making.put(samples(4))
    folder = unique("tars")
    uri = str(making.source)
    task = AISMakeShardsOperator(
        task_id="make", source=uri, destination=uri, prefix=making.folder, name=folder + "/{}.tar", outlets=[]
    )

    monkeypatch.setattr("storeside.operators.bases.bucket_job.BRIEF_SECONDS", 0)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(first := task_context("make"))

    async def event() -> Any:
        return await anext(deferred.value.trigger.run())

    summary = task.resume(first, asyncio.run(event()).payload, **(deferred.value.kwargs or {}))
    assert (summary["source"], summary["done"], summary["failed"]) == (uri, 1, 0)
    making.destination = making.source
    assert making.shard(f"{folder}/0.tar") == sorted(samples(4).items())
    again = task.execute(task_context("make"))
    assert (again["skipped"], again["done"]) == (1, 0)


def groups(shard: list[tuple[str, bytes]]) -> list[dict[str, bytes]]:
    """Return the samples that WebDataset reads, by the rule of its ``tariterators.group_by_keys``."""
    found: list[dict[str, Any]] = []
    for name, content in shard:
        match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
        assert match
        if not found or found[-1]["__key__"] != match[1]:
            found.append({"__key__": match[1]})
        assert match[2] not in found[-1]
        found[-1][match[2]] = content
    return found
