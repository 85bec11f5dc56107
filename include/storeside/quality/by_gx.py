"""Expectations that Great Expectations itself evaluates, over DataFrames with rows of a load.

Only loads whose suites need it import Great Expectations: that costs 170 MB of memory and seconds of CPU time.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.quality.errors import QualityError
from storeside.quality.given import Expectation

if TYPE_CHECKING:
    from pandas import DataFrame

# The column of a DataFrame with the object of each row, or with the name of the row.
KEY = "_storeside_key"
_LONGEST = 500


@dataclass(frozen=True)
class Evaluated:
    """The result of one expectation for one DataFrame.

    :param rows: rows to which it applies
    :param missing: rows among them without a value, which it skips
    :param broken: rows that break it
    :param success: whether it is met; for an expectation of single rows, in this DataFrame
    :param observed: the value that it compares, such as a mean; None for an expectation of single rows
    :param examples: the first rows that break it, as the value of the column `KEY` and the unexpected value
    """

    rows: int
    missing: int
    broken: int
    success: bool
    observed: Any
    examples: tuple[tuple[Any, Any], ...]


def great_expectations() -> Any:
    """Import Great Expectations so that it neither reports its use to its makers nor fills the log."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # it is read at the import
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    import great_expectations as gx

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("great_expectations.")]:
        logging.getLogger(name).setLevel(logging.NOTSET)  # one module sets its own level
    return gx


class Evaluator:
    """Evaluates expectations. Raises QualityError if Great Expectations does not accept their arguments."""

    def __init__(self, expectations: Sequence[Expectation]) -> None:
        gx = great_expectations()
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self._made = [_configured(e) for e in expectations]
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
        asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
        self._definition = asset.add_batch_definition_whole_dataframe("whole")

    def evaluate(self, frame: DataFrame, chosen: Sequence[int]) -> list[Evaluated]:
        """Evaluate the expectations with these numbers. Raises QualityError if one cannot be evaluated."""
        from great_expectations.core.expectation_suite import ExpectationSuite

        form: dict[str, Any] = {"result_format": "SUMMARY", "return_unexpected_index_query": False}
        if KEY in frame:
            form["unexpected_index_column_names"] = [KEY]
        wanted = [{**self._made[n], "meta": {"number": n}} for n in chosen]
        suite = ExpectationSuite(name="rows", expectations=wanted)
        batch = self._definition.get_batch({"dataframe": frame})
        results = {
            found.expectation_config.meta["number"]: found
            for found in batch.validate(suite, result_format=form).results
        }
        return [_evaluated(str(self._made[n]["type"]), results[n], len(frame)) for n in chosen]


def _configured(e: Expectation) -> dict[str, Any]:
    from great_expectations.core.expectation_suite import ExpectationSuite

    try:
        ExpectationSuite(name="rows", expectations=[e.configuration])
    except Exception as error:  # any error of its own checks of the arguments
        raise QualityError(f"{e.type}: {' '.join(str(error).split())[:_LONGEST]}") from error
    return e.configuration


def _evaluated(kind: str, found: Any, rows: int) -> Evaluated:
    if (reason := _raised(found.exception_info)) is not None:
        raise QualityError(f"{kind}: Great Expectations cannot evaluate it: {reason[:_LONGEST]}")
    result: Mapping[str, Any] = found.result or {}
    value = next((v for k, v in found.expectation_config.kwargs.items() if k in ("column", "column_list")), "")
    return Evaluated(
        int(result.get("element_count", rows)), int(result.get("missing_count") or 0),
        int(result.get("unexpected_count") or 0), bool(found.success), _observed(result.get("observed_value")),
        tuple(_example(row, value) for row in result.get("partial_unexpected_index_list") or ()),
    )  # fmt: skip


def _example(row: Mapping[str, Any], column: Any) -> tuple[Any, Any]:
    key = _plain(row.get(KEY, ""))
    if isinstance(column, str) and column in row:
        return key, _plain(row[column])
    return key, [_plain(value) for name, value in row.items() if name != KEY]


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item() if hasattr(value, "item") else value


def _observed(value: Any) -> Any:
    """Return a value for JSON: a long one, or one with numbers that JSON lacks, as text."""
    from great_expectations.util import convert_to_json_serializable

    made = convert_to_json_serializable(value)
    try:
        text = json.dumps(made, allow_nan=False)
    except ValueError:
        return str(made)[:_LONGEST]
    return made if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _raised(info: Any) -> str | None:
    """Return the message of an exception; Great Expectations nests them below the names of metrics, or does not."""
    if not isinstance(info, Mapping):
        return None
    if info.get("raised_exception"):
        return " ".join(str(info.get("exception_message")).split())
    return next((text for value in info.values() if (text := _raised(value)) is not None), None)
