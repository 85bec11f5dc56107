"""Expectations that ClickHouse does not evaluate: Great Expectations does, over the rows of the load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storeside.commands import quality
from storeside.quality.errors import QualityError
from storeside.quality.given import load_suite
from storeside.transfer.base.errors import ExpectationsError
from storeside.transfer.request.options import Expectations
from storeside.transfer.staging import gx_counts
from tests.transfers import Loading

ROWS = [(n, f"{'x' if n % 40 else 'y'}{n}", n % 7 or None) for n in range(100)]


def csv(rows: list[tuple[Any, ...]]) -> bytes:
    return ("n,text,k\n" + "".join(f"{n},{text},{'' if k is None else k}\n" for n, text, k in rows)).encode()


def given(severity: str = "critical") -> dict[str, Any]:
    """A suite with expectations of rows, of columns and of all rows, and one that ClickHouse evaluates."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("expect_column_values_to_not_be_null", {"column": "n"}),
        ("expect_column_values_to_match_regex_list", {"column": "text", "regex_list": ["^x", "^z"], "mostly": 0.9}),
        ("expect_column_values_to_be_between", {"column": "k", "max_value": 5, "row_condition": "n < 50"}),
        ("expect_column_mean_to_be_between", {"column": "n", "min_value": 49, "max_value": 50}),
        ("expect_column_median_to_be_between", {"column": "k", "min_value": 6}),
        ("expect_table_columns_to_match_set", {"column_set": ["n", "text", "k"]}),
        ("expect_compound_columns_to_be_unique", {"column_list": ["n", "text"]}),
        ("expect_select_column_values_to_be_unique_within_record", {"column_list": ["n", "k"]}),
    ]  # fmt: skip
    made = [{"type": kind, "kwargs": kwargs, "severity": severity} for kind, kwargs in wanted]
    return {"name": "by_gx", "expectations": made}


