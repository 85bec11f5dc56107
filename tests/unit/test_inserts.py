"""Inserts that ClickHouse's engine reads back, and that load no pandas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storeside.sql.inserts import lean_inserts, native
from tests.unit.test_sql import Engine

COLUMNS = {
    "key": "String", "small": "UInt8", "middle": "UInt32", "large": "UInt64", "share": "Float64",
    "at": "DateTime64(3)", "state": "String",
}  # fmt: skip
ROWS = [
    ["", 0, 0, 0, 0.0, datetime(1970, 1, 1, tzinfo=UTC), "loaded"],
    ["ü'\0\n" * 100, 255, 2**32 - 1, 2**64 - 1, -1.5, datetime(2026, 11, 25, 1, 2, 3, 456789, UTC), "failed"],
    ["x", 1, 2, 3, 1e300, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), "loaded"],
]
# Loads a client's insert in a new process, in which nothing else has imported pandas.
ALONE = """
import sys
from types import SimpleNamespace
from storeside.sql.inserts import lean_inserts
client = lean_inserts(SimpleNamespace(insert=None, raw_insert=lambda *given: print(given[0], given[1], given[4])))
client.insert("t", [["a", 1]], column_names=["s", "n"], column_type_names=["String", "UInt64"])
sys.exit("pandas" in sys.modules or "numpy" in sys.modules)
"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.session.close()


def test_the_engine_reads_what_was_encoded(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "rows.native"
    columns = list(zip(*ROWS, strict=True))
    file.write_bytes(native(list(COLUMNS), list(COLUMNS.values()), columns))
    structure = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    structure = structure.replace("state String", "state Enum8(''loaded'' = 1, ''failed'' = 2)")  # as in the ledger
    rows = engine.run(
        "SELECT key, small, middle, large, share, toUnixTimestamp64Milli(at), toString(state)"
        f" FROM file('{file}', 'Native', '{structure}')"
    )
    moments = [0, 1795568523456, -1000 + 999]  # milliseconds since the epoch
    assert [list(row) for row in rows] == [
        [*row[:5], moment, row[6]] for row, moment in zip(ROWS, moments, strict=True)
    ]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(IndexError, match="column n: 1 values, but 2"):
        native(["s", "n"], ["String", "UInt64"], [["a", "b"], [1]])


def test_an_insert_of_a_ledger_loads_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "t ['s', 'n'] Native\n"), done.stderr


@pytest.mark.parametrize("types", [None, ["Array(String)", "UInt64"]])
def test_other_inserts_are_the_clients(types: list[str] | None) -> None:
    sent: list[Any] = []
    client: Any = SimpleNamespace(insert=lambda *given, **named: sent.append((given, named)), raw_insert=None)
    named = {"column_type_names": types} if types else {}
    lean_inserts(client).insert("t", [[["a"], 1]], column_names=["s", "n"], settings={"async_insert": 0}, **named)
    assert sent[0][0] == ("t", [[["a"], 1]], ["s", "n"])
    assert sent[0][1]["settings"] == {"async_insert": 0}
    assert sent[0][1].get("column_type_names") == types
