"""Rows of objects that the bucket no longer has: they are removed only if few enough are gone, and no others are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from storeside.events.errors import EventInputError
from storeside.events.load import EventLoad
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.source import Source
from storeside.transfer.state import lock
from tests.transfers import Loading, jsonl, request_of

from .test_transfer_crashes import dies

if TYPE_CHECKING:
    from storeside.transfer.run.engine import Prepared

HALF = "50 %"


@pytest.fixture
def loading(loading: Loading) -> Loading:
    """A table with the rows of ten objects of ten rows."""
    loading.create("n Int64")
    fill(loading)
    assert loading.load().loaded == 10
    return loading


def fill(loading: Loading) -> None:
    loading.put({f"day/{n}.jsonl": jsonl([{"n": 10 * n + row} for row in range(10)]) for n in range(10)})


def delete(loading: Loading, *numbers: int) -> None:
    for n in numbers:
        loading.s3.delete_object(Bucket=loading.bucket, Key=f"day/{n}.jsonl")


def objects(loading: Loading) -> set[int]:
    """Return the numbers of the objects with rows in the table, each of which has all of them."""
    found = loading.query(f"SELECT intDiv(n, 10), count(), uniqExact(n) FROM {loading.table} GROUP BY 1")
    assert {row[1:] for row in found} <= {(10, 10)}
    return {row[0] for row in found}


@pytest.mark.guarantee("load-deleted")
def test_rows_of_deleted_objects_are_removed(loading: Loading) -> None:
    delete(loading, 3, 4)
    assert loading.load().removed == 0, "only on request"
    assert objects(loading) == {*range(10)}
    loading.put({"day/10.jsonl": jsonl([{"n": 100 + row} for row in range(10)])})
    report = loading.load(remove_deleted=HALF)
    assert (report.loaded, report.removed) == (1, 2)
    assert objects(loading) == {*range(11)} - {3, 4}
    assert loading.load(remove_deleted="0.1 %").removed == 0
    fill(loading)  # the same content returns
    report = loading.load(remove_deleted=HALF)
    assert (report.loaded, report.removed) == (2, 0)
    assert objects(loading) == {*range(11)}


@pytest.mark.guarantee("load-deleted")
def test_more_than_the_user_allows_are_kept_and_named(loading: Loading) -> None:
    delete(loading, *range(6))
    loading.put({"day/10.jsonl": jsonl([{"n": 100 + row} for row in range(10)])})
    with pytest.raises(
        TransferInputError,
        match=r"6 of the 11 objects .* are gone \(54.5%\), such as 'day/0.jsonl', .*allows 50 %.* no row was removed",
    ):
        loading.load(remove_deleted=HALF)
    assert objects(loading) == {*range(11)}, "the new object is loaded nevertheless"
    delete(loading, *range(11))
    with pytest.raises(TransferInputError, match=r"11 of the 11 objects"):  # such as a wrong mount, or a wrong bucket
        loading.load(remove_deleted="99.9 %")
    assert objects(loading) == {*range(11)}
    assert loading.load(remove_deleted="100 %").removed == 11
    assert objects(loading) == set()


def test_objects_that_these_keys_do_not_select_stay(loading: Loading) -> None:
    delete(loading, 1)
    assert loading.load("day/[2-9].jsonl", remove_deleted=HALF).removed == 0
    assert loading.load("day/*.csv", remove_deleted=HALF).removed == 0
    assert objects(loading) == {*range(10)}
    other = Loading(loading.stack, loading.clickhouse, loading.s3)
    other.table = loading.table
    other.put({"day/1.jsonl": jsonl([{"n": 10 + row} for row in range(10)])})
    assert loading.load("day/1*.jsonl", remove_deleted="100 %").removed == 1
    assert other.load().loaded == 1
    assert loading.load(remove_deleted=HALF).removed == 0, "the same key in another bucket is another object"
    assert objects(loading) == {*range(10)}


def test_objects_that_are_loaded_after_the_listing_began_stay(loading: Loading) -> None:
    delete(loading, 5)

    def between(_: Prepared) -> None:
        loading.put({"day/10.jsonl": jsonl([{"n": 100 + row} for row in range(10)])})
        assert loading.load("day/10.jsonl").loaded == 1

    assert loading.load(remove_deleted=HALF, between=between).removed == 1
    assert objects(loading) == {*range(11)} - {5}


def test_all_versions_of_a_deleted_object_go_and_a_marker_is_no_deletion(loading: Loading) -> None:
    loading.put({"day/1.jsonl": jsonl([{"n": 990 + row} for row in range(10)]), "day/_2.jsonl": jsonl([{"n": -1}])})
    loading.load()
    loading.load("day/_2.jsonl")  # the keys name it, and a pattern ignores it
    delete(loading, 1)
    assert loading.load(remove_deleted=HALF).removed == 2
    assert {n for (n,) in loading.rows("n")} == {-1, *range(10), *range(20, 100)}


def test_failed_objects_do_not_keep_rows_of_deleted_ones(loading: Loading) -> None:
    delete(loading, 7)
    loading.put({"day/bad.jsonl": b'{"n": "x"}\n', "day/0.jsonl": b'{"n": \n'})
    report = loading.load(remove_deleted=HALF)
    assert (report.failed, report.removed) == (2, 1)
    assert objects(loading) == {*range(10)} - {7}, "the new version of 0 cannot be loaded, so the old one stays"


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_a_crash_after_any_statement(loading: Loading, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    wanted = request_of(Source(loading.bucket, "day/", "storeside_s3"), loading.table, remove_deleted=HALF)
    survived, is_killed = step // 2, True
    while is_killed:
        delete(loading, 0, 1, 2)
        is_killed = dies(loading, wanted, loading.s3, survived)
        assert objects(loading) == {*range(3, 10)}, survived
        fill(loading)
        assert loading.load().loaded == 3
        survived += step
    assert survived > 15


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"remove_deleted": "5"}, r"remove_deleted '5': write a percentage, such as '5 %'"),
        ({"remove_deleted": "0 %"}, "write a share above 0 %"),
        ({"remove_deleted": "101 %"}, "write a share above 0 %, up to 100 %"),
        ({"after_load": AfterLoad("delete")}, "remove_deleted excludes after_load: it deletes or moves"),
        ({"overlap_seconds": 60.0}, "remove_deleted excludes overlap_seconds: the listing has only the newest"),
        ({"format": "delta"}, "remove_deleted excludes format 'delta'"),
    ],
)
def test_what_excludes_the_option(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason):
        request_of(Source("bucket", "day/"), "data.t", **{"remove_deleted": HALF, **options})


def test_events_are_no_listing() -> None:
    wanted = request_of(Source("bucket", "day/"), "data.t", remove_deleted=HALF)
    with pytest.raises(EventInputError, match="a load of events lists no bucket"):
        EventLoad(None, wanted, None, None, "run")  # type: ignore[arg-type]
