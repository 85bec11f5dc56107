"""Results of cloud buckets that were recorded before Storeside compared versions.

AIStore transforms and copies its own copy of a cloud object. Before migration 0021, the ledger recorded the listed
version of an object as done, also when AIStore's copy, and so the result, was of an older version. The ledger cannot
tell these results from right ones: each is unproven until a task makes it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# A partial restore applies the migration again; then more results than necessary are unproven.
_COMPARED = "(SELECT if(count() = 0, now64(3), max(applied_at)) FROM storeside.migrations WHERE number = 21)"
# AIStore keeps no comparable versions of the objects of other AIStore clusters (`ais://@…`): no task compares them.
_UNPROVEN = (
    "status = 'done' AND version != '' AND NOT startsWith(source, 'ais://')"
    f" AND recorded_at < {_COMPARED}"
    " AND (source = {source:String} OR {source:String} = '')"
    " AND (destination = {destination:String} OR {destination:String} = '') AND startsWith(object, {prefix:String})"
)


@dataclass(frozen=True)
class Unproven:
    """The unproven results of a pair of buckets: their number, and the times of the first and last record (UTC)."""

    source: str
    destination: str
    objects: int
    first: datetime
    last: datetime


def unproven(client: Client, source: str = "", destination: str = "", prefix: str = "") -> list[Unproven]:
    """Return the pairs of buckets with unproven results.

    `source` and `destination` are URIs of buckets, and `prefix` begins the names of the source's objects; empty texts
    mean all. Raises DatabaseError, also if there is no ledger.
    """
    rows = client.query(
        "WITH toDateTime(recorded_at, 'UTC') AS at SELECT source, destination, count(), min(at), max(at)"
        f" FROM storeside.objects FINAL WHERE {_UNPROVEN} GROUP BY source, destination ORDER BY source, destination",
        parameters=_asked(source, destination, prefix),
    ).result_rows
    return [Unproven(of, to, int(count), first, last) for of, to, count, first, last in rows]


def make_again(client: Client, source: str, destination: str, prefix: str = "") -> int:
    """Let the next task of these buckets make the unproven results again; return their number.

    Their rows lose their versions, so that a plan finds other versions in the source. The new rows are a millisecond
    later than the old ones, so that a record of another task meanwhile stays the newest row. Events then count only
    with their versions.
    """
    asked = _asked(source, destination, prefix)
    counted = client.query(f"SELECT count() FROM storeside.objects FINAL WHERE {_UNPROVEN}", parameters=asked)
    client.command(
        "INSERT INTO storeside.objects SELECT * REPLACE ('' AS version, toDateTime64(0, 3) AS listed_at,"
        " recorded_at + toIntervalMillisecond(1) AS recorded_at)"
        f" FROM (SELECT * FROM storeside.objects FINAL WHERE {_UNPROVEN}) SETTINGS async_insert = 0",
        parameters=asked,
    )
    return int(first_row(counted)[0])


def _asked(source: str, destination: str, prefix: str) -> dict[str, Any]:
    return {"source": source, "destination": destination, "prefix": prefix}
