"""Validates streamed frames with the Great Expectations engine; one window bounds the memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from storeside.quality.suite import QualityError, Suite

if TYPE_CHECKING:
    import pandas as pd

LONGEST_KEY = 1024
LONGEST_VALUE = 200

# Expectations whose result for one row depends on other rows, or that give no result for a single row.
NOT_ROW_BY_ROW = frozenset(
    {
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_be_decreasing",
        "expect_column_values_to_be_in_type_list",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_be_of_type",
        "expect_column_values_to_be_unique",
        "expect_column_values_to_not_be_outliers",
        "expect_compound_columns_to_be_unique",
    }
)


@dataclass(frozen=True)
class Check:
    """One expectation of a suite; it reads `columns`, and its `severity` is critical, warning or info."""

    expectation: str
    columns: tuple[str, ...]
    severity: str
    description: str

    @property
    def column(self) -> str:
        """Return the columns' names as one text."""
        return ", ".join(self.columns)


@dataclass(frozen=True)
class ExpectationOutcome(Check):
    """The result of one expectation over all rows.

    `element_count` is the number of rows to which it applies. `missing_count` of them have no value and are
    skipped. `examples` are (key, value) of the first unexpected rows; a value of several columns is a list.
    """

    success: bool
    element_count: int
    missing_count: int
    unexpected_count: int
    examples: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Verdict:
    """The result of a suite for `rows` rows; `success` tells whether every critical expectation is met."""

    success: bool
    rows: int
    expectations: tuple[ExpectationOutcome, ...]

    @property
    def failed(self) -> tuple[ExpectationOutcome, ...]:
        """Return the expectations of every severity that are not met."""
        return tuple(outcome for outcome in self.expectations if not outcome.success)

    def __str__(self) -> str:
        found = "; ".join(
            f"{outcome.severity}: {outcome.description or outcome.expectation} ({outcome.column}), not met in "
            f"{outcome.unexpected_count} of {outcome.element_count}"
            for outcome in self.failed
        )
        rows = f"{self.rows} rows" if self.rows else "0 rows, so nothing was checked row by row"
        return f"{'passed' if self.success else 'failed'}, {rows}{': ' + found if found else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as values for JSON; numbers that JSON lacks become texts such as ``NaN``."""
        return {**asdict(self), "summary": str(self)}


@dataclass
class _Tally:
    """The counts of one expectation over all windows so far."""

    check: Check
    mostly: float
    element_count: int = 0
    missing_count: int = 0
    unexpected_count: int = 0
    examples: list[tuple[str, Any]] = field(default_factory=list)

    def outcome(self) -> ExpectationOutcome:
        present = self.element_count - self.missing_count
        share = (present - self.unexpected_count) / present if present else 1.0
        return ExpectationOutcome(
            **vars(self.check),
            success=share >= self.mostly,
            element_count=self.element_count,
            missing_count=self.missing_count,
            unexpected_count=self.unexpected_count,
            examples=tuple(self.examples),
        )


def validate(
    frames: Iterable[pd.DataFrame],
    suite: Suite | Any,
    *,
    key_column: str,
    max_examples: int = 20,
    on_failed: Callable[[list[str], Check], None] | None = None,
) -> Verdict:
    """Check every row of `frames` against the row-level `suite` and return one verdict on all of them.

    The suite is a `Suite`, or an ExpectationSuite without requirements. Frames are windows of one table, processed
    one at a time; `mostly` applies to the total, not to each window. 29 expectations take about 0.4 CPU seconds per
    window and 6 CPU seconds per million rows (measured), so make windows large, such as 50,000 rows. A table without
    rows passes, so also check aggregates of the table, with a suite of one row.

    For each expectation, `on_failed` receives the keys (values of `key_column`, "" for a missing one) of all
    unexpected rows of a window. Raises QualityError when a frame or an expectation cannot be checked: a missing
    column, the wrong kind of value, an expectation that cannot be decided row by row.
    """
    suite = suite if isinstance(suite, Suite) else Suite(suite)
    tallies = _tallies(suite.expectations)
    numbered = _numbered(suite.expectations)
    check_window = _engine()
    rows = 0
    for frame in frames:
        if key_column not in frame.columns:
            raise QualityError(f"the frame has no key column {key_column}, only {', '.join(map(str, frame.columns))}")
        rows += len(frame)
        if frame.empty:
            continue
        window = suite.prepare(frame)
        keys = window[key_column]
        for number, result in check_window(window, numbered):
            unexpected = _add(tallies[number], result)
            if not unexpected:
                continue
            _show(tallies[number], window, keys, unexpected, max_examples)
            if on_failed:
                on_failed(_texts(keys, unexpected), tallies[number].check)
    if suite.rows is not None and rows != suite.rows:
        raise QualityError(f"{suite.name} is for a frame of {suite.rows} rows, not {rows}")
    return _verdict(rows, tuple(tally.outcome() for tally in tallies))


