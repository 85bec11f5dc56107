"""The options for columns: their checks, their texts from forms and JSON, and samples without masked values."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import jinja2
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.operators import S3ToClickHouseOperator, params
from storeside.transfer.base.errors import TransferInputError, plain
from storeside.transfer.cli import request, transfer_arguments
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import ReadOptions, TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.staging.private import quiet_client

ALL = Columns(
    ("a", "b,c", "m"), ("d",), {"a": "x"}, {"b,c": "Int8"}, {"m": "last4"}, {"y": Expression("a + 1")},
    Expression("a > 0"),
)  # fmt: skip
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mask": {"a": "md5"}}, "mask 'a': 'md5' is not a mask: choose one of sha256, redact, last4"),
    ({"select": ("a",), "drop": ("a",)}, "columns 'a': select or drop them"),
    ({"rename": {"a": "b"}, "drop": ("a",)}, "rename 'a': these columns are not loaded"),
    ({"rename": {"a": "b"}, "select": ("c",)}, "rename 'a': these columns are not loaded"),
    ({"rename": {"a": "x", "b": "x"}}, "columns 'x': each column of the table needs one source"),
    ({"rename": {"a": "x"}, "compute": {"x": Expression("a")}}, "columns 'x': each column of the table"),
    ({"rename": {"a": "b"}, "select": ("a", "b")}, "columns 'b': each column of the table"),
    ({"rename": {"a": "_storeside_load"}}, "columns '_storeside_load': each column"),
    ({"compute": {"_rest": Expression("a")}}, "columns '_rest': each column"),
    ({"rename": {"a": "_object"}}, "columns '_object': each column"),
    ({"compute": {"year": Expression("a")}}, "columns 'year': each column"),
    ({"mask": {"a": "redact"}, "cast": {"a": "Int8"}}, "columns 'a': a masked column can be neither"),
    ({"cast": {"a": "Int8 DEFAULT file('x')"}}, "column 'a' has the type"),
    ({"compute": {"a": "file('x')"}}, "compute 'a': write the SQL in code"),
    ({"where": "1"}, "where: write the SQL in code"),
    ({"where": Expression("a) OR (b")}, "write one expression"),
    ({"where": Expression("a; DROP TABLE t")}, "write one expression"),
    ({"where": Expression("a -- b")}, "write one expression"),
    ({"rename": {"a": ""}}, "write a name for each column"),
    ({"select": "{{ x }}"}, "write names separated by commas"),
]


@pytest.mark.parametrize(("given", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(TransferInputError) as refused:
        Request(Source("bucket"), "d.t", read=ReadOptions(partition_columns=("year",), columns=Columns(**given)))
    assert reason in str(refused.value)


def test_options_survive_json() -> None:
    made = Request(Source("bucket"), "d.t", read=ReadOptions(columns=ALL))
    assert Request.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert Columns.from_dict(json.loads(json.dumps(asdict(ALL)))) == ALL
    earlier = Request(Source("bucket"), "d.t").to_dict()  # of a version without these options
    del earlier["read"]["columns"]
    assert Request.from_dict(earlier) == Request(Source("bucket"), "d.t")


def test_columns_have_one_source_and_one_target() -> None:
    assert [ALL.target(name) for name in ("a", "b,c", "d", "e", "y")] == ["x", "b,c", None, None, None]
    assert [ALL.source(name) for name in ("x", "b,c", "a", "y", "e")] == ["a", "b,c", None, None, None]
    assert bool(ALL)
    assert not Columns()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Columns()),
        ({"select_columns": " id, a`b ,"}, Columns(("id", "a`b"))),
        (
            {"rename_columns": "a = x, b=y", "mask_columns": "c=redact"},
            Columns(rename={"a": "x", "b": "y"}, mask={"c": "redact"}),
        ),
    ],
)
def test_forms_select_rename_and_mask(given: dict[str, str], expected: Columns) -> None:
    """A form's text stays a name: it never becomes an expression."""
    task = S3ToClickHouseOperator(task_id="load", source="s3://bucket/", **params.LOAD)
    fields = {name: field.value for name, field in params.TABLE.items()} | {"table": "d.t", **given}
    context: Any = {"params": fields}
    rendered = task.render_template(task.read, context, jinja2.Environment())  # noqa: S701
    assert rendered.columns == expected


def test_expressions_are_never_rendered() -> None:
    read = ReadOptions(columns=Columns(compute={"a": Expression("'{{ params.x }}'")}))
    task = S3ToClickHouseOperator(task_id="load", source="s3://bucket/", table="d.t", read=read)
    context: Any = {"params": {"x": "y"}}
    rendered = task.render_template(task.read, context, jinja2.Environment())  # noqa: S701
    assert rendered.columns.compute["a"].text == "'{{ params.x }}'"


@pytest.mark.parametrize("text", ["a", "=x", "a=x, b"])
def test_texts_without_a_name_are_refused(text: str) -> None:
    with pytest.raises(TransferInputError, match="write column=new name"):
        Columns(rename=text)  # type: ignore[arg-type]


def test_the_command_takes_options() -> None:
    parser = transfer_arguments("storeside.transfer", "")
    options = [
        '--set=columns.select=["a", "b,c"]', '--set=columns.rename={"a": "x"}',
        '--set=columns.cast={"b,c": "Decimal(9,2)"}', '--set=columns.mask={"a": "sha256"}', "--column=x=String",
    ]  # fmt: skip
    found = request(parser.parse_args(["s3://bucket/", "d.t", *options]))
    assert found.read.columns == Columns(
        ("a", "b,c"), rename={"a": "x"}, cast={"b,c": "Decimal(9,2)"}, mask={"a": "sha256"}
    )
    assert found.table_options == TableOptions({"x": "String"})
    with pytest.raises(TransferInputError, match=r"option columns.mask 'a': write an object with string values"):
        request(parser.parse_args(["s3://bucket/", "d.t", "--set=columns.mask=a"]))


JSON = Format("jsonl")


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (
            "Code: 27. DB::Exception: Cannot parse input: expected ',' before: 'secret,1': (at row 3)\nRow 3:\n"
            'Column 0,   name: email, type: String, parsed text: "secret"\n'
            'Column 1,   name: id,    type: Int64, parsed text: "x"ERROR: secret\n'
            ": (in file/uri b/x.csv): While executing CSVRowInputFormat. "
            "(CANNOT_PARSE_INPUT_ASSERTION_FAILED) (version 26.9)",
            27,
            "column 'id': a value cannot be read (row 2) (values are not shown, because a column is masked)"
            " (CANNOT_PARSE_INPUT_ASSERTION_FAILED)",
        ),
        (
            "Code: 117. DB::Exception: Unknown field found while parsing JSONEachRow: secret. (INCORRECT_DATA)",
            117,
            "Unknown column (values are not shown, because a column is masked) (INCORRECT_DATA)",
        ),
        ("secret", 1, "a value cannot be read (values are not shown, because a column is masked)"),
        ("Code: 241. DB::Exception: no memory. (MEMORY_LIMIT_EXCEEDED)", 241, "no memory (MEMORY_LIMIT_EXCEEDED)"),
    ],
)
def test_errors_of_a_quiet_client_quote_no_values(text: str, code: int, expected: str) -> None:
    class Client:
        def query(self, statement: str) -> None:
            error = DatabaseError(text)
            error.code = code
            raise error

    with pytest.raises(DatabaseError) as raised:
        quiet_client(Client()).query("SELECT 1")  # type: ignore[arg-type]
    assert plain(raised.value) == expected
    assert raised.value.code == code
    assert code == 241 or raised.value.__context__ is None
