"""A result of an object in S3 is recorded under the version whose bytes were transformed."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.stored_objects import list_held
from storeside.ledger.objects import Ledger
from storeside.stack.settings import Stack
from storeside.transfer.unproven import main as unproven
from storeside.transform.bucket_job import BucketJob
from storeside.transform.single import get_object, transform_object
from storeside.transform.state import Options, Summary
from tests.support import next_second, put, read, small_spec, unique, versions
from tests.transfers import environment

pytestmark = pytest.mark.usefixtures("embedded_only")
Drive = Callable[[BucketJob], Summary]
# Objects; the figure in the documentation is of 1,000.
OBJECTS = int(os.environ.get("STORESIDE_STALE_OBJECTS", "40"))
PART = 5 << 20


class Changing:
    """A bucket in S3 whose objects are overwritten, and the transforms of it."""

    def __init__(self, aistore: Any, clickhouse: Any, s3: Any, drive: Drive, communication: str | None) -> None:
        self.aistore, self.clickhouse, self.s3, self.drive = aistore, clickhouse, s3, drive
        self.spec = small_spec("upper").over(communication) if communication else None
        self.source, self.to = Bucket("s3", unique("changing")), Bucket("ais", unique("out"))
        s3.create_bucket(Bucket=self.source.name)
        self.contents: dict[str, bytes] = {}
        self.names = [f"in/{n:04}" for n in range(OBJECTS)]
        self.count = 0

    def write(self, name: str, content: bytes = b"") -> None:
        self.count += 1
        content = content or f"{name} {self.count}".encode() * (1 + self.count % 3)
        self.contents[hashlib.md5(content, usedforsecurity=False).hexdigest()] = content
        self.s3.put_object(Bucket=self.source.name, Key=name, Body=content)

    def write_all(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.write, self.names))

    def run(self, **options: Any) -> Summary:
        job = BucketJob(
            self.aistore, Ledger(self.clickhouse), self.source, self.to, run_id=unique("run"), spec=self.spec,
            options=Options(**options),
        )  # fmt: skip
        return self.drive(job)

    def wrong(self) -> list[str]:
        """Return the objects that the ledger calls done with a result that differs from that of their version.

        A result that was replaced after it was recorded is left out: the next run makes it again.
        """
        rows = self.clickhouse.query(
            "SELECT object, version, result_version FROM storeside.objects FINAL"
            " WHERE destination = {to:String} AND status = 'done'",
            parameters={"to": str(self.to)},
        ).result_rows

        there = versions(self.aistore, self.to)

        def differs(row: tuple[str, str, str]) -> bool:
            content = self.contents[row[1]]
            if row[2] != there[row[0]]:
                return False
            return read(self.aistore, self.to, row[0]) != (content.upper() if self.spec else content)

        with ThreadPoolExecutor(4) as pool:
            return [row[0] for row, is_wrong in zip(rows, pool.map(differs, rows), strict=True) if is_wrong]


@pytest.fixture(params=["ws", "hpush", "hpull", None], ids=lambda channel: channel or "copy")
def changing(
    request: pytest.FixtureRequest, aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> Changing:  # fmt: skip
    return Changing(aistore, clickhouse, s3_client, drive, request.param)


def test_results_belong_to_the_recorded_versions(changing: Changing) -> None:
    changing.write_all()
    assert changing.run().done == OBJECTS
    # between runs, also by deletion and creation
    for name in changing.names[::2]:
        changing.s3.delete_object(Bucket=changing.source.name, Key=name)
    changing.write_all()
    found = changing.run()
    assert (found.done, found.failed) == (OBJECTS, 0), found
    assert changing.wrong() == []
    assert changing.run().done == 0
    # during runs
    changing.write_all()
    ended, named = threading.Event(), 0

    def overwrite() -> None:
        chosen = random.Random(1)  # noqa: S311 - not a secret
        while not ended.is_set():
            changing.write(chosen.choice(changing.names[::2]))

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(2):
            # a copy of another size than planned is not counted as failed: a retry of the task copies the object
            with suppress(*([] if changing.spec else [AIStoreTransientError])):
                named += changing.run().failed
    finally:
        ended.set()
        writer.join()
    stale = len(changing.wrong())
    after = changing.run()
    assert (after.failed, changing.run().done) == (0, 0), after
    stale += len(changing.wrong())
    how = changing.spec.communication if changing.spec else "copy"
    print(
        f"\nBENCH transform.stale_results {stale} objects of {changing.count} writes ({how}),"
        f" {named} named as changed"
    )
    assert stale == 0


@pytest.mark.parametrize("changing", ["hpush"], indirect=True)
def test_results_that_were_recorded_under_another_version_are_made_again(changing: Changing) -> None:
    """Earlier versions of Storeside recorded the listed version, although AIStore had transformed its older copy."""
    changing.names = changing.names[:4]
    changing.write_all()
    assert changing.run().done == 4
    old = dict(changing.contents)
    changing.write_all()
    for name in changing.names:
        (content,) = [c for c in changing.contents.values() if c.startswith(name.encode()) and c not in old.values()]
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        changing.clickhouse.command(
            "INSERT INTO storeside.objects SELECT * REPLACE ({etag:String} AS version, now64(3) AS recorded_at)"
            " FROM storeside.objects FINAL WHERE destination = {to:String} AND object = {name:String}",
            parameters={"etag": etag, "to": str(changing.to), "name": name},
        )
    assert len(changing.wrong()) == 4
    assert changing.run(latest=True).done == 4
    assert changing.wrong() == []
    assert changing.run().done == 0


@pytest.mark.parametrize("changing", ["ws"], indirect=True)
def test_an_object_that_was_uploaded_in_parts_is_transformed_again(changing: Changing) -> None:
    """AIStore lists neither a version nor a checksum of it."""
    for letter in (b"a", b"b"):
        upload = {"Bucket": changing.source.name, "Key": "large"}
        id_ = changing.s3.create_multipart_upload(**upload)["UploadId"]
        parts = []
        for number, size in ((1, PART), (2, 1)):
            answer = changing.s3.upload_part(**upload, UploadId=id_, PartNumber=number, Body=letter * size)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        next_second()
        changing.s3.complete_multipart_upload(**upload, UploadId=id_, MultipartUpload={"Parts": parts})
        found = changing.run()
        assert (found.done, found.failed) == (1, 0), found
        assert set(read(changing.aistore, changing.to, "large")) == set(letter.upper())
        assert changing.run().done == 0
    assert [copy.name for copy in list_held(changing.aistore, changing.source)] == ["large"]


def test_a_result_that_was_recorded_wrongly_long_ago_is_found_and_made_again(
    stack: Stack, aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    changing = Changing(aistore, clickhouse, s3_client, drive, "hpush")
    changing.write("a", b"old")
    changing.write("a", b"new")
    assert changing.run().done == 1
    put(aistore, changing.to, {"a": b"OLD"})
    ours = f"destination = '{changing.to}'"
    found = clickhouse.query(f"SELECT * FROM storeside.objects FINAL WHERE {ours}")
    row = dict(zip(found.column_names, found.first_row, strict=True))
    row |= {"result_version": versions(aistore, changing.to)["a"], "recorded_at": datetime(2025, 1, 1, tzinfo=UTC)}
    clickhouse.command(f"ALTER TABLE storeside.objects DELETE WHERE {ours} SETTINGS mutations_sync = 1")
    clickhouse.insert("storeside.objects", [list(row.values())], column_names=list(row))
    assert changing.run().done == 0
    assert changing.wrong() == ["a"]
    for name, value in environment(stack).items():
        monkeypatch.setenv(name, value)
    pair = [str(changing.source), str(changing.to)]
    assert unproven(pair) == 1
    said = f"{pair[0]} -> {pair[1]}: 1 results, recorded 2025-01-01 00:00:00 to 2025-01-01 00:00:00 UTC"
    assert said in capsys.readouterr().out.splitlines()
    assert unproven([*pair, "--again"]) == 0
    assert changing.run().done == 1
    assert changing.wrong() == []
    assert unproven(pair) == 0


def test_one_object_is_read_as_it_is_in_its_bucket(aistore: Any, s3_client: Any, tmp_path: Path) -> None:
    source, to, path = Bucket("s3", unique("one")), Bucket("ais", unique("out")), tmp_path / "got"
    s3_client.create_bucket(Bucket=source.name)
    upper = small_spec("upper")
    for content in (b"one", b"another"):
        s3_client.put_object(Bucket=source.name, Key="a", Body=content)
        transform_object(aistore, source, "a", to, "a", upper, keeper="tests/run")
        assert read(aistore, to, "a") == content.upper()
        for spec, wanted in ((None, content), (upper, content.upper())):
            get_object(aistore, source, "a", path, spec, keeper="tests/run")
            assert path.read_bytes() == wanted
    etls.release(aistore, upper.without_files().over("hpush").names)
