"""Columns of objects whose names are those of columns that a load can add itself."""

from __future__ import annotations

import json

import pytest

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS
from tests.statements import Statements
from tests.transfers import parquet

NAMES = (*SYSTEM_COLUMNS, REST)
LOADERS = ("pull", "push")


def objects(name: str) -> dict[str, bytes]:
    """Return an object of each kind of format with a column of this name."""
    lines = [json.dumps({"id": n, name: n + 4}) for n in (1, 2)]
    return {
        "a.csv": f"id,{name}\n1,5\n2,6\n".encode(),
        "a.jsonl": "\n".join(lines).encode(),
        "a.parquet": parquet({"id": [1, 2], name: [5, 6]}),
    }


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", objects(""))
def test_a_column_of_data_may_have_the_name_of_a_column_that_is_not_requested(
    reading: Statements, key: str, name: str, loader: str
) -> None:
    reading.put({key: objects(name)[key]})
    assert reading.load(loader=loader).loaded == 1, reading.reasons()
    assert reading.rows() == [(1, 5), (2, 6)]
    assert reading.types() == {"id": "Nullable(Int64)", name: "Nullable(Int64)"}


@pytest.mark.parametrize("name", SYSTEM_COLUMNS)
@pytest.mark.parametrize("key", objects(""))
def test_a_requested_column_of_this_name_refuses_the_load_and_names_rename(
    reading: Statements, key: str, name: str
) -> None:
    reading.put({key: objects(name)[key]})
    with pytest.raises(TransferInputError, match=rf"'{name}' has the name .* rename=\{{'{name}': 'other'\}}"):
        reading.load(system_columns=(name,))
    assert reading.query(f"EXISTS {reading.table}") == [(0,)]
    assert reading.load(chosen=Columns(rename={name: "other"}), system_columns=(name,)).loaded == 1
    assert reading.rows("id, other") == [(1, 5), (2, 6)]
    if name in ("_object", "_row_number"):
        assert reading.rows(name, "id") == ([(key,)] * 2 if name == "_object" else [(0,), (1,)])


@pytest.mark.parametrize("key", objects(""))
def test_a_column_with_the_name_of_the_rest_refuses_the_load(reading: Statements, key: str) -> None:
    reading.put({key: objects(REST)[key]})
    with pytest.raises(TransferInputError, match=r"'_rest' has the name .* choose another on_drift than 'rest'"):
        reading.load(on_drift="rest")


@pytest.mark.parametrize("on_drift", ["fail", "add", "widen", "rest"])
@pytest.mark.parametrize("key", objects(""))
def test_a_later_object_with_the_name_of_a_requested_column_fails_alone(
    reading: Statements, key: str, on_drift: str
) -> None:
    reading.create("id Int64, _object LowCardinality(String)")
    form = key.rpartition(".")[2]
    plain = {"csv": b"id\n1\n", "jsonl": b'{"id":1}', "parquet": parquet({"id": [1]})}[form]
    reading.put({key: objects("_object")[key], f"good.{form}": plain})
    report = reading.load(on_drift=on_drift, format=form, system_columns=("_object",))
    assert (report.loaded, report.failed) == (1, 1)
    assert reading.rows("id, _object") == [(1, f"good.{form}")]
    assert "rename={'_object': 'other'}" in reading.reasons()[key]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("key", objects(""))
def test_existing_tables_keep_their_system_columns(reading: Statements, key: str, loader: str) -> None:
    """Also if a later load does not request them, whose objects lack them."""
    form = key.rpartition(".")[2]
    plain = {"csv": b"id\n%d\n", "jsonl": b'{"id":%d}'}
    for n, options in ((1, {"system_columns": (*SYSTEM_COLUMNS,), "on_drift": "rest"}), (2, {})):
        content = plain[form] % n if form in plain else parquet({"id": [n]})
        reading.put({f"{n}.{form}": content})
        assert reading.load(loader=loader, **options).loaded == 1, reading.reasons()
    assert reading.rows("id, _object, _row_number, _rest", "id") == [(1, f"1.{form}", 0, {}), (2, "", 0, {})]


@pytest.mark.parametrize("loader", LOADERS)
def test_an_object_with_a_field_without_a_name_is_text(reading: Statements, loader: str) -> None:
    """No field of a struct has an empty name. Such as `packages` of npm's package-lock.json."""
    values = [{"": {"license": "MIT"}, "a": 1.5}, {"b": None}]
    documents = [{"i": n, "packages": value, "in": {"k": value}, "l": [value]} for n, value in enumerate(values)]
    reading.put({"a.jsonl": "".join(json.dumps(document) + "\n" for document in documents).encode()})
    assert reading.load(loader=loader).loaded == 1, reading.reasons()
    texts = [json.dumps(value) for value in values]
    assert reading.rows("packages, `in`, l", "i") == [(text, {"k": text}, [text]) for text in texts]
