"""The summary that a copy through the worker makes of its objects' outcomes, without servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from storeside.aistore.stored_objects import StoredObject
from storeside.copying.errors import CopyError, CopyInputError, CopyTransientError, DeniedError
from storeside.copying.job import CopyJob
from storeside.copying.mover import Mover
from storeside.copying.multipart import OCI_LIMITS, Profile, Settings
from storeside.copying.s3_errors import s3_errors
from storeside.copying.samples import Samples
from storeside.copying.store import Head
from storeside.ledger.scope import Pending, Plan, Totals


class Full(Samples):
    """A source of objects of ten bytes; reading one may raise an error."""

    name = "full"

    def __init__(self, count: int) -> None:
        super().__init__()
        self.names = [f"{n:05}" for n in range(count)]
        self.errors: dict[str, CopyError] = {}
        self.reads = 0

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        return (StoredObject(name, 10, "") for name in self.names)

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        self.reads += 1
        if error := self.errors.get(key):
            raise type(error)(str(error))
        return Head(10, "", ""), os.urandom(10)


class Book:
    """A ledger in memory: every listed object is pending."""

    def __init__(self) -> None:
        answer = SimpleNamespace(result_rows=[])
        self.client: Any = SimpleNamespace(
            command=lambda *_, **__: None, insert=lambda *_, **__: None, query=lambda *_, **__: answer
        )
        self.listed: list[Any] = []
        self.reasons: list[tuple[str, str, bool]] = []
        self.trusts_failures = True
        self.back = 0

    def create(self) -> None:
        pass

    begin = settle_copies = forget_listings = lambda self, scope: None

    def drop(self, scope: Any, side: str) -> None:
        pass

    def record_listing(self, scope: Any, side: str, rows: Any) -> None:
        if side == "source":
            self.listed = list(rows)

    def plan(self, scope: Any, *, trusts_failures: bool = True, **_: Any) -> Plan:
        self.trusts_failures = trusts_failures
        return Plan(len(self.listed), len(self.listed), 0, 0)

    def adopt(self, scope: Any) -> int:
        return 0

    def uncopied(self, scope: Any, after: str, limit: int) -> list[Pending]:
        rows = [row for row in self.listed if row[0] > after]
        return [Pending(*row[:4]) for row in rows[:limit]]

    def record_copies(self, scope: Any, rows: Any) -> None:
        pass

    def record_reasons(self, scope: Any, reasons: Any) -> None:
        self.reasons += reasons

    def taken_back(self, scope: Any) -> int:
        return self.back

    def totals(self, scope: Any) -> Totals:
        return Totals(1000, len(self.reasons), 0, 0)  # of all attempts of the run

    def failures(self, scope: Any, limit: int) -> list[tuple[str, str]]:
        return []


def job(source: Full, book: Book) -> CopyJob:
    return CopyJob(source, Samples(), book, run_id="run", profile=Profile.of(Settings(concurrency=2)))  # type: ignore[arg-type]


def test_each_try_tells_of_its_own_objects() -> None:
    source, book = Full(20), Book()
    source.errors["00003"] = DeniedError("denied")
    book.back = 2
    summary = job(source, book).run()
    assert (summary.done, summary.failed, summary.bytes_in) == (17, 1, 190)


def test_what_may_pass_is_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.0001)
    source = Full(50)
    source.errors = {name: CopyTransientError(f"no answer for {name}") for name in source.names[:40]}
    copy = job(source, Book())
    with pytest.raises(CopyTransientError, match=r"40 objects could not be copied for now, such as '000\d\d': no an"):
        copy.run()
    assert not [value for value in vars(copy).values() if isinstance(value, list) and value]


def test_a_copy_whose_server_has_gone_ends_and_does_not_try_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.0001)
    source = Full(5000)
    gone = source.names[50:55] + source.names[200:]
    source.errors = {name: CopyTransientError(f"no answer for {name}") for name in gone}
    copy = job(source, Book())
    with pytest.raises(CopyTransientError, match=r"no answer for 00\d{3}\. The last 100 objects failed like this"):
        copy.run()
    assert source.reads < 700
    assert copy._copied == 195


def test_failures_of_earlier_runs_are_tried_again() -> None:
    book = Book()
    job(Full(1), book).run()
    assert not book.trusts_failures


@pytest.mark.parametrize(("count", "least"), [(5000, 100), (100, 100), (99, 99), (11, 11)])
def test_a_copy_of_which_everything_is_denied_ends_early(count: int, least: int) -> None:
    source, book = Full(count), Book()
    source.errors = {name: DeniedError(f"s3://b/{name}: give it s3:GetObject") for name in source.names}
    with pytest.raises(
        CopyInputError, match=rf"give it s3:GetObject. All {least} objects that were tried are denied"
    ):
        job(source, book).run()
    assert source.reads < 150
    assert len(book.reasons) >= least
    assert all(final for _, _, final in book.reasons)


@pytest.mark.parametrize("granted", ["00000", "00050"])
def test_one_object_that_may_be_read_lets_the_others_be_tried(granted: str) -> None:
    source = Full(300)
    source.errors = {name: DeniedError("denied") for name in source.names if name != granted}
    summary = job(source, Book()).run()
    assert (summary.done, summary.failed) == (1, 299)


def test_archived_objects_end_no_copy() -> None:
    source = Full(300)
    archived = ClientError(
        {
            "Error": {"Code": "InvalidObjectState", "Message": "the storage class is GLACIER"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        },  # type: ignore[typeddict-item]
        "GetObject",
    )
    client: Any = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    with pytest.raises(CopyError) as found, s3_errors(client, "s3://b", "b", "2019/a"):
        raise archived
    assert "s3://b/2019/a: the storage class is GLACIER (InvalidObjectState): restore it" in str(found.value)
    source.errors = dict.fromkeys(source.names[:299], found.value)
    summary = job(source, Book()).run()
    assert (summary.done, summary.failed) == (1, 299)


def test_folder_markers_are_not_copied() -> None:
    source, book = Full(2), Book()
    source.list = lambda prefix="": iter(  # type: ignore[method-assign]
        [StoredObject("2026/", 0, ""), StoredObject("2027_$folder$", 0, ""), StoredObject("2028/", 10, "")]
    )
    list(job(source, book)._source_rows())
    job(source, book).run()
    assert [row[0] for row in book.listed] == ["2028/"]


def test_few_objects_that_are_denied_fail_alone() -> None:
    source = Full(10)
    source.errors = {name: DeniedError("denied") for name in source.names}
    assert job(source, Book()).run().failed == 10


@pytest.mark.parametrize("method", ["head", "begin", "put_part", "complete", "abort"])
def test_an_unexpected_error_fails_one_object_in_parts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = Samples(OCI_LIMITS), Samples(OCI_LIMITS)
    usual = getattr(Samples, method)

    def unexpected(self: Samples, key: str, *more: Any) -> Any:
        if key in ("20", "bad"):
            raise KeyError("ETag")
        return usual(self, key, *more)

    monkeypatch.setattr(Samples, method, unexpected)
    if method == "abort":  # an error aborts the upload
        monkeypatch.setattr(Samples, "complete", lambda _, key, *__: {}[key] if key == "bad" else "")
    wanted = [Pending("20", "bad", 20, ""), Pending("30", "good", 30, "")]
    mover = Mover(source, destination, Profile.of(Settings(threshold=10, part_size=10, concurrency=2)))
    failed = {outcome.wanted.object: str(outcome.error) for outcome in mover.copy(wanted) if outcome.error}
    assert failed.keys() == {"20"}
    assert "KeyError" in failed["20"]
    assert mover.left == ({"bad"} if method in ("begin", "abort") else set())
