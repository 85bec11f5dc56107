"""Columns that are selected, renamed, cast, masked and computed, and rows that are filtered, by both loaders."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pytest

from storeside.stack.settings import Stack
from storeside.transfer.columns import Columns
from storeside.transfer.keys import Expression
from tests.avro_files import avro, record
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(300)

LOADERS = ("pull", "push")
EMAILS = ["ann@example.org", "bob@example.org", None, "z"]
ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3, 4], "email": EMAILS, "ts": [f"2026-01-0{n} 12:00:00" for n in (1, 2, 3, 4)],
    "price": ["1.50", "2.25", "3", None], "junk": ["a", "b", "c", "d"],
}  # fmt: skip
CHOSEN = Columns(
    drop=("junk",),
    rename={"ts": "taken_at"},
    cast={"price": "Nullable(Decimal(9, 2))", "ts": "DateTime('UTC')"},
    mask={"email": "sha256"},
    compute={"day": Expression("toDate(ts)"), "twice": Expression("price * 2")},
    where=Expression("id != 2"),
)


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def arrow(columns: dict[str, Any]) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def orc(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pa.orc.write_table(pa.table(columns), sink)
    return sink.getvalue()


def lines(columns: dict[str, Any]) -> bytes:
    return jsonl([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def csv(columns: dict[str, Any]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    texts = [",".join("" if value is None else str(value) for value in row) for row in rows]
    return "\n".join([",".join(columns), *texts, ""]).encode()


def in_avro(columns: dict[str, Any]) -> bytes:
    texts: dict[str, Any] = {name: ["null", "string"] for name in columns if name != "id"}
    made = {n: c if n == "id" else [(int(v is not None), v) for v in c] for n, c in columns.items()}
    rows = [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
    return avro(record(id="long", **texts), rows)


FORMATS = {"parquet": parquet, "csv": csv, "jsonl": lines, "arrow": arrow, "orc": orc, "avro": in_avro}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_all_options_with_a_new_table(loading: Loading, loader: str, form: str) -> None:
    loading.put({f"{n}/x.{form}": FORMATS[form](ROWS) for n in (1, 2)})
    report = loading.load(loader=loader, chosen=CHOSEN, system_columns=("_object", "_row_number"))
    assert loading.reasons() == {}
    assert (report.rows, report.filtered) == (6, 2)
    types = loading.types()
    assert list(types)[-4:-2] == ["day", "twice"]
    assert types["email"] == "Nullable(String)"
    assert types["taken_at"] == "DateTime('UTC')"
    assert "junk" not in types
    masks = [None if email is None else hashed(email) for email in EMAILS]
    expected = [
        (n, masks[n - 1], f"2026-01-0{n} 12:00:00", price, f"2026-01-0{n}", twice, f"{folder}/x.{form}", n - 1)
        for n, price, twice in ((1, 1.5, 3.0), (3, 3.0, 6.0), (4, None, None)) for folder in (1, 2)
    ]  # fmt: skip
    names = "id, email, toString(taken_at), toFloat64(price), toString(day), toFloat64(twice), _object, _row_number"
    assert loading.rows(names, "id, _object") == expected
    assert [counts[1:3] for counts in loading.ledger().values()] == [(3, 0), (3, 0)]
    filtered = f"SELECT filtered FROM storeside.loads FINAL WHERE bucket = '{loading.bucket}'"
    assert loading.query(filtered) == [(1,), (1,)]
    loading.put({f"{n}/x.{form}": FORMATS[form](ROWS) for n in (3,)})  # a later run, with the table
    assert loading.load(loader=loader, chosen=CHOSEN, system_columns=("_object", "_row_number")).rows == 3
    assert loading.rows(names, "id, _object")[2] == (*expected[0][:6], f"3/x.{form}", 0)
