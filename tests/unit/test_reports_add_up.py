"""Two loads or transforms of the same objects at the same time: each report counts each listed object once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import REASONS, Scope
from storeside.sql.migrate import migrations
from storeside.transfer.base.errors import FailureKind
from storeside.transfer.request.source import Listed, Source
from storeside.transfer.state.loads import Loaded, Loads
from storeside.transfer.state.plan import Plan
from storeside.transform.counting import count
from storeside.transform.state import Phase, State
from tests.unit.test_sql import Engine

KEYS = "ab"


class Connection:
    """A clickhouse-connect client on the engine in the process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def command(self, text: str, parameters: Mapping[str, Any] | None = None, settings: Any = None) -> None:
        self.engine.run(text, parameters)

    def query(self, text: str, parameters: Mapping[str, Any] | None = None, settings: Any = None) -> Any:
        rows = [tuple(row) for row in self.engine.run(text, parameters)]
        return SimpleNamespace(result_rows=rows, first_row=rows[0] if rows else None)

    def insert(
        self, table: str, data: Sequence[Sequence[Any]], column_names: Sequence[str], column_oriented: bool = False,
        **_: Any,
    ) -> None:  # fmt: skip
        rows = zip(*data, strict=True) if column_oriented else data
        values = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        name = table if "." in table else f"storeside.{table}"
        self.engine.run(f"INSERT INTO {name} ({', '.join(column_names)}) VALUES {values}")


def _literal(value: Any) -> str:
    return (
        str(value) if isinstance(value, int) else f"'{value:%F %T}'" if isinstance(value, datetime) else f"'{value}'"
    )


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    engine = Engine()
    for migration in migrations():
        for statement in migration.statements:
            engine.run(statement)
    yield Connection(engine)
    engine.session.close()


def load(connection: Connection, run: str, outcomes: Sequence[bool | None]) -> Iterator[tuple[int, ...] | None]:
    """Load all objects in steps; an object fails (False), is loaded, or is left to another try (None).

    The last step yields the parts of the report, and the number of listed objects.
    """
    loads = Loads(connection, run, "db.table", Source("bucket", ""), run)  # type: ignore[arg-type]
    plan = Plan(loads)
    plan.record_listing([[Listed(key, "v", 1, "") for key in KEYS]])
    yield None
    listed, *_ = plan.make(batch_bytes=100, batch_objects=4, push=False, retry_failed=False)
    yield None
    known = plan.known_bad(9)
    yield None
    for planned in plan.unfinished():
        outcome = outcomes[KEYS.index(planned.key)]
        if outcome:
            loads.record([Loaded(planned, 1)], "publishing")
            yield None
            loads.record([Loaded(planned, 1)], "loaded")
        elif outcome is not None:
            loads.record_failed([(planned, FailureKind.OBJECT, "bad")])
        yield None
    totals = loads.totals()
    assert len(known.known_failures) == known.known_bad
    yield totals.loaded, totals.failed, known.known_bad, listed


OUTCOMES = st.lists(st.sampled_from([True, False, None]), min_size=len(KEYS), max_size=len(KEYS))
OUTCOMES_OF_TRANSFORMS = st.lists(
    st.sampled_from([True, False, None, "short", "loud"]), min_size=len(KEYS), max_size=len(KEYS)
)
# Which of the two loads takes the next step; the rest is in order.
ORDER = st.lists(st.integers(0, 1), max_size=12)


@settings(max_examples=12)
@example([False] * 2, [False] * 2, [0, 0, 1, 1, 1, 1, 1, 1, 0])  # an object fails after the other plan was made
@given(OUTCOMES, OUTCOMES, ORDER)
def test_the_parts_of_each_report_add_up_to_what_was_listed(
    connection: Connection, one: list[bool | None], other: list[bool | None], order: list[int]
) -> None:
    for table in ("loads", "load_listings", "load_plan"):
        connection.command(f"TRUNCATE TABLE storeside.{table}")
    running = [load(connection, "one", one), load(connection, "other", other)]
    reports: list[tuple[int, ...] | None] = [None, None]
    for number in [*order, *[0] * 9, *[1] * 9]:
        reports[number] = next(running[number], reports[number])
    for report in reports:
        assert report is not None
        loaded, failed, known_bad, listed = report
        assert listed == len(KEYS)
        # the rest was loaded by the other run, or is left to another try
        assert loaded + failed + known_bad <= listed, reports


def transform(
    connection: Connection, run: str, outcomes: Sequence[bool | str | None], results: dict[str, int]
) -> Iterator[tuple[int, ...] | None]:
    """Transform all objects in steps, and refuse one for its name; see `load`. A text is why an object is left out.

    `results` has the versions of the destination's objects, which the runs share.
    """
    ledger, scope = Ledger(connection), Scope("ais://a", "ais://b", "effect", run)  # type: ignore[arg-type]
    listed = [*((key, f"{key}.wav", 1, "v", "") for key in KEYS), ("..", "", 1, "v", "bad name")]

    def results_now() -> list[tuple[str, str, int, str, str]]:
        return [("", f"{key}.wav", 2, f"{version}/{version}", "") for key, version in results.items()]

    ledger.record_listing(scope, "source", listed)
    yield None
    ledger.record_listing(scope, "before", results_now())
    plan = ledger.plan(scope, retry_failed=False, keeps_result=True)
    yield None
    pending = {one.object for one in ledger.missing(scope, "", 9)}
    for key, outcome in zip(KEYS, outcomes, strict=True):
        if key in pending and isinstance(outcome, str):
            ledger.record_outcomes(scope, [(key, outcome, "left_out", "")])
        elif key in pending and outcome:
            results[key] = results.get(key, 0) + 1
        elif key in pending and outcome is not None:
            ledger.record_reasons(scope, [(key, "bad", True)])
    yield None
    ledger.record_listing(scope, "after", results_now())
    yield None
    ledger.settle(scope, record_done=True, no_reason="")
    yield None
    state = State(Phase.DONE, 0.0, plan.listed, plan.pending, plan.known_bad, plan.refused)
    counts = count(ledger, scope, state, limit=9, keeps_result=True)
    assert len(counts.examples) == counts.totals.failed
    assert sum(counts.left_out.by_reason().values()) == counts.left_out.objects
    left_out = counts.left_out.objects
    yield counts.totals.done, counts.totals.failed, counts.skipped, plan.known_bad, left_out, plan.listed


