"""Attacks through the staging database: names and comments of tables there are input."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from storeside.sql.migrate import migrate
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base import staging_tables
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.state import lock
from tests.transfers import Loading


@pytest.fixture
def victim(loading: Loading) -> Iterator[str]:
    """A table of another user."""
    name = f"victim_{uuid.uuid4().hex[:8]}"
    migrate(loading.clickhouse)
    loading.clickhouse.command(f"CREATE TABLE data.{name} (n UInt8) ENGINE = MergeTree ORDER BY n")
    yield f"data.{name}"
    loading.clickhouse.command(f"DROP TABLE IF EXISTS data.{name}")


def make(loading: Loading, name: str, comment: str = "") -> None:
    loading.clickhouse.command(
        f"CREATE TABLE {STAGING}.{identifier(name)} (n UInt8) ENGINE = Null COMMENT {literal(comment)}"
    )


def exists(loading: Loading, table: str) -> bool:
    return loading.query(f"EXISTS {table}") == [(1,)]


def test_the_name_of_a_staging_table_drops_no_other_table(
    loading: Loading, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker may create tables in the staging database, and knows the id of a transfer or waits for a week."""
    monkeypatch.setattr(staging_tables, "STALE_HOURS", -1)
    loading.put({"a.csv": b"n\n1\n"})
    transfer = loading.transfer(format="csv")
    names = [f"x`, {victim} -- ", f"load_{transfer.id}_`, {victim} -- ", f"load_{transfer.id}_0_`, {victim} -- "]
    for name in names:
        make(loading, name)
    assert transfer.run(transfer.prepare()).loaded == 1
    assert exists(loading, victim)
    for name in names:  # and they are not ours to drop
        loading.clickhouse.command(f"DROP TABLE {STAGING}.{identifier(name)}")


@pytest.mark.parametrize(
    "comment",
    [
        "", "no JSON", "[]", "7", "null", '{"owner": "x"}', '{"owner": "x", "staging": 7}', '{"staging": null}',
        '{"owner": "x", "staging": "VICTIM"}', '{"owner": "x", "staging": "x`, VICTIM -- "}',
    ],
)  # fmt: skip
def test_the_comment_of_a_lock_neither_blocks_a_table_nor_drops_another(
    loading: Loading, victim: str, comment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker may create tables in the staging database: a lock without a holder, with a comment of any kind."""
    monkeypatch.setattr(lock, "STALE_SECONDS", -1.0)
    monkeypatch.setattr(lock, "_PATIENCE_SECONDS", 5.0)
    name = victim.partition(".")[2]
    make(loading, name)  # in the staging database
    taken = lock.lock_name(loading.table)
    make(loading, taken, comment.replace("x`, VICTIM", f"x`, {victim}").replace("VICTIM", name))
    with lock.locked(loading.client(), loading.table, "owner", "nothing"):
        pass
    assert exists(loading, victim)
    loading.clickhouse.command(f"DROP TABLE {STAGING}.{name}")
