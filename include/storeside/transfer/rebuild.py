"""``storeside rebuild s3://bucket/prefix database.table``: restores a lost ledger of loads.

Each row of a destination has the id of its load in a hidden column, and the id follows from the destination, the
bucket, the object's key and its version. So a listing of the source shows which objects the table already has. The
environment variables are those of ``storeside load``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row
from storeside.transfer.cli import Help, clickhouse, ending, exit_code, given_source, ledger, reader_of, servers
from storeside.transfer.printing import report_text
from storeside.transfer.request.source import Source
from storeside.transfer.run.plan_input import record_source
from storeside.transfer.state.loads import Loaded, Loads
from storeside.transfer.state.lock import Hold, locked
from storeside.transfer.state.plan import Plan
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.table import Destination, existing

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_BATCH_OBJECTS, _BATCH_BYTES = 10_000, 1 << 40


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild.

    `recorded` counts listed objects that the table has and the ledger lacked; `rows` counts their rows. `absent`
    counts listed objects without rows in the table: the next load loads them. `other_rows` counts rows of the table
    that belong to no load in the ledger: their objects were deleted or overwritten, are in another bucket or below
    another prefix, or the rows were not loaded by Storeside.
    """

    listed: int
    recorded: int
    rows: int
    absent: int
    other_rows: int


def rebuild(
    source: Source, table: str, client: Client, reader: Any, ledger: Client | None = None,
    servers: Servers = NO_SERVERS,
) -> Rebuilt:  # fmt: skip
    """Record the listed objects whose rows are in `table` as loaded, and change nothing else.

    `client`, `reader`, `ledger` and `servers` are like those of `Transfer`. The ledger may be missing, empty or
    incomplete; loads that it knows stay as they are. No other load may run. Raises TransferInputError if the table
    does not exist or the source cannot be listed, and StaleError if a load wants to publish rows meanwhile.
    """
    destination = existing(client, table, servers)
    owner = uuid.uuid4().hex[:16]
    loads = Loads(ledger or client, owner, table, source, f"rebuild/{owner}")
    loads.create()
    plan = Plan(loads)
    try:
        record_source(plan, reader, source)
        with locked(client, destination.name, owner, "nothing", destination.others) as hold:
            listed, _, _ = plan.make(
                batch_bytes=_BATCH_BYTES, batch_objects=_BATCH_OBJECTS, push=False, retry_failed=True
            )
            return _record(destination, plan, hold, listed)
    finally:
        plan.forget("load_plan")
        plan.forget("load_listings")


def _record(destination: Destination, plan: Plan, hold: Hold, listed: int) -> Rebuilt:
    recorded = rows = absent = 0
    loads = plan.loads
    for batch in plan.batches():
        objects = plan.objects(batch.number)
        states = loads.states(objects)
        # The next load settles interrupted publications: the ledger states how many rows they have.
        unknown = [o for o in objects if states.get(o.load_id) != "publishing"]
        found = destination.count(unknown)
        there = [Loaded(o, found[o.load_id]) for o in unknown if o.load_id in found]
        hold.check()
        loads.record(there, "loaded")
        recorded += len(there)
        rows += sum(o.rows for o in there)
        absent += len(unknown) - len(there)
        log.info("%d objects recorded, %d without rows in %s", recorded, absent, destination.name)
    return Rebuilt(listed, recorded, rows, absent, _others(destination, loads))


def _others(destination: Destination, loads: Loads) -> int:
    """Return the number of rows in the table beyond those of all recorded loads."""
    whole = int(first_row(destination.client.query(f"SELECT count() FROM {destination.quoted}"))[0])
    known = loads.client.query(
        "SELECT sum(rows) FROM storeside.loads FINAL"
        " WHERE destination = {destination:String} AND state IN ('loaded', 'publishing')",
        parameters=loads.parameters,
    )
    return max(0, whole - int(first_row(known)[0]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild the ledger of one table and source; return 2 if that is impossible."""
    parser = argparse.ArgumentParser(
        prog="storeside rebuild",
        formatter_class=Help,
        description="Restores the ledger of loads into a table from the table's rows and a listing of their source.",
        epilog=ending(
            "storeside rebuild s3://trips/2026/ analytics.trips",
            "2 if the ledger cannot be rebuilt",
        ),
    )
    parser.add_argument("source", help="s3:// or ais://bucket/prefix, or with a pattern, as given to the loads")
    parser.add_argument("table", help="database.table, the destination of the loads")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    return exit_code(lambda: _rebuild(given))


def _rebuild(given: argparse.Namespace) -> int:
    source = given_source(given.source)
    report = rebuild(source, given.table, clickhouse(), reader_of(source), ledger(), servers())
    print(report_text(report, as_json=given.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
