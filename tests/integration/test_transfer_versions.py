"""Which version of an object a replacing load keeps, and what becomes of plans and records of interrupted runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from storeside.transfer.base.errors import LoadObjectError, TransferInputError, TransferTransientError, about
from storeside.transfer.objects import content
from storeside.transfer.request.source import Source
from storeside.transfer.run.batch import _divided
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state.loads import Planned
from tests.support import next_second
from tests.transfers import Loading

if TYPE_CHECKING:
    pass


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.create("n UInt32")
    return loading


def csv(*numbers: int) -> bytes:
    return "\n".join(["n", *map(str, numbers), ""]).encode()


def fails(client: Any, begins: str, error: BaseException, *, after: bool = True) -> None:
    """Let the client's first command that begins with this text fail; with `after`, ClickHouse runs it still."""
    call, failed = client.command, []

    def command(statement: str, *args: Any, **kwargs: Any) -> Any:
        if statement.startswith(begins) and not failed:
            failed.append(statement)
            if after:
                call(statement, *args, **kwargs)
            raise error
        return call(statement, *args, **kwargs)

    client.command = command


def states(loading: Loading) -> list[tuple[str, str, int]]:
    return loading.query(
        "SELECT key, toString(state), rows FROM storeside.loads FINAL WHERE bucket = {bucket:String}"
        " ORDER BY key, state, rows",
        bucket=loading.bucket,
    )


def versioned(loading: Loading) -> Callable[[bytes], str]:
    """Turn on versions of the bucket; return a function that puts a version of ``a.csv`` and returns its id."""
    loading.s3.put_bucket_versioning(Bucket=loading.bucket, VersioningConfiguration={"Status": "Enabled"})

    def put(body: bytes) -> str:
        next_second()
        return str(loading.s3.put_object(Bucket=loading.bucket, Key="a.csv", Body=body)["VersionId"])

    return put


def test_a_version_that_is_restored_replaces_the_newer_one(loading: Loading) -> None:
    """The deletion of the newest version makes the one before it the object, with its own time."""
    put = versioned(loading)
    put(csv(1))
    assert loading.load(format="csv", on_overwrite="replace").loaded == 1
    newest = put(csv(2))
    assert loading.load(format="csv", on_overwrite="replace").loaded == 1
    loading.s3.delete_object(Bucket=loading.bucket, Key="a.csv", VersionId=newest)
    assert loading.load(format="csv", on_overwrite="replace").loaded == 1
    assert loading.rows() == [(1,)]
    assert states(loading) == [("a.csv", "loaded", 1), ("a.csv", "replaced", 0)]
    again = loading.load(format="csv", on_overwrite="replace")
    assert (again.loaded, again.skipped) == (0, 1)


