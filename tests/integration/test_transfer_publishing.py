"""Two runs publish the same objects, and one of them pauses: each test is a path that `make model` found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from storeside.sql.migrate import migrate
from storeside.transfer.base.errors import FailureKind, StaleError
from storeside.transfer.publish.publishing import settle
from storeside.transfer.state import lock
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.tables.table import existing
from tests.support import unique
from tests.transfers import Loading

if TYPE_CHECKING:
    pass

ROWS = 50


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    return loading


def csv(number: int) -> bytes:
    return b"object,row\n" + b"\n".join(b"%d,%d" % (number, number * ROWS + n) for n in range(ROWS)) + b"\n"


def load(loading: Loading) -> int:
    return loading.load("", format="csv", loader="pull").rows


def counts(loading: Loading) -> list[tuple[int, int]]:
    return loading.query(f"SELECT count(), uniqExact(row) FROM {loading.table}")


def before(client: Any, method: str, begins: str, pause: Callable[[], object]) -> None:
    """Call `pause` before the first statement that begins with this text, or before the first insert into it."""
    call, paused = getattr(client, method), []

    def paused_call(statement: str, *args: Any, **kwargs: Any) -> Any:
        if statement.startswith(begins) and not paused:
            paused.append(statement)
            pause()
        return call(statement, *args, **kwargs)

    setattr(client, method, paused_call)


@pytest.mark.guarantee("load-model")
def test_a_late_record_does_not_hide_the_load_of_another_run(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow run records "publishing" over "loaded", and ClickHouse merges both rows of the ledger."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    slow = loading.transfer("", format="csv", loader="pull")
    overtaken: list[int] = []

    def overtake() -> None:
        loading.let_the_lock_age()
        overtaken.append(load(loading))

    def merge() -> None:
        loading.clickhouse.command("OPTIMIZE TABLE storeside.loads FINAL")

    prepared = slow.prepare()
    before(slow.loads.client, "insert", "storeside.loads", overtake)
    before(slow.client, "command", f"ALTER TABLE {existing(loading.clickhouse, loading.table).quoted} ATTACH", merge)
    report = slow.run(prepared)
    assert overtaken == [3 * ROWS]
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]
    loading.check(report)


@pytest.mark.guarantee("load-model")
def test_a_lock_that_is_released_while_it_is_broken_protects_the_next_holder(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.5)
    migrate(loading.clickhouse)
    name = lock.lock_name(loading.table)
    first, second = (json.dumps({"owner": owner, "staging": ""}) for owner in ("first", "second"))
    assert lock._take(loading.clickhouse, name, first)
    loading.let_the_lock_age()

    def hand_over() -> None:
        lock._release(loading.clickhouse, name, first)
        assert lock._take(loading.clickhouse, name, second)

    breaking = loading.client()
    before(breaking, "command", "RENAME TABLE", hand_over)
    third = json.dumps({"owner": "third", "staging": ""})
    assert not lock._take(breaking, name, third)
    found = lock._look(loading.clickhouse, name)
    assert found is not None
    assert found[0] == second
    lock._release(loading.clickhouse, name, second)
    assert lock._look(loading.clickhouse, name) is None


def test_a_failure_that_is_recorded_after_a_load_does_not_load_it_again(loading: Loading) -> None:
    """A run that cannot read an object asks for its state, and records the failure after another run's load."""
    slow = loading.transfer("", format="csv", loader="pull")
    slow.prepare()
    planned = slow.plan.objects(0)
    states = slow.loads.states(planned)
    assert load(loading) == 3 * ROWS
    slow.loads.states = lambda objects: states
    slow.loads.record_failed([(o, FailureKind.TRANSIENT, "busy") for o in planned])
    assert {state for state, *_ in loading.ledger().values()} == {"failed"}
    assert load(loading) == 3 * ROWS
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]


