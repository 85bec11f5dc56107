"""Results of benchmarks as charts: the kinds of a table's columns decide how each table is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storeside.pages.tables import Tables

# Expected tables, and the command that fills each.
EXPECTED = {
    "transform_benchmark": "the DAG transform_benchmark, which measures servers and channels of transforms",
    "backend_benchmark": "the DAG backend_benchmark, which measures requests to storage backends",
    "throughput_runs": "the DAG cluster_throughput, which measures an AIStore cluster",
}
_MOST_BARS = 40
_MOST_METRICS = 4
# Columns that identify a measurement, or are results, but do not describe the case.
_OTHERS = frozenset(
    {
        "run_id", "measurement", "round", "tick", "host", "note", "detail", "error",
        "loader_bytes", "requests", "verdict",
    }
)  # fmt: skip
# Columns that begin with the DAG. Rows of tables without one are only for visitors who may read all DAGs.
_OWNERS = ("run_id", "measurement")
_FLOATS = ("Float", "Decimal", "Nullable(Float")
_WHAT = ("String", "LowCardinality", "Enum", "Bool", "UInt", "Int", "Nullable(UInt", "Nullable(Int")


@dataclass(frozen=True)
class Bar:
    """One bar: its label, the median, and its share of the longest bar."""

    label: str
    value: float
    share: float
    count: int


@dataclass(frozen=True)
class Chart:
    """The medians of one measure in one table."""

    table: str
    measure: str
    by: tuple[str, ...]
    bars: tuple[Bar, ...]
    more: bool


def missing(tables: Tables) -> dict[str, str]:
    """Return the tables that are missing or empty, and the command that fills each."""
    there = {row["name"] for row in _tables(tables) if row["total_rows"]}
    return {name: what for name, what in EXPECTED.items() if name not in there}


def charts(tables: Tables) -> list[Chart]:
    """Return the charts of all existing tables of results."""
    return [chart for row in _tables(tables) if row["total_rows"] for chart in _charts(tables, row["name"])]


def _tables(tables: Tables) -> list[dict[str, Any]]:
    return tables.rows(
        "SELECT name, total_rows FROM system.tables WHERE database = 'storeside'"
        " AND name IN {known:Array(String)} ORDER BY name",
        known=list(EXPECTED),
    )


def _charts(tables: Tables, table: str) -> list[Chart]:
    """Read a table: fractions are measures; texts and whole numbers with more than one value are labels."""
    from storeside.sql.quoting import identifier

    columns = tables.rows(
        "SELECT name, type FROM system.columns WHERE database = 'storeside' AND table = {table:String}"
        " ORDER BY position",
        table=table,
    )
    measures = [c["name"] for c in columns if c["type"].startswith(_FLOATS)][:_MOST_METRICS]
    candidates = [c["name"] for c in columns if c["type"].startswith(_WHAT) and c["name"] not in _OTHERS]
    if not measures or not candidates:
        return []
    owner = next((name for name in _OWNERS if name in {c["name"] for c in columns}), "")
    # The parameters also make the client bind on the server: it would treat a % in a column's name as a placeholder.
    belongs = f"has({{dags:Array(String)}}, splitByChar('/', {identifier(owner)})[1])" if owner else "false"
    source = f"storeside.{identifier(table)} WHERE ({{all_dags:Bool}} OR {belongs})"
    counted = ", ".join(f"uniq({identifier(name)})" for name in candidates)
    (values,) = tables.rows(f"SELECT [{counted}] AS distinct_values, count() AS number FROM {source}")
    several = zip(candidates, values["distinct_values"], strict=True)
    by = tuple(name for name, count in several if count > 1) or (candidates[0],)
    keys = ", ".join(identifier(name) for name in by)
    medians = ", ".join(f"median({identifier(name)}) AS median_{n}" for n, name in enumerate(measures))
    if not values["number"]:
        return []
    rows = tables.rows(
        f"SELECT [{', '.join(f'toString({identifier(name)})' for name in by)}] AS what, count() AS number,"
        f" {medians} FROM {source} GROUP BY {keys} ORDER BY {keys} LIMIT {{limit:UInt32}}",
        limit=_MOST_BARS + 1,
    )
    return [_chart(table, name, by, rows, f"median_{n}") for n, name in enumerate(measures)]


def _chart(table: str, measure: str, by: tuple[str, ...], rows: list[dict[str, Any]], column: str) -> Chart:
    shown = rows[:_MOST_BARS]
    longest = max((abs(row[column] or 0) for row in shown), default=0) or 1
    bars = tuple(
        Bar(
            " · ".join(filter(None, row["what"])),
            float(row[column] or 0),
            max(row[column] or 0, 0) / longest,
            row["number"],
        )
        for row in shown
    )
    return Chart(table, measure, by, bars, len(rows) > _MOST_BARS)