def test_without_an_answer_about_the_current_version_nothing_is_replaced(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = versioned(loading)
    put(csv(1))
    loading.load(format="csv", on_overwrite="replace")
    newest = put(csv(2))
    loading.load(format="csv", on_overwrite="replace")
    loading.s3.delete_object(Bucket=loading.bucket, Key="a.csv", VersionId=newest)

    def busy(*_: Any) -> Any:
        raise TransferTransientError("S3 is busy")

    monkeypatch.setattr("storeside.transfer.publish.publishing.current_version", busy)
    with pytest.raises(TransferTransientError, match="S3 is busy"):
        loading.load(format="csv", on_overwrite="replace")
    assert loading.rows() == [(2,)]


def test_the_current_version_of_an_object(loading: Loading) -> None:
    loading.put({"a.csv": csv(1)})
    etag = loading.s3.head_object(Bucket=loading.bucket, Key="a.csv")["ETag"].strip('"')
    assert content.current_version(loading.s3, loading.bucket, "a.csv") == etag
    assert content.current_version(loading.s3, loading.bucket, "none") is None


@pytest.mark.parametrize("interrupted", ["replace", "append"])
def test_interrupted_loads_replace_versions_as_their_own_run_would(loading: Loading, interrupted: str) -> None:
    """Another run with the other option settles the load; its own objects are below another prefix."""
    other = "append" if interrupted == "replace" else "replace"
    loading.put({"a.csv": csv(1)})
    loading.load(format="csv")
    loading.put({"a.csv": csv(2), "b.csv": csv(3)})
    killed = loading.transfer("a*", format="csv", on_overwrite=interrupted)
    prepared = killed.prepare()
    fails(killed.client, "ALTER TABLE `data`", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        killed.run(prepared)
    assert loading.transfer("b*", format="csv", on_overwrite=other).prepare().planned == 1
    assert loading.rows() == ([(2,)] if interrupted == "replace" else [(1,), (2,)])
    versions = ["loaded", "replaced"] if interrupted == "replace" else ["loaded", "loaded"]
    assert [state for key, state, _ in states(loading) if key == "a.csv"] == versions


def test_a_plan_that_is_made_again_never_lacks_its_objects(loading: Loading) -> None:
    """A try that dies while it plans leaves the plan of the try before: the next listing begins early enough."""
    loading.put({f"{n}.csv": csv(n) for n in range(1, 4)})

    def a_try() -> Transfer:
        return loading.transfer(format="csv", overlap_seconds=0, run_id=f"again/{loading.table}", batch_objects=1)

    assert a_try().prepare().planned == 3
    loading.load("3*", format="csv")  # as one batch of the try, which then dies
    dies = a_try()
    fails(dies.loads.client, "-- Plans", KeyboardInterrupt(), after=False)
    with pytest.raises(KeyboardInterrupt):
        dies.prepare()
    last = a_try()
    prepared = last.prepare()
    assert prepared.planned == 2
    assert sorted(o.key for o in last.plan.unfinished()) == ["1.csv", "2.csv"]
    assert last.run(prepared).loaded == 2
    assert loading.rows() == [(1,), (2,), (3,)]


def test_a_load_that_another_process_has_ended_does_not_succeed(loading: Loading) -> None:
    """A deferred load runs again with the same plan, for example after its triggerer was killed at the end."""
    loading.put({"a.csv": csv(1), "b.csv": b"n\nx\n"})
    first, other = (loading.transfer(format="csv", run_id=f"run/{loading.table}") for _ in range(2))
    prepared = first.prepare()
    assert first.run(prepared).failed == 1
    with pytest.raises(TransferTransientError, match="another process has ended this load"):
        other.run(prepared)


def test_the_end_of_a_load_does_not_fail_it(loading: Loading) -> None:
    loading.put({"a.csv": csv(1)})
    transfer = loading.transfer(format="csv")
    prepared = transfer.prepare()
    fails(transfer.loads.client, "ALTER TABLE storeside.load_plan DROP", OperationalError("no answer"))
    assert transfer.run(prepared).loaded == 1


def test_rows_of_a_refused_publication_are_removed(loading: Loading) -> None:
    """A view refuses a row of the last block, after ClickHouse has inserted the blocks before."""
    view = f"{loading.table}_view"
    loading.clickhouse.command(
        f"CREATE MATERIALIZED VIEW {view} (n UInt32) ENGINE = MergeTree ORDER BY n AS"
        f" SELECT throwIf(n = 2999999, 'refused') + n AS n FROM {loading.table}"
    )
    loading.put({"a.csv": csv(*range(3_000_000))})
    with pytest.raises(TransferInputError, match="does not accept the rows"):
        loading.load(format="csv")
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(0,)]
    assert [state for _, state, _ in states(loading)] == []


def test_two_versions_of_an_object_in_a_listing_are_read_alone() -> None:
    planned = [Planned(key, version, 1, 0.0, 1) for key, version in (("a", "1"), ("a", "2"), ("b", "1"))]
    parts = _divided(planned, about(LoadObjectError("bad"), "a"), Source("bucket"))
    assert parts == [[o] for o in planned]


def test_the_objects_of_a_batch_are_looked_up_by_their_keys(loading: Loading) -> None:
    """The ledger may have millions of other objects of the table."""
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    planning, transfer = (
        loading.transfer(format="csv", batch_objects=1, run_id=f"run/{loading.table}") for _ in range(2)
    )
    planning.prepare()
    asked: list[str] = []
    query = transfer.loads.client.query
    transfer.loads.client.query = lambda text, *a, **k: (asked.append(text), query(text, *a, **k))[1]
    assert [o.key for o in transfer.plan.objects(2)] == ["1.csv"]
    assert "key IN (SELECT key FROM storeside.load_plan" in asked[0]
