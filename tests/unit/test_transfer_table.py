"""How rows become visible in a table: the statement, and the wait for statements of an earlier attempt."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.publish import publishing
from storeside.transfer.publish.publishing import publish, settle
from storeside.transfer.request.options import TableOptions
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.tables.creation import create
from storeside.transfer.tables.table import LOAD_ID, Destination, look_up
from tests.statements import Engine

STAGING = "load_0_1_token_1"


class Client:
    """ClickHouse with one table, where statements of an earlier attempt still run at the first query."""

    def __init__(self, engine: str = "MergeTree", *, has_views: bool = False, at_work: Sequence[str] = ()) -> None:
        self.table = (
            engine,
            "",
            "n",
            "n",
            "default",
            ["v"] if has_views else [""],
            engine,
        )
        self.columns = [("n", "Int64", "", "", ""), (LOAD_ID, "UInt64", "", "", "")]
        self.at_work = list(at_work)
        self.done: list[tuple[str, dict[str, Any]]] = []

    def query(self, statement: str, parameters: Any = None, **_: Any) -> Any:
        if "system.processes" in statement:
            prefix = parameters["prefix"]
            rows = [(query, 0) for query in self.at_work[:1] if query.startswith(prefix)]
            del self.at_work[:1]
            return SimpleNamespace(result_rows=rows)
        found = [([self.table], self.columns)] if "partition_key" in statement else []
        return SimpleNamespace(result_rows=found, first_row=found[0] if found else None)

    def command(self, statement: str, settings: Any = None, **_: Any) -> None:
        self.done.append((statement, settings or {}))


class Ledger:
    """Records states, and the times at which they were requested."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.at_work: list[str] = []
        self.states_of: list[str] = []
        self.replaces = False

    def states(self, objects: Sequence[Planned]) -> dict[int, str]:
        self.at_work += self.client.at_work
        return {}

    def record(self, loaded: Sequence[Loaded], state: str) -> None:
        self.states_of.append(state)

    def after(self, obj: Planned) -> str:
        return "none"


def destination(client: Client) -> Destination:
    found = look_up(client, "db.table")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("engine", "has_views", "attaches"),
    [
        ("MergeTree", False, True),
        ("ReplacingMergeTree", False, True),
        ("MergeTree", True, False),
        ("ReplicatedMergeTree", False, False),
        ("SharedReplacingMergeTree", False, False),
    ],
)
def test_parts_are_attached_where_none_is_left_out(engine: str, has_views: bool, attaches: bool) -> None:
    """A replicated table drops a part with the content of an earlier one: rows of a load that were removed."""
    client = Client(engine, has_views=has_views)
    destination(client).take(STAGING, STAGING)
    ((statement, settings),) = client.done
    assert statement.startswith("ALTER TABLE" if attaches else "INSERT INTO")
    assert settings.get("insert_deduplicate") == (None if attaches else 0)


def test_what_an_earlier_try_still_publishes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may have been lost: without the wait an attempt finds no rows and publishes them a second time."""
    monkeypatch.setattr(publishing, "_POLL_SECONDS", 0.0)
    client = Client(at_work=[f"storeside-{STAGING}-1"] * 3)
    ledger: Any = Ledger(client)
    o = Planned("key", "etag", 10, 0.0, 7)
    publish(destination(client), ledger, "token", STAGING, [Loaded(o, 1)], None)
    assert ledger.at_work == []
    assert ledger.states_of == ["publishing", "loaded"]
    (settings,) = [settings for statement, settings in client.done if "ATTACH PARTITION ALL" in statement]
    assert settings["query_id"].startswith(f"storeside-{STAGING}-")


@pytest.mark.parametrize(("found", "said"), [({}, ""), ({7: 1}, "an earlier publication was interrupted: 0 objects")])
def test_only_rows_of_an_earlier_run_are_told(
    caplog: pytest.LogCaptureFixture, found: dict[int, int], said: str
) -> None:
    """A retry of objects that failed finds no rows of them: nothing was interrupted."""
    destination, loads = Mock(replaces_at_once=False), Mock(replaces=False)
    destination.count.return_value = found
    loads.after.return_value = "none"
    with caplog.at_level("INFO"):
        assert settle(destination, loads, [Loaded(Planned("a.csv", "1", 9, 0.0, 7), rows=2)], Mock(), Mock()) == set()
    assert said in caplog.text
    assert bool(said) == ("interrupted" in caplog.text)
    assert destination.remove.called == bool(said)


@pytest.mark.parametrize("options", [TableOptions(order_by="n, nope"), TableOptions(partition_by="nope")])
def test_a_key_of_an_absent_column_is_refused_with_the_columns(engine: Engine, options: TableOptions) -> None:
    columns = [Column("n", "Int64"), Column("at", "Date")]
    with pytest.raises(TransferInputError, match=r"has no column 'nope', which order_by, .* choose from at, n$"):
        create(engine, "default.absent", columns, options, 100)