def by_gx(suite: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The results of Great Expectations itself over all rows at once, by expectation."""
    import great_expectations as gx
    from great_expectations.core.expectation_suite import ExpectationSuite

    frame = pd.DataFrame(
        {"n": pd.array([n for n, _, _ in ROWS], "Int64"), "text": [text for _, text, _ in ROWS],
         "k": pd.array([k for _, _, k in ROWS], "Int64")}
    )  # fmt: skip
    context = gx.get_context(mode="ephemeral")
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    found = batch.validate(ExpectationSuite(**suite), result_format="SUMMARY")
    return {one.expectation_config.type: one.to_json_dict() for one in found.results}


@pytest.mark.guarantee("expectations-gx")
def test_results_are_those_of_great_expectations_over_all_rows(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gx_counts, "ROWS", 16)
    loading.put({f"{n}.csv": csv(ROWS[n : n + 10]) for n in range(0, 100, 10)})
    loading.create("n Int64, text String, k Nullable(Int64)")
    suite = given("warning")
    report = loading.load(format="csv", batch_objects=3, expectations=Expectations(suite))
    assert report.rows == 100
    assert report.verdict
    assert sorted(report.verdict["expectations"][1]["examples"]) == [
        ("0.csv", "y0"), ("40.csv", "y40"), ("80.csv", "y80")
    ]  # fmt: skip

    ((text, success, rows),) = loading.query(
        "SELECT result, success, rows FROM storeside.validations WHERE destination = {table:String}",
        table=loading.table,
    )  # fmt: skip
    assert (success, rows) == (True, 100)
    ours = json.loads(text)
    expected = by_gx(suite)
    for one in ours["results"]:
        kind = one["expectation_config"]["type"]
        theirs = expected[kind]
        assert one["success"] == theirs["success"], kind
        for name in ("element_count", "missing_count", "unexpected_count", "unexpected_percent", "observed_value"):
            assert one["result"].get(name) == theirs["result"].get(name), (kind, name)
    assert set(ours["results"][2]["result"]["partial_unexpected_list"]) == {6}
    assert "column median to be between (min_value: 6) (k), not met by 3." in report.verdict["summary"]
    assert [one["success"] for one in ours["results"]] == [True, True, False, True, False, True, True, False]
    assert ours["success"] is False


def test_the_load_fails_and_the_result_is_kept(loading: Loading) -> None:
    loading.put({"a.csv": csv(ROWS)})
    loading.create("n Int64, text String, k Nullable(Int64)")
    transfer = loading.transfer(format="csv", expectations=Expectations(given()))
    with pytest.raises(ExpectationsError, match=r"median .*: not met by 3\.") as failed:
        transfer.run(transfer.prepare())
    assert "(min_value: 6)" in str(failed.value)
    assert loading.rows() == []
    found = loading.query(
        "SELECT success FROM storeside.validations WHERE destination = {table:String}", table=loading.table
    )
    assert found == [(False,)]


@pytest.mark.parametrize(
    ("kind", "kwargs", "rows", "said"),
    [
        ("expect_column_median_to_be_between", {"column": "n", "min_value": 1}, 99, "needs all 100 rows of the load"),
        ("expect_column_median_to_be_between", {"column": "none", "min_value": 1}, 100, "no columns none"),
        ("expect_column_mean_to_be_between", {"column": "text", "min_value": 1}, 100, "cannot evaluate it: "),
        ("expect_column_mean_to_be_between", {"column": "n", "typo": 1}, 100, "typo"),
    ],
)
def test_what_cannot_be_evaluated_publishes_nothing(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, kind: str, kwargs: dict[str, Any], rows: int, said: str
) -> None:
    monkeypatch.setattr(gx_counts, "MOST_ROWS", rows)
    loading.put({"a.csv": csv(ROWS)})
    loading.create("n Int64, text String, k Nullable(Int64)")
    suite = {"name": "x", "expectations": [{"type": kind, "kwargs": kwargs}]}
    transfer = loading.transfer(format="csv", expectations=Expectations(suite))
    with pytest.raises(QualityError, match=said):
        transfer.run(transfer.prepare())
    assert loading.rows() == []


def test_critical_expectations_by_gx_cannot_choose_rows(loading: Loading) -> None:
    loading.put({"a.csv": csv(ROWS)})
    loading.create("n Int64, text String, k Nullable(Int64)")
    transfer = loading.transfer(format="csv", expectations=Expectations(given(), "quarantine"))
    with pytest.raises(QualityError, match=r"needs all rows of a load, and|cannot choose rows for the quarantine"):
        transfer.run(transfer.prepare())
    one = {"type": "expect_column_values_to_be_json_parseable", "kwargs": {"column": "text"}}
    transfer = loading.transfer(
        format="csv", expectations=Expectations({"name": "x", "expectations": [one]}, "quarantine")
    )
    with pytest.raises(QualityError, match=r"cannot choose single rows or objects: set their severity to warning"):
        transfer.run(transfer.prepare())
    suite = {"name": "x", "expectations": [{**one, "severity": "warning"}]}
    report = loading.load(format="csv", expectations=Expectations(suite, "quarantine"))
    assert (report.rows, report.rejected) == (100, 0)
    assert report.verdict
    assert report.verdict["expectations"][0]["unexpected_count"] == 100


def test_data_docs_show_the_results(
    loading: Loading, suite: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from great_expectations.core.expectation_validation_result import expectationSuiteValidationResultSchema

    monkeypatch.setattr(quality, "ledger", loading.client)
    assert quality.main([loading.table]) == 1
    loading.put({"a.csv": csv(ROWS)})
    loading.create("n Int64, text String, k Nullable(Int64)")
    loading.load(format="csv", expectations=Expectations(suite(), "quarantine"))
    capsys.readouterr()
    assert quality.main([loading.table]) == 0
    text = capsys.readouterr().out
    result = expectationSuiteValidationResultSchema.load(json.loads(text))
    assert (result.suite_name, result.statistics["unsuccessful_expectations"]) == ("numbers", 1)
    assert result.to_json_dict()["results"] == json.loads(text)["results"]

    loading.put({"b.csv": csv(ROWS)})
    transfer = loading.transfer(
        format="csv", run_id="dag/manual__1", expectations=Expectations({**given("info"), "name": "../by.gx"})
    )
    transfer.run(transfer.prepare())
    folder = tmp_path / "docs" / "trips"
    capsys.readouterr()
    assert quality.main([loading.table, "--docs", str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out == f"2 results: {folder / 'index.html'}\n"
    assert "Created temporary directory" not in told.err
    assert [path.name for path in folder.parent.iterdir()] == ["trips"]
    pages = {path.parts[-4]: path.read_text() for path in folder.rglob("validations/**/*.html")}
    assert {*pages} == {"numbers", "___by_gx"}
    assert "numbers" in pages["numbers"]
    assert loading.table in (folder / "index.html").read_text()
    assert "Failed" in pages["numbers"]
    assert "numbers" in (folder / "index.html").read_text()
    assert quality.main([loading.table, "--docs", str(folder)]) == 2
    assert "is not empty: name a new folder" in capsys.readouterr().err


def test_each_expectation_of_great_expectations_is_known() -> None:
    """A suite may have any expectation that it ships; the others are refused with a reason."""
    import great_expectations.expectations as gxe
    from great_expectations.expectations.expectation import Expectation

    shipped = {
        made.expectation_type
        for made in vars(gxe).values()
        if isinstance(made, type) and issubclass(made, Expectation) and getattr(made, "expectation_type", "")
    }
    assert len(shipped) > 50
    unknown = [kind for kind in sorted(shipped) if "is unknown" in refusal(kind)]
    assert unknown == []


def refusal(kind: str) -> str:
    try:
        load_suite({"name": "x", "expectations": [{"type": kind, "kwargs": {}}]})
    except QualityError as e:
        return str(e)
    return ""