@settings(max_examples=5)
@example([True, False], [True, False], [0, 1] * 5)  # both end before they count
@example([False, True], [True, False], [0, 1] * 5)
@example([True, None], [False, True], [0, 1, 0, 1, 0, 0, 0, 1, 1, 1])
@example(["short", False], ["short", "loud"], [0, 1] * 5)
@given(OUTCOMES_OF_TRANSFORMS, OUTCOMES_OF_TRANSFORMS, ORDER)
def test_the_parts_of_each_transform_add_up_to_what_was_listed(
    connection: Connection, one: list[bool | str | None], other: list[bool | str | None], order: list[int]
) -> None:
    for table in ("objects", "listings"):
        connection.command(f"TRUNCATE TABLE storeside.{table}")
    results: dict[str, int] = {}
    running = [transform(connection, "one", one, results), transform(connection, "other", other, results)]
    reports: list[tuple[int, ...] | None] = [None, None]
    for number in [*order, *[0] * 6, *[1] * 6]:
        reports[number] = next(running[number], reports[number])
    for report, outcomes in zip(reports, (one, other), strict=True):
        assert report is not None
        *parts, listed = report
        assert min(parts) >= 0, report
        assert sum(parts) == listed or (None in outcomes and sum(parts) < listed), report


def test_the_parts_of_a_transform_that_is_tried_again_add_up(connection: Connection) -> None:
    for table in ("objects", "listings"):
        connection.command(f"TRUNCATE TABLE storeside.{table}")
    results: dict[str, int] = {}
    for _ in range(2):
        (*_, report) = transform(connection, "one", [True, True], results)
        assert report == (2, 1, 0, 0, 0, 3), "done by the run, by any of its tries"


def test_reasons_of_left_out_objects_are_counted_up_to_a_limit(connection: Connection) -> None:
    ledger, scope = Ledger(connection), Scope("ais://a", "ais://b", "effect", "run")  # type: ignore[arg-type]
    for table in ("objects", "listings"):
        connection.command(f"TRUNCATE TABLE storeside.{table}")
    names = [f"{number:03d}" for number in range(3 * REASONS)]
    ledger.record_listing(scope, "source", [(name, f"{name}.wav", 1, "v", "") for name in names])
    ledger.plan(scope, retry_failed=False, keeps_result=True)
    ledger.record_outcomes(
        scope, [(name, f"{name} is odd" if int(name) % 3 else "loud", "left_out", "") for name in names]
    )
    ledger.settle(scope, record_done=True, no_reason="none")
    found = ledger.left_out(scope)
    assert (found.objects, len(found.reasons), found.reasons["loud"]) == (3 * REASONS, REASONS, REASONS)
    both = (found + found).by_reason()
    assert len(both) == REASONS + 1
    assert (both["loud"], sum(both.values())) == (2 * REASONS, 6 * REASONS)


def test_facts_are_recorded_with_the_outcome_that_they_belong_to(connection: Connection) -> None:
    """An object that was left out over one channel and has a result over another has the facts of the result."""
    ledger, scope = Ledger(connection), Scope("ais://a", "ais://b", "effect", "run")  # type: ignore[arg-type]
    for table in ("objects", "listings"):
        connection.command(f"TRUNCATE TABLE storeside.{table}")
    names = ["kept", "left", "both", "failed", "plain"]
    ledger.record_listing(scope, "source", [(name, f"{name}.wav", 1, "v", "") for name in names])
    ledger.plan(scope, retry_failed=False, keeps_result=True)
    results = [("", f"{name}.wav", 1, "v", "") for name in ("kept", "both", "plain")]
    ledger.record_listing(scope, "after", results)
    ledger.record_outcomes(scope, [
        ("kept", "", "facts", "k"), ("failed", "", "facts", "never stored"), ("failed", "bad", "final", ""),
        ("left", "short", "left_out", "l"), ("both", "short", "left_out", "not this"), ("both", "", "facts", "b"),
    ])  # fmt: skip
    ledger.settle(scope, record_done=True, no_reason="none")
    found = connection.query(
        "SELECT object, toString(status), reason, facts FROM storeside.objects FINAL"
    ).result_rows
    assert {name: tuple(told) for name, *told in found} == {
        "kept": ("done", "", "k"), "left": ("left_out", "short", "l"), "both": ("done", "", "b"),
        "failed": ("failed", "bad", ""), "plain": ("done", "", ""),
    }  # fmt: skip
    ledger.plan(scope, retry_failed=False, keeps_result=True)
    assert ledger.planned(scope), "a new plan forgets what earlier jobs stated"
    stated = "SELECT count() FROM storeside.listings WHERE side IN ('facts', 'left_out')"
    assert connection.query(stated).result_rows == [(0,)]
