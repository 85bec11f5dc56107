"""Many objects of a bucket in few requests: each content once, in order, and correct whatever AIStore answers."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from storeside.aistore import many
from storeside.aistore.buckets import Bucket
from tests.support import put

NAMES = (
    "plain",
    "folder/deep/x.json",
    "a b",
    "a?b",
    "a*b",
    "a#b",
    "a%20b",
    "a{b}c",
    "ü" * 60,
    "n" * 240,
    "d/" * 90 + "x",
)


@pytest.fixture
def bucket(bucket: Bucket, aistore: Any) -> Bucket:
    put(aistore, bucket, {name: name.encode() * number for number, name in enumerate(NAMES)})
    return bucket


def wanted() -> list[many.Wanted]:
    return [(name, len(name.encode()) * number) for number, name in enumerate(NAMES)]


def flat(batches: Any) -> list[many.Read]:
    return [one for batch in batches for one in batch]


def expected() -> list[many.Read]:
    return [(name, name.encode() * number) for number, name in enumerate(NAMES)]


@pytest.mark.parametrize("objects", [1, 3, 10_000])
def test_contents_come_in_the_requested_order(
    aistore: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, objects: int
) -> None:
    monkeypatch.setattr(many, "BATCH_OBJECTS", objects)
    single = many._Source._one
    alone: list[str] = []
    monkeypatch.setattr(many._Source, "_one", lambda self, name: (alone.append(name), single(self, name))[1])
    read = list(many.read_many(aistore, bucket, wanted()))
    assert flat(read) == expected()
    assert [len(batch) for batch in read] == [objects] * (len(NAMES) // objects) + [len(NAMES) % objects] * (
        objects > 1
    )
    assert (not alone) == (objects > 1), f"AIStore returns all objects of a batch, but not {alone}"


def test_an_object_is_missing_or_changed_since_it_was_listed(aistore: Any, bucket: Bucket) -> None:
    put(aistore, bucket, {"plain": b"longer than before"})
    bucket.handle(aistore).object("a b").delete()
    read = dict(flat(many.read_many(aistore, bucket, [*wanted(), ("never/there", 5)])))
    assert read["plain"] == b"longer than before"
    assert (read["a b"], read["never/there"]) == (None, None)
    assert {n: c for n, c in read.items() if c is not None and n != "plain"} == {
        name: content for name, content in expected() if name not in ("a b", "plain")
    }


def test_objects_are_read_one_by_one_while_aistore_returns_no_batches(
    aistore: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aistore.sdk.errors import AISError

    asked: list[str] = []

    def refuse(self: Any, method: str, path: str, **named: Any) -> Any:
        if path.startswith("ml/moss"):
            asked.append(path)
            raise AISError(503, "a target has just joined", "url", None)
        return request(self, method, path, **named)

    from aistore.sdk.request_client import RequestClient

    request = RequestClient.request
    monkeypatch.setattr(RequestClient, "request", refuse)
    monkeypatch.setattr(many, "BATCH_OBJECTS", 2)
    assert flat(many.read_many(aistore, bucket, wanted())) == expected()
    assert len(asked) <= many._BATCHES, "it is not asked again and again"


def test_an_answer_that_ends_early_counts_as_far_as_it_goes(
    aistore: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = many.members
    monkeypatch.setattr(many, "members", lambda archive: whole(archive[: len(archive) // 2]))
    assert flat(many.read_many(aistore, bucket, wanted())) == expected()


def test_archives_of_every_format_are_read_like_tarfile_reads_them() -> None:
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=form) as archive:
            for name, content in expected():
                if form != tarfile.USTAR_FORMAT or len(name.encode()) < 100 or name.startswith("d/"):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        with tarfile.open(fileobj=io.BytesIO(made.getvalue())) as archive:
            there = [(one.name, archive.extractfile(one).read()) for one in archive]
        assert list(many.members(made.getvalue())) == there
        cut = made.getvalue()[: len(made.getvalue()) // 2]
        with pytest.raises(ValueError, match="archive"):
            list(many.members(cut))
