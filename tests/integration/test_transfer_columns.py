"""Options for columns with servers: ledger, AIStore, expectations, logs. See `tests/unit/test_reading_columns.py`."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest

from storeside.stack.settings import Stack
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.table_keys import Expression
from tests.transfers import FromAIStore, Loading, jsonl, parquet
from tests.unit.test_reading_columns import CHOSEN, EMAILS, FORMATS, LOADERS, ROWS, csv, hashed


def both(*forms: str) -> list[Any]:
    """Return formats with loaders; `make test` loads each format in one way."""
    usual = {(form, LOADERS[n % 2]) for n, form in enumerate(forms)}
    return [
        (form, loader) if (form, loader) in usual else pytest.param(form, loader, marks=pytest.mark.chaos)
        for form in forms for loader in LOADERS
    ]  # fmt: skip


@pytest.mark.parametrize(("form", "loader"), both("csv", "parquet"))
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


def load_small(loading: Loading, content: dict[str, bytes], chosen: Columns, **more: Any) -> None:
    loading.put(content)
    loading.load(chosen=chosen, **more)


def test_from_aistore(stack: Stack, clickhouse: Any, aistore: Any) -> None:
    loading = FromAIStore(stack, clickhouse, aistore)
    load_small(loading, {"year=2024/x.csv": csv(ROWS)}, CHOSEN, partition_columns=("year",))
    assert loading.rows("id, year, toString(day)", "id")[0] == (1, 2024, "2026-01-01")
    assert loading.rows("count(), countIf(length(email) = 64)", "1") == [(3, 2)]


def test_expectations_see_the_rows_of_the_table(loading: Loading, tmp_path: Path) -> None:
    """The suite has the table's names and values; excluded rows break no expectation, and reach no quarantine."""
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "tenth", "max_value": 3}}
    masked = {"type": "expect_column_value_lengths_to_equal", "kwargs": {"column": "mail", "value": 64}}
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({"name": "rows", "expectations": [between, masked]}))
    chosen = Columns(
        rename={"email": "mail"}, mask={"email": "sha256"}, compute={"tenth": Expression("intDiv(n, 10)")},
        where=Expression("n != 50 AND n != 20"),
    )  # fmt: skip
    for n in range(2):
        loading.put({f"{n}.jsonl": jsonl([{"n": n, "email": f"a{n}"} for n in (10, 20, 30, 40, 50)])})
    report = loading.load(chosen=chosen, expectations=Expectations(str(suite), "quarantine"))
    assert (report.rows, report.rejected, report.filtered) == (4, 2, 4)
    assert loading.rows("n, mail, tenth", "n") == [(n, hashed(f"a{n}"), n // 10) for n in (10, 10, 30, 30)]
    rows = [json.loads(row) for (row,) in loading.query(f"SELECT row FROM {loading.table}_quarantine")]
    assert rows == [{"n": 40, "mail": hashed("a40"), "tenth": 4}] * 2


def unreadable(form: str, secret: str) -> dict[str, bytes]:
    """Return objects that cannot be loaded; their errors would quote a value of the masked column."""
    s = secret
    rows = {"email": s, "id": 1, "s": "x"}
    return {
        "csv": {
            "number": f"email,id,s\na@{s},1,x\nb@{s},two,x\n".encode(),
            "quote": f'email,id,s\n"a@{s}" {s},1,x\n'.encode(),
            "fields": f"email,id,s\n{s},1,x\n{s},{s},{s},{s}\n".encode(),
            "header": f"{s},1,x\n{s},2,x\n".encode(),
            "utf8": f"email,id,s\n{s},1,\xff\n".encode("latin-1"),
        },
        "jsonl": {
            "number": jsonl([rows, {**rows, "id": "two"}]),
            "cut": jsonl([rows]) + f'{{"id": 1, "email": "{s}", "s": \n'.encode(),
            "array": f'[{{"email": "{s}", "id": {{}}, "s": "x"}}]'.encode(),
            "shifted": jsonl([{"email": {"a": s}, "id": "two", "s": 1}]),
        },
        "parquet": {
            "number": parquet({"email": [s], "id": ["two"], "s": ["x"]}),
            "wide": parquet({"email": [s], "id": [300], "s": ["x"]}),
        },
    }[form]


@pytest.mark.parametrize(("form", "loader"), both("csv", "jsonl", "parquet"))
def test_masked_values_are_nowhere(
    loading: Loading, caplog: pytest.LogCaptureFixture, loader: str, form: str
) -> None:
    """Not in the table, the rejected rows, reasons, the worker's log or ClickHouse's query log."""
    caplog.set_level(logging.DEBUG)
    secret = f"Zq7{uuid.uuid4().hex}"
    bad = {f"{name}.{form}": content for name, content in unreadable(form, secret).items()}
    good = {"email": [secret, f"12345678{secret}"], "id": [1, 2], "s": ["x", "y"]}
    loading.put({**bad, f"good.{form}": FORMATS[form](good)})
    chosen = Columns(mask={"email": "redact"}, cast={"id": "Int8"})
    given: dict[str, Any] = {"loader": loader, "format": form, "chosen": chosen, "retry_failed": True}
    loading.load("good", **given)
    loading.load(**given)
    assert set(loading.reasons()) == set(bad)
    everything = str(loading.ledger())
    if form == "csv":
        loading.load(csv=Csv(quote="'"), **given)  # pyarrow parses this dialect
        everything += str(loading.ledger())
    for drift in ("fail", "add", "rest"):
        loading.load(on_bad_rows="keep", on_drift=drift, **given)
        everything += str(loading.ledger())
    assert loading.rows("count() > 1, countIf(email != '***')", "1") == [(1, 0)]
    if form != "parquet":
        rejected = loading.query(f"SELECT reason, raw FROM {loading.table}_rejected")
        assert {raw for _, raw in rejected} == {""}
        assert any(reason.startswith("row ") for reason, _ in rejected)
        everything += str(rejected)
    assert secret not in everything + caplog.text + str(loading.rows()) + str(loading.types())
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    loggers = (
        "SELECT query, exception FROM system.query_log WHERE event_date >= today() - 1 AND user LIKE 'storeside_%'"
    )
    assert loading.query(f"{loggers} AND position(query || exception, {{s:String}}) > 0", s=secret) == []
    assert len(loading.query(f"{loggers} LIMIT 1")) == 1