def test_a_run_that_settles_slowly_leaves_later_publications_doubtful(loading: Loading) -> None:
    transfer = loading.transfer("", format="csv", loader="pull")
    transfer.prepare()
    objects = [Loaded(o, ROWS) for o in transfer.plan.objects(0)]
    transfer.loads.record(objects, "publishing")
    seen = transfer.loads.doubtful()
    transfer.loads.record(objects[:1], "publishing")
    transfer.loads.forget_doubtful(seen)
    assert [o.planned for o in transfer.loads.doubtful()] == [objects[0].planned]
    transfer.loads.forget_doubtful(transfer.loads.doubtful())
    assert transfer.loads.doubtful() == []


def test_a_run_that_widens_slowly_does_not_narrow_a_column_under_published_rows(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs see an Int8; the slow one is about to make it a Float64 when the other one publishes an Int64."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.clickhouse.command(f"CREATE OR REPLACE TABLE {loading.table} (n Int8) ENGINE = MergeTree ORDER BY ()")
    loading.put({"slow/a.csv": b"n\n0.5\n", "fast/a.csv": b"n\n%d\n" % (2**60 + 1)})
    slow = loading.transfer("slow/", format="csv", loader="pull", on_drift="widen")
    overtaken: list[int] = []

    def overtake() -> None:
        loading.let_the_lock_age()
        overtaken.append(loading.load("fast/", format="csv", loader="pull", on_drift="widen").rows)

    prepared = slow.prepare()
    before(slow.client, "query", "SELECT toTypeName([", overtake)
    report = slow.run(prepared)
    loading.check(report)
    assert (overtaken, report.failed) == ([1], 1)
    assert "stays Nullable(Int64), because Float64 cannot hold each value" in loading.reasons()["slow/a.csv"]
    assert loading.rows("n") == [(2**60 + 1,)]


def test_a_late_record_does_not_hide_rows_that_were_counted(loading: Loading) -> None:
    """A run that was overtaken records "publishing" after another run has settled the load."""
    second = loading.transfer("", format="csv", loader="pull")
    prepared = second.prepare()
    planned = second.plan.objects(0)
    assert load(loading) == 3 * ROWS
    objects = [Loaded(o, ROWS) for o in planned]
    record = second.loads.record
    record(objects, "publishing")
    late: list[str] = []

    def recorded(loaded: Sequence[Loaded], state: str) -> None:
        record(loaded, state)
        if not late:
            late.append(state)
            record(objects, "publishing")

    second.loads.record = recorded
    second.run(prepared)
    assert late == ["loaded"]
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]


def test_a_run_that_has_lost_its_lock_settles_nothing(loading: Loading) -> None:
    transfer = loading.transfer("", format="csv", loader="pull")
    transfer.prepare()
    objects = [Loaded(o, ROWS) for o in transfer.plan.objects(0)]
    transfer.loads.record(objects, "publishing")
    lost = lock.Hold(transfer.client, lock.lock_name(loading.table), "lost")
    with pytest.raises(StaleError, match="broke the lock"):
        settle(existing(transfer.client, loading.table), transfer.loads, objects, lost, loading.s3)
    assert len(transfer.loads.doubtful()) == 3
    transfer.loads.forget_doubtful(transfer.loads.doubtful())


@pytest.mark.parametrize("projection", [False, True])
def test_only_the_holder_of_the_lock_removes_rows(loading: Loading, projection: bool) -> None:
    load(loading)
    if projection:
        loading.clickhouse.command(f"ALTER TABLE {loading.table} ADD PROJECTION p (SELECT object ORDER BY object)")
    transfer = loading.transfer("", format="csv", loader="pull")
    ids = loading.query(f"SELECT DISTINCT _storeside_load FROM {loading.table} WHERE object = 1")
    first = [Planned("1.csv", "", 0, 0.0, load_id) for (load_id,) in ids]
    destination = existing(transfer.client, loading.table)
    name = unique("data.none").replace("-", "_")
    with lock.locked(transfer.client, name, "owner", "nothing") as hold:
        lost = lock.Hold(hold.client, hold.name, json.dumps({"owner": "other", "staging": "nothing"}))
        with pytest.raises(StaleError, match="broke the lock"):
            destination.remove(first, lost)
        assert counts(loading) == [(3 * ROWS, 3 * ROWS)]
        destination.remove(first, hold)
    assert counts(loading) == [(2 * ROWS, 2 * ROWS)]
