"""Counts of the rows of a staging table that break expectations which Great Expectations evaluates.

Values are as in `storeside.transfer.staging.expectations`: decimals and integers of more than 64 bits are floats,
times are in UTC, and arrays, maps, tuples and JSON are JSON text.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.amounts import counted
from storeside.quality.by_gx import KEY, Evaluated, Evaluator
from storeside.quality.errors import QualityError
from storeside.quality.given import Expectation
from storeside.quality.verdict import LONGEST_KEY, LONGEST_VALUE
from storeside.transfer.base.schema import Column
from storeside.transfer.staging.expectations import TIME, value_of
from storeside.transfer.state.loads import LONG

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pandas import DataFrame

log = logging.getLogger(__name__)

# Examples of each expectation, for the page, the log and the error.
EXAMPLES = 5
# Rows of one DataFrame, about 30 MB with ten columns of text, and rows of a load that one DataFrame may hold: about
# 2 GB with five such columns.
ROWS, MOST_ROWS = 65_536, 5_000_000
_WIDE = re.compile(r"U?Int(128|256)")


@dataclass(frozen=True)
class Counts:
    """The counts of one expectation, and examples as (key, value).

    `success` is None if the counts decide; otherwise Great Expectations has decided from the `observed` value.
    """

    rows: int
    missing: int
    broken: int
    examples: tuple[tuple[str, Any], ...]
    success: bool | None = None
    observed: Any = None


class GxCounts:
    """Counts for the given expectations. Raises QualityError for arguments that Great Expectations refuses."""

    def __init__(self, expectations: Sequence[Expectation]) -> None:
        self.expectations = expectations
        self._evaluator = Evaluator(expectations)

    def count(
        self, client: Client, table: str, columns: Sequence[Column], key: str, name: Callable[[Any], str], rows: int
    ) -> list[Counts]:
        """Return the counts of each expectation; the log states what they cost.

        `table` has `rows` rows with these columns, and `key` is the column with the object of each row; both are SQL.
        `name` returns the object's name. Raises QualityError for expectations that cannot be evaluated.
        """
        began, process = time.monotonic(), time.process_time()
        numbers = range(len(self.expectations))
        of_all = [n for n in numbers if self.expectations[n].needs_all_rows]
        of_columns = [n for n in numbers if self.expectations[n].is_of_columns]
        of_rows = [n for n in numbers if n not in of_all and n not in of_columns]
        if of_all and rows > MOST_ROWS:
            raise QualityError(
                f"{', '.join(sorted({self.expectations[n].type for n in of_all}))}: Great Expectations needs all"
                f" {rows:,} rows of the load in the worker's memory, and the limit is {MOST_ROWS:,}: divide the load,"
                " or leave it out"
            )
        found: dict[int, Counts] = {}
        if of_columns:
            found |= self._decided(_empty(columns), of_columns)
        if of_rows:
            for frame in _frames(client, table, self._columns(columns, of_rows), key):
                for n, result in zip(of_rows, self._evaluator.evaluate(frame, of_rows), strict=True):
                    found[n] = _added(found.get(n), result, name)
        if of_all:
            import pandas as pd

            frames = list(_frames(client, table, self._columns(columns, of_all), key))
            found |= self._decided(pd.concat(frames, ignore_index=True), of_all)
        log.info(
            "Great Expectations evaluated %s over %s in this worker: %.1f s, %.1f s of CPU time",
            counted(len(numbers), "expectation"), counted(rows, "row"), time.monotonic() - began,
            time.process_time() - process,
        )  # fmt: skip
        return [found[n] for n in numbers]

    def _columns(self, columns: Sequence[Column], chosen: Sequence[int]) -> list[Column]:
        """Return the columns that expectations read; a condition may read any column."""
        named = {name for n in chosen for name in self.expectations[n].columns}
        if unknown := sorted(named - {c.name for c in columns}):
            has = ", ".join(c.name for c in columns)
            raise QualityError(f"the table has no columns {', '.join(unknown)}; it has {has}")
        has_condition = any("row_condition" in self.expectations[n].kwargs for n in chosen)
        return [c for c in columns if has_condition or c.name in named]

    def _decided(self, frame: DataFrame, chosen: Sequence[int]) -> dict[int, Counts]:
        """Return the results that Great Expectations decides as a whole: all rows are broken, or none."""
        found = {}
        for n, result in zip(chosen, self._evaluator.evaluate(frame, chosen), strict=True):
            broken = result.broken or (0 if result.success else result.rows or 1)
            found[n] = Counts(result.rows, result.missing, broken, (), result.success, result.observed)
        return found


def _added(before: Counts | None, found: Evaluated, name: Callable[[Any], str]) -> Counts:
    """Return the sum of the counts of DataFrames, with the first examples."""
    old = before or Counts(0, 0, 0, ())
    more = found.examples[: EXAMPLES - len(old.examples)]
    return Counts(
        old.rows + found.rows, old.missing + found.missing, old.broken + found.broken,
        (*old.examples, *((name(key)[:LONGEST_KEY], jsonable(value)) for key, value in more)),
    )  # fmt: skip


def _frames(client: Client, table: str, columns: Sequence[Column], key: str) -> Iterator[DataFrame]:
    """Yield the rows of a table in DataFrames of at most `ROWS` rows, or one without rows.

    `table` and `key`, the value of the column `KEY`, are SQL.
    """
    values = [value_of(c) for c in columns]
    # Arrow has no integers of 128 bits.
    sql = [f"toFloat64({v.sql})" if _WIDE.search(c.type) else v.sql for c, v in zip(columns, values, strict=True)]
    names = [KEY, *(c.name for c in columns)]
    times = [c.name for c, v in zip(columns, values, strict=True) if v.kind == TIME]
    chosen = ", ".join(f"{text} AS c{n}" for n, text in enumerate([key, *sql]))
    settings = {**LONG, "max_block_size": ROWS, "output_format_arrow_string_as_string": 1}
    is_empty = True
    with client.query_arrow_stream(f"SELECT {chosen} FROM {table}", settings=settings) as stream:
        for block in stream:
            is_empty = False
            yield _framed(block, names, times)
    if is_empty:
        yield _empty(columns)


def _empty(columns: Sequence[Column]) -> DataFrame:
    """Return a DataFrame with the columns of a table, and no rows."""
    import pandas as pd

    return pd.DataFrame({c.name: [] for c in columns})


def _framed(block: Any, names: Sequence[str], times: Sequence[str]) -> DataFrame:
    import pandas as pd
    import pyarrow as pa

    # Without these, integers with NULLs become floats.
    kinds = {
        getattr(pa, f"{sign}int{bits}")(): getattr(pd, f"{'UI' if sign else 'I'}nt{bits}Dtype")()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    }
    frame: DataFrame = block.to_pandas(types_mapper=kinds.get)
    frame.columns = pd.Index(names)
    for name in times:
        frame[name] = frame[name].dt.tz_localize(None)
    return frame


def jsonable(value: Any) -> Any:
    """Return a value for JSON; numbers that JSON lacks become texts such as ``nan``."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:LONGEST_VALUE]
