"""Expectations that ClickHouse evaluates have the results of Great Expectations itself over all rows at once."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.staging.staging import Staged
from storeside.transfer.staging.validation import Validation, _Table
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.tables.table import Destination, existing
from tests.support import unique

NUMBERS = [None, *range(-2, 3), 2**53 + 1, -(2**63), 2**63 - 1]
FLOATS = [None, 0.0, -0.5, 0.1, 1.0, 3.0, math.inf, -math.inf, math.nan]
TEXTS = [None, "", "a", "ab", "abc", "Ä", "日本語", "a\nb", "x\\y", "a'b", "%", "12", "A1", "[a]", "\U0001f600"]
TIMES = [None, datetime(2026, 1, 1), datetime(2026, 1, 2), datetime(1950, 5, 5, 1, 2, 3), datetime(2280, 1, 1)]
UNIQUE = "expect_column_values_to_be_unique"


def rows() -> list[tuple[Any, ...]]:
    """Return rows with all pairs of floats, and with each value of the other columns several times."""
    others = zip(*map(itertools.cycle, (NUMBERS, FLOATS, TEXTS, TIMES)), strict=False)
    pairs = itertools.product(FLOATS, FLOATS)
    return [(key, *other, a, b) for key, ((a, b), other) in enumerate(zip(pairs, others, strict=False))]


def of_values(name: str, column: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_values_to_{name}", "kwargs": {"column": column, **kwargs}}


def expectations() -> Iterator[dict[str, Any]]:
    for column in "nfst":
        yield of_values("be_null", column)
        yield of_values("not_be_null", column, mostly=0.8)
        yield of_values("be_unique", column)
    limits: dict[str, list[Any]] = {
        "n": [-2, 0, 1],
        "f": [-0.5, 0, 0.1, 2.5],
        "s": ["a", "ab", "Ä"],
        "t": ["2026-01-01T00:00:00", "2026-01-02T00:00:00"],
    }
    for column, values in limits.items():
        if column != "s":  # Great Expectations refuses texts as bounds
            for low, high in itertools.combinations(values, 2):
                for strict in (False, True):
                    bounds = {"min_value": low, "max_value": high, "strict_min": strict, "strict_max": not strict}
                    yield of_values("be_between", column, **bounds)
            yield of_values("be_between", column, max_value=values[0], mostly=0.3)
        if column != "t":
            yield of_values("be_in_set", column, value_set=values)
            yield of_values("not_be_in_set", column, value_set=[*values[:1], values[0]])
    yield of_values("be_in_set", "n", value_set=[1.0, 2.5, 2**62, 10**30, -1])
    yield of_values("be_in_set", "s", value_set=["a'b", "x\\y", "a\nb", "%", "日本語"])
    for pattern in ("a", "^a", "b$", "^[a-z]+$", "[0-9]", "a.b", r"x\\y", "^$", "日", "a|1", r"\[a\]", "'"):
        yield of_values("match_regex", "s", regex=pattern)
        yield of_values("not_match_regex", "s", regex=pattern)
    for value in range(4):
        yield {"type": "expect_column_value_lengths_to_equal", "kwargs": {"column": "s", "value": value}}
        lengths = {"column": "s", "min_value": 1, "max_value": value + 1, "strict_min": value == 2}
        yield {"type": "expect_column_value_lengths_to_be_between", "kwargs": lengths}
    yield from of_pairs()


def of_pairs() -> Iterator[dict[str, Any]]:
    for missing in ("both_values_are_missing", "either_value_is_missing", "neither"):
        pair = {"column_A": "a", "column_B": "b", "ignore_row_if": missing}
        yield {"type": "expect_column_pair_values_to_be_equal", "kwargs": pair}
        for or_equal in (False, True):
            kwargs = {**pair, "or_equal": or_equal, "mostly": 0.4}
            yield {"type": "expect_column_pair_values_a_to_be_greater_than_b", "kwargs": kwargs}


@pytest.fixture(scope="module")
def destination(clickhouse: Any) -> Destination:
    for database in ("data", STAGING):
        clickhouse.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    table = f"data.{unique('equal').replace('-', '_')}"
    clickhouse.command(
        f"CREATE TABLE {table} (key UInt32, n Nullable(Int64), f Nullable(Float64),"
        " s LowCardinality(Nullable(String)), t Nullable(DateTime64(3)), a Nullable(Float64), b Float64)"
        " ENGINE = MergeTree ORDER BY key"
    )
    return existing(clickhouse, table)


@pytest.fixture(scope="module")
def by_gx() -> list[tuple[Any, ...]]:
    """The counts of Great Expectations over all rows, and the keys of the rows that break each expectation."""
    import great_expectations as gx
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    _, n, f, s, t, a, b = zip(*rows(), strict=True)
    columns = {
        "n": pd.array(n, "Int64"), "s": pd.Series(s, dtype=object), "t": pd.Series(t, dtype="datetime64[us]"),
        **{name: pd.Series(values, dtype="float64") for name, values in (("f", f), ("a", a), ("b", b))},
    }  # fmt: skip
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": pd.DataFrame(columns)})
    wanted = [{**one, "meta": {"number": number}} for number, one in enumerate(expectations())]
    suite = ExpectationSuite(name="x", expectations=wanted)
    assert len(suite.expectations) == len(wanted)
    form = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
    results = batch.validate(suite, result_format=form).results
    found = {r.expectation_config.meta["number"]: (r.success, r.result) for r in results}
    return [
        (
            bool(success), result["element_count"], result.get("missing_count") or 0, result["unexpected_count"],
            set(map(int, result["unexpected_index_list"] or ())),
        )
        for success, result in (found[number] for number in range(len(wanted)))
    ]  # fmt: skip


@pytest.mark.guarantee("expectations-gx")
@pytest.mark.parametrize("cuts", [(), (1,), (40,), (0, 27, 54, 80)])
def test_results_equal_those_of_great_expectations(
    destination: Destination, by_gx: list[tuple[Any, ...]], tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """The results for several staging tables together are those for all of their rows at once."""
    wanted = list(expectations())
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"name": "x", "expectations": wanted}))
    ours = Validation(str(path), "bucket", quarantine=False)
    edges = [0, *cuts, len(rows())]
    results, broken = [], [set[int]() for _ in wanted]
    for part in (rows()[start:stop] for start, stop in itertools.pairwise(edges)):
        table = _Table(destination.client, destination, _staged(destination, part), ours.suite.expectations)
        results.append(table.check())
        for keys, rule in zip(broken, table._rules, strict=True):
            found = destination.client.query(f"SELECT key FROM {table._table} WHERE {rule.broken}").result_rows
            keys |= {key for (key,) in found}
        destination.client.command(f"DROP TABLE {table._table} SYNC")
    different = []
    for one, outcome, keys, theirs in zip(wanted, ours._verdict(results).expectations, broken, by_gx, strict=True):
        if one["type"] == UNIQUE and cuts:
            continue  # needs all rows at once
        mine = (outcome.success, outcome.element_count, outcome.missing_count, outcome.unexpected_count, keys)
        if mine != theirs:
            different.append((one, mine, theirs))
    assert not different, "\n".join(f"{one}\n  {mine}\n  {theirs}" for one, mine, theirs in different)


def _staged(destination: Destination, part: list[tuple[Any, ...]]) -> Staged:
    name = f"load_0123456789abcdef_0_{unique('n').rpartition('-')[2][:8]:0>8}_1"
    destination.stage(name)
    if part:
        values = [(*row[:-1], math.nan if row[-1] is None else row[-1]) for row in part]
        destination.client.insert(name, values, database=STAGING, column_names=["key", *"nfstab"])
    return Staged(name, [Loaded(Planned("a.csv", "v", 1, 0.0, 0), len(part))])