def combine(rows: Verdict, summary: Verdict) -> Verdict:
    """Return one verdict on a table: the rows of the first verdict, the expectations of both."""
    return _verdict(rows.rows, rows.expectations + summary.expectations)


def _verdict(rows: int, expectations: tuple[ExpectationOutcome, ...]) -> Verdict:
    success = all(outcome.success for outcome in expectations if outcome.severity == "critical")
    return Verdict(success, rows, expectations)


def _tallies(suite: Any) -> list[_Tally]:
    from great_expectations.expectations import expectation as kinds

    if not suite.expectations:
        raise QualityError(f"{suite.name} has no expectations: nothing would be checked")
    by_row = (kinds.ColumnMapExpectation, kinds.ColumnPairMapExpectation, kinds.MulticolumnMapExpectation)
    tallies = []
    for expectation in suite.expectations:
        name = expectation.expectation_type
        if not isinstance(expectation, by_row) or name in NOT_ROW_BY_ROW:
            raise QualityError(f"{name} cannot be decided row by row: use a query over the whole table")
        if not isinstance(expectation.mostly, int | float):
            raise QualityError(f"{name} has a `mostly` that is not a number: {expectation.mostly}")
        check = Check(name, _columns(expectation), expectation.severity.value, expectation.description or "")
        tallies.append(_Tally(check, float(expectation.mostly)))
    return tallies


def _columns(expectation: Any) -> tuple[str, ...]:
    if hasattr(expectation, "column_list"):
        return tuple(expectation.column_list)
    if hasattr(expectation, "column_A"):
        return expectation.column_A, expectation.column_B
    return (expectation.column,)


def _numbered(suite: Any) -> Any:
    """Return a copy of the suite in which each expectation has its position, because the engine reorders results."""
    from great_expectations.core.expectation_suite import ExpectationSuite

    return ExpectationSuite(
        name=suite.name,
        expectations=[
            expectation.copy(update={"id": None, "meta": {"position": position}})
            for position, expectation in enumerate(suite.expectations)
        ],
    )


def _engine() -> Callable[[pd.DataFrame, Any], list[tuple[int, Any]]]:
    """Return a function that runs a numbered suite on one frame; it works in memory and sends no reports."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    asset = context.data_sources.add_pandas("windows").add_dataframe_asset("window")
    definition = asset.add_batch_definition_whole_dataframe("whole")
    form = {
        "result_format": "COMPLETE",
        "return_unexpected_index_query": False,
        "partial_unexpected_count": 0,
    }

    def check(window: pd.DataFrame, suite: Any) -> list[tuple[int, Any]]:
        batch = definition.get_batch(batch_parameters={"dataframe": window})
        results = batch.validate(suite, result_format=form).results
        return [(result.expectation_config.meta["position"], result) for result in results]

    return check


def _add(tally: _Tally, result: Any) -> list[int]:
    """Add the counts of one window; return the positions of its unexpected rows."""
    found = result.result
    if "unexpected_index_list" not in found:
        raise QualityError(f"{tally.check.expectation} ({tally.check.column}) cannot be checked: {_reason(result)}")
    tally.element_count += found["element_count"]
    tally.missing_count += found.get("missing_count") or 0
    tally.unexpected_count += found["unexpected_count"]
    return list(found["unexpected_index_list"] or ())


def _reason(result: Any) -> str:
    """Return the first message of an exception report, which is flat or keyed by metric."""
    report = result.exception_info or {}
    for info in (report, *report.values()):
        if isinstance(info, dict) and info.get("exception_message"):
            return str(info["exception_message"])
    return "the engine returned no unexpected rows"


def _texts(keys: pd.Series[Any], positions: list[int]) -> list[str]:
    chosen = keys.iloc[positions]
    return ["" if missing else str(key) for key, missing in zip(chosen, chosen.isna(), strict=True)]


def _show(
    tally: _Tally, window: pd.DataFrame, keys: pd.Series[Any], unexpected: list[int], max_examples: int
) -> None:
    positions = unexpected[: max(0, max_examples - len(tally.examples))]
    for position, key in zip(positions, _texts(keys, positions), strict=True):
        values = [_jsonable(window[column].iloc[position]) for column in tally.check.columns]
        tally.examples.append((key[:LONGEST_KEY], values[0] if len(values) == 1 else values))


def _jsonable(value: Any) -> Any:
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "NaN" if isinstance(value, float) else None
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and math.isinf(plain):
        return "Infinity" if plain > 0 else "-Infinity"
    return plain if isinstance(plain, bool | int | float) else str(plain)[:LONGEST_VALUE]
