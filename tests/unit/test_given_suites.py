"""Suites by name: functions, YAML and JSON files, and the faults in them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from storeside.operators.arguments import LiteralArgumentError
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.quality.errors import QualityError
from storeside.quality.given import check_suite, load_suite
from storeside.stack.settings import CHECKOUT
from storeside.transfer.__main__ import main
from storeside.transfer.base.schema import Column
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.staging.expectations import rules

HERE = "tests.unit.suites_for_tests"
BETWEEN = "expect_column_values_to_be_between"


def one(**fields: Any) -> dict[str, Any]:
    return {"type": BETWEEN, "kwargs": {"column": "n", "max_value": 1}, **fields}


def rows(least: Any) -> dict[str, Any]:
    return {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": least}}


def test_a_yaml_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "name: trips\nexpectations:\n"
        "- type: expect_column_values_to_be_between\n  severity: warning\n"
        "  kwargs: {column: day, min_value: 2026-01-02, mostly: 0.9, row_condition: null}\n"
    )
    suite = load_suite(str(path))
    (found,) = suite.expectations
    assert (suite.name, found.kwargs, found.mostly) == (
        "trips", {"column": "day", "min_value": date(2026, 1, 2)}, 0.9,
    )  # fmt: skip
    assert found.check.severity == "warning"
    assert found.check.description == "column values to be between (min_value: 2026-01-02)"


def test_what_clickhouse_does_not_evaluate_is_left_to_great_expectations() -> None:
    suite = load_suite(
        {
            "name": "x",
            "expectations": [
                one(),
                one(kwargs={"column": "n", "max_value": 1, "row_condition": "n > 1"}),
                {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "n", "min_value": 1}},
                {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["n", "m"]}},
                {"type": "expect_table_columns_to_match_set", "kwargs": {"column_set": ["n"]}},
            ],
        }
    )
    assert [e.by_gx for e in suite.expectations] == [False, True, True, True, True]
    assert [e.needs_all_rows for e in suite.expectations] == [False, False, True, True, False]
    assert suite.expectations[3].columns == ("n", "m")


def test_functions_return_suites_or_dictionaries() -> None:
    between, there = load_suite(f"{HERE}:made_by_gx").expectations
    assert (between.kwargs, between.mostly, between.severity) == ({"column": "n", "max_value": 9.0}, 0.5, "warning")
    assert there.check.description == "n is there"
    assert load_suite(f"{HERE}:made_as_dict").name == "plain"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("broken", "LookupError: no such thing: the function must"),
        ("another_type", "AttributeError"),
        ("absent", "AttributeError: module .* has no attribute 'absent'"),
    ],
)
def test_functions_that_return_no_suite_are_refused(function: str, reason: str) -> None:
    with pytest.raises(QualityError, match=f"suite {HERE}:{function}: {reason}"):
        load_suite(f"{HERE}:{function}")
    with pytest.raises(QualityError, match="ModuleNotFoundError"):
        load_suite("no.such.module:function")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "write a mapping"),
        ({"expectation_suite_name": "x", "expectations": []}, "0.x"),
        ({"name": "x", "expectations": []}, "0 expectations"),
        ({"name": "x", "expectations": [one()] * 1001}, "1001 expectations"),
        ({"expectations": [one()]}, "write its `name`"),
        ({"name": "x", "expectations": [one()], "unknown": 1}, "unknown fields unknown"),
        ({"name": "x", "expectations": [one(), one(type="expect_foo")]}, "expectation 2: 'expect_foo' is unknown"),
        ({"name": "x", "expectations": [one(typo=1)]}, "unknown fields typo"),
        ({"name": "x", "expectations": [rows("ten")]}, "min_value 'ten': write a whole number of rows"),
        ({"name": "x", "expectations": [rows(99.5)]}, "min_value 99.5: write a whole number of rows"),
        ({"name": "x", "expectations": [one(severity="grave")]}, "severity 'grave'"),
        ({"name": "x", "expectations": [one(kwargs={"column": "n"})]}, "needs min_value or max_value"),
        ({"name": "x", "expectations": [one(kwargs={"max_value": 1})]}, "needs column"),
        ({"name": "x", "expectations": [one(kwargs={"column": 1, "max_value": 1})]}, "column 1 has the wrong type"),
        (
            {"name": "x", "expectations": [{"type": "expect_column_values_to_be_increasing", "kwargs": {}}]},
            "cannot be checked: the rows of a table have no order",
        ),
        (
            {
                "name": "x",
                "expectations": [
                    {"type": "expect_column_mean_to_be_between", "kwargs": {"min_value": {"$PARAMETER": "m"}}}
                ],
            },
            "suite parameters are not supported: write their values",
        ),
        (
            {"name": "x", "expectations": [one(kwargs={"column": "n", "max_value": 1, "mostly": 2})]},
            "mostly 2: write a number",
        ),
        (
            {
                "name": "x",
                "expectations": [one(kwargs={"column": "n", "max_value": 1, "mostly": {"$PARAMETER": "m"}})],
            },
            "mostly .* has the wrong type",
        ),
        (
            {
                "name": "x",
                "expectations": [
                    {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "n", "value_set": []}}
                ],
            },
            "value_set is empty",
        ),
    ],
)
def test_files_with_faults_are_refused_with_the_expectation_and_the_reason(
    tmp_path: Path, content: Any, reason: str
) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(content))
    with pytest.raises(QualityError, match=f"suite {path}: .*{reason}"):
        load_suite(str(path))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for name, content, reason in (
        ("absent.json", None, "No such file"),
        ("broken.json", b"{", "cannot be read"),
        ("broken.yaml", b"a: [", "cannot be read"),
        ("object.yaml", b"!!python/object/apply:os.system ['true']", "cannot be read"),
        ("deep.json", b"[" * 200_000, "cannot be read"),
        ("large.yml", b" " * ((4 << 20) + 1), "larger than 4 MiB"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(QualityError, match=reason):
            load_suite(str(tmp_path / name))


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("SELECT * FROM {batch} WHERE n > 1", "n > 1"),
        ("select *\n  from {batch}\n where match(s, '^a{{2}}$') ; ", "match(s, '^a{2}$')"),
    ],
)
def test_a_suite_is_a_mapping_with_conditions_in_sql(query: str, condition: str) -> None:
    given = {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": query}, "description": "few"}
    (found,) = load_suite({"name": "x", "expectations": [given]}).expectations
    assert (found.condition, found.check.description, found.columns) == (condition, "few", ())


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT n FROM {batch} WHERE n > 1", "write unexpected_rows_query as SELECT"),
        ("SELECT * FROM {batch}", "write unexpected_rows_query as SELECT"),
        ("SELECT * FROM data.others WHERE n > 1", "write unexpected_rows_query as SELECT"),
        ("SELECT * FROM {batch} WHERE n > 1) OR (1", "write one expression"),
        ("SELECT * FROM {batch} WHERE n > 1 -- and more", "write one expression"),
        ("SELECT * FROM {batch} WHERE 1; DROP TABLE data.t", "write one expression"),
    ],
)
def test_a_condition_in_sql_is_one_expression(query: str, reason: str) -> None:
    given = {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": query}}
    with pytest.raises(QualityError, match=reason):
        rules(load_suite({"name": "x", "expectations": [given]}).expectations, [Column("n", "UInt8")], "t")


def test_names_are_checked_without_loading() -> None:
    for name in ("absent.module:function", "/nowhere/suite.yml", "a:b"):
        check_suite(name)
    for name in ("module", "os.system('x')", "a:b:c", "suite.txt", "a.b:"):
        with pytest.raises(QualityError, match=r"write a function as package\.module:function"):
            check_suite(name)
        with pytest.raises(QualityError):
            Request(Source("bucket"), "data.t", expectations=Expectations(name))


def test_a_dag_with_an_invalid_suite_cannot_be_imported() -> None:
    arguments: dict[str, Any] = {"task_id": "load", "bucket": "trips", "table": "data.t"}
    with pytest.raises(LiteralArgumentError, match="suite"):
        S3ToClickHouseOperator(**arguments, suite="module")
    with pytest.raises(LiteralArgumentError, match="on_failed_expectations"):
        S3ToClickHouseOperator(**arguments, on_failed_expectations="skip")
    S3ToClickHouseOperator(**arguments, suite="a.b:c", on_failed_expectations="quarantine")


def test_a_request_with_a_suite_survives_json() -> None:
    request = Request(Source("bucket"), "data.t", expectations=Expectations("a.b:c", "quarantine"))
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    old = {name: value for name, value in request.to_dict().items() if name != "expectations"}
    assert Request.from_dict(old).expectations == Expectations()


def test_the_command_refuses_a_wrong_suite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert main(["s3://trips/", "data.t", "--suite", "module"]) == 2
    assert "suite 'module'" in capsys.readouterr().err


def test_files_are_read_without_great_expectations(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"name": "x", "expectations": [one()]}))
    code = (
        "import sys, storeside.transfer.staging.validation, storeside.quality.given as given\n"
        f"given.load_suite({str(path)!r})\n"
        "assert not {'great_expectations', 'pandas', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)
