"""Rows of a staging table as DataFrames, for the expectations that Great Expectations evaluates.

Values are as in `storeside.transfer.staging.expectations`: decimals and integers of more than 64 bits are floats,
times are in UTC, and arrays, maps, tuples and JSON are JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from storeside.quality.by_gx import KEY
from storeside.transfer.base.schema import Column
from storeside.transfer.staging.expectations import TIME, value_of
from storeside.transfer.state.loads import LONG

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pandas import DataFrame

# Rows of one DataFrame: about 30 MB with ten columns of text.
ROWS = 65_536
_WIDE = re.compile(r"U?Int(128|256)")


def frames(client: Client, table: str, columns: Sequence[Column], key: str) -> Iterator[DataFrame]:
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
        yield empty_frame(columns)


def empty_frame(columns: Sequence[Column]) -> DataFrame:
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
