"""A lost ledger of loads is restored from the table's rows and a listing of the source."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from storeside.stack import demo
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.rebuild import Rebuilt, rebuild
from storeside.transfer.request.source import Source
from tests.transfers import Loading, environment

if TYPE_CHECKING:
    pass


def csv(*numbers: int) -> bytes:
    return b"n\n" + b"".join(b"%d\n" % n for n in numbers)


def rebuilt(loading: Loading, keys: str = "") -> Rebuilt:
    """Rebuild with the users of Airflow's connections, which have no other rights."""
    loader, ledger = (demo.clickhouse_client(loading.stack, user) for user in (LOADER, LEDGER))
    return rebuild(Source(loading.bucket, keys, "storeside_s3"), loading.table, loader, loading.s3, ledger)


def lose(loading: Loading, where: str = "true") -> None:
    loading.clickhouse.command(
        f"DELETE FROM storeside.loads WHERE bucket = '{loading.bucket}' AND {where}",
        settings={"lightweight_deletes_sync": 2},
    )


@pytest.mark.parametrize("dropped", [False, True], ids=["rows lost", "table dropped"])
def test_after_a_rebuild_no_object_is_loaded_again(loading: Loading, dropped: bool) -> None:
    loading.put({"a.csv": csv(1), "b.csv": csv(2, 3), "it's {c}.csv": csv(4)})
    loading.load()
    if dropped:
        loading.clickhouse.command("DROP TABLE storeside.loads SYNC")
    else:
        lose(loading)
    loading.put({"new.csv": csv(5)})
    assert rebuilt(loading) == Rebuilt(listed=4, recorded=3, rows=4, absent=1, other_rows=0)
    report = loading.load()
    assert (report.loaded, report.skipped, report.rows) == (1, 3, 1)
    assert loading.rows("n") == [(1,), (2,), (3,), (4,), (5,)]
    assert rebuilt(loading) == Rebuilt(listed=4, recorded=0, rows=0, absent=0, other_rows=0)


def test_a_rebuild_completes_a_ledger_and_changes_no_known_load(loading: Loading) -> None:
    loading.put({"a.csv": csv(1), "bad.csv": b"n\nx\n", "b.csv": csv(2)})
    loading.load(columns={"n": "Int64"})
    before = loading.ledger()
    assert {key: state for key, (state, *_) in before.items()} == {
        "a.csv": "loaded",
        "b.csv": "loaded",
        "bad.csv": "failed",
    }
    lose(loading, "key = 'a.csv'")
    assert rebuilt(loading) == Rebuilt(listed=3, recorded=1, rows=1, absent=1, other_rows=0)
    assert loading.ledger() == before
    assert loading.load().loaded == 0


def test_rows_whose_objects_are_not_listed_are_counted(loading: Loading) -> None:
    loading.put({"x/a.csv": csv(1), "x/gone.csv": csv(2, 3), "x/b.csv": csv(4), "y/c.csv": csv(5)})
    loading.load()
    loading.clickhouse.command(f"INSERT INTO {loading.table} (n) VALUES (6)")
    lose(loading)
    loading.s3.delete_object(Bucket=loading.bucket, Key="x/gone.csv")
    loading.put({"x/b.csv": csv(7)})
    # Listed: a, b in a version that was never loaded. Others: two rows of gone, one each of b, c and the INSERT.
    assert rebuilt(loading, "x/") == Rebuilt(listed=2, recorded=1, rows=1, absent=1, other_rows=5)
    assert loading.rows("n") == [(n,) for n in range(1, 7)]


def test_an_interrupted_publication_is_left_to_the_next_load(loading: Loading) -> None:
    loading.put({"a.csv": csv(1, 2)})
    loading.load()
    # As after a kill during the publication: the ledger expects two rows, and the table has one.
    loading.clickhouse.command(
        f"ALTER TABLE storeside.loads UPDATE state = 'publishing' WHERE bucket = '{loading.bucket}'",
        settings={"mutations_sync": 2},
    )
    loading.clickhouse.command(f"DELETE FROM {loading.table} WHERE n = 2", settings={"lightweight_deletes_sync": 2})
    assert rebuilt(loading).recorded == 0
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(1,), (2,)]


def test_the_command(loading: Loading) -> None:
    loading.put({"a.csv": csv(1)})
    loading.load()
    lose(loading)
    arguments = [f"s3://{loading.bucket}", loading.table, "--json"]
    command = [sys.executable, "-m", "storeside.transfer.rebuild", *arguments]
    made = subprocess.run(command, env=environment(loading.stack), capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == {"listed": 1, "recorded": 1, "rows": 1, "absent": 0, "other_rows": 0}
    command[4] = "data.nothing_here"
    refused = subprocess.run(command, check=False, env=environment(loading.stack), capture_output=True, text=True)
    assert refused.returncode == 2
    assert "table data.nothing_here does not exist" in refused.stderr
    with pytest.raises(TransferInputError):
        rebuild(Source(loading.bucket), "data.nothing_here", loading.client(), loading.s3)
