"""Estimates the duration of a load from the recorded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.transfer.base.errors import UNKNOWN_DATABASE, UNKNOWN_TABLE, code_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Recorded runs whose speed is compared.
_RUNS = 20
_RATE = (
    "SELECT count(), median(bytes_in / seconds) FROM (SELECT bytes_in, seconds FROM storeside.runs FINAL"
    " WHERE kind = 'load' AND state IN ('done', 'partial') AND seconds > 0 AND bytes_in > 0"
    " AND ({table:String} = '' OR destination = concat('clickhouse://', {table:String}))"
    f" ORDER BY recorded_at DESC LIMIT {_RUNS})"
)


def estimated(client: Client, into: str, bytes: int) -> float | None:
    """Return the estimated seconds of a load of `bytes`, from the median speed of the last runs.

    These are runs into a table, or else all. None if no run is recorded.
    """
    for table in (into, ""):
        try:
            row = first_row(client.query(_RATE, parameters={"table": table}))
        except DatabaseError as e:
            if code_of(e) in (UNKNOWN_DATABASE, UNKNOWN_TABLE):
                return None
            raise
        if row[0]:
            return float(bytes / row[1])
    return None
