"""One listing of the objects of many tables, in ClickHouse: this process holds the names of a few hundred tables.

It asks for the facts and the tables of some small loads at a time, in three statements instead of three for each.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.sql.answers import first_row
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferTransientError
from storeside.transfer.many.names import TableNames
from storeside.transfer.publish.leftovers import transfers_with_leftovers
from storeside.transfer.request.source import Listed
from storeside.transfer.run.plan_input import record_source
from storeside.transfer.run.table_setup import Looked, Shared
from storeside.transfer.state.loads import Loads
from storeside.transfer.state.plan import Plan
from storeside.transfer.state.small_plan import SELECTED, Facts, facts_of_tables
from storeside.transfer.tables.table import look_up_all

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from storeside.transfer.request.request import Request

# Names that one statement returns, and tables and objects for whose facts one statement asks. The loads of these
# tables should begin while what was found out about the tables is recent.
_NAMES, _TABLES, _OBJECTS = 500, 16, 1000
# A table with up to this number of objects is small: its listing goes through this process.
_FEW = 100
_MINE = f"storeside.load_listings WHERE transfer = {{transfer:String}} AND {SELECTED}"
_NAME = "extract(key, {regex:String})"


@dataclass(frozen=True)
class Named:
    """A name in the keys of the listing, with the number of its objects, and why no table has the name, if so."""

    name: str
    objects: int
    fault: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether its load shares no statements with those of other tables."""
        return bool(self.fault) or self.objects > _FEW


class TablesListing:
    """The listing of a request whose keys name tables, for one process; for the clients see `Transfer`."""

    def __init__(self, request: Request, client: Client, s3: Any, ledger: Client, run_id: str) -> None:
        self.request, self.client, self.s3 = request, client, s3
        self.names = TableNames(request)
        text = "\0".join((run_id, request.table, request.source.uri))
        self._tries = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.loads = _Loads(
            ledger, f"{self._tries}_{secrets.token_hex(4)}", request.table, request.source, run_id,
            options=request.digest, markers=request.markers,
        )  # fmt: skip
        self.loads.regex = self.names.regex
        self._plan = Plan(self.loads)
        self.since = 0

    @property
    def _parameters(self) -> dict[str, Any]:
        return {**self.loads.parameters, "modified_from": self.request.source.since * 1000}

    def make(self) -> None:
        """List the source once. Raises TransferError."""
        self.loads.create()
        self._forget(self._tries)
        self.since = self.loads.server_time()
        record_source(self._plan, self.s3, self.request.source)
        self.check()

    def check(self) -> None:
        """Raise TransferTransientError unless ClickHouse has all rows of the listing, each once."""
        count = "SELECT count() FROM storeside.load_listings WHERE transfer = {transfer:String}"
        found = first_row(self.loads.client.query(count, parameters=self._parameters))[0]
        if found != (sent := self._plan.sent):
            raise TransferTransientError(
                f"ClickHouse has {found} of {sent} listed objects, because another try of this run lists, too,"
                " or the listing did not arrive: the next try lists again"
            )

    def forget(self) -> None:
        """Drop the listing."""
        self._forget(self.loads.transfer)

    def _forget(self, prefix: str) -> None:
        """Drop the listings of this run whose ids begin with a prefix: those of earlier tries, or this one."""
        with suppress(DatabaseError, OperationalError):  # they expire
            rows = self.loads.client.query(
                "SELECT DISTINCT partition FROM system.parts WHERE database = 'storeside' AND table = 'load_listings'"
                " AND active AND startsWith(partition, {prefix:String})",
                parameters={"prefix": prefix},
            ).result_rows
            for (partition,) in rows:
                self.loads.client.command(f"ALTER TABLE storeside.load_listings DROP PARTITION {literal(partition)}")

    def totals(self) -> tuple[int, int]:
        """Return the numbers of tables and of objects."""
        row = first_row(
            self.loads.client.query(f"SELECT uniqExact({_NAME}), count() FROM {_MINE}", parameters=self._parameters)
        )
        return int(row[0]), int(row[1])

    def named(self) -> Iterator[Named]:
        """Yield all names in their order."""
        after: str | None = None
        while True:
            rows = self.loads.client.query(
                f"SELECT {_NAME} AS name, count() FROM {_MINE} AND ({{all:Bool}} OR name > {{after:String}})"
                " GROUP BY name ORDER BY name LIMIT {limit:UInt32}",
                parameters={**self._parameters, "after": after or "", "all": after is None, "limit": _NAMES},
            ).result_rows
            yield from (Named(str(name), int(count)) for name, count in rows)
            if len(rows) < _NAMES:
                return
            after = str(rows[-1][0])

    def part(self, named: Named) -> Shared:
        """Return the listing of a table with many objects, which ClickHouse copies from this one."""
        condition = f"transfer = {{transfer:String}} AND {SELECTED} AND {_NAME} = {{name:String}}"
        parameters = {**self._parameters, "name": named.name}
        return Shared(lambda plan: plan.record_part(condition, parameters, named.objects), self.since)

    def shared(self, some: Sequence[Named], ids: Mapping[str, str]) -> Iterator[tuple[str, Shared, Facts | None]]:
        """Yield names of small tables, which follow each other, with the facts for their loads and plans.

        `ids` has the ids of the loads by name. A plan without facts is not small: its load asks for them.
        """
        before, behind = self.names.around
        parameters = {**self._parameters, "first": some[0].name, "last": some[-1].name}
        listed = (
            f"(SELECT concat({literal(before)}, {_NAME}, {literal(behind)}) AS destination, key, etag, size, modified"
            f" FROM {_MINE} AND {_NAME} >= {{first:String}} AND {_NAME} <= {{last:String}})"
        )
        at = time.monotonic()
        tables = {self.names.table(o.name): o.name for o in some}
        destinations = look_up_all(self.client, [*tables])
        left = transfers_with_leftovers(self.client, [*ids.values()])
        objects: dict[str, list[Listed]] = {}
        rows = self.loads.client.query(f"SELECT * FROM {listed} ORDER BY destination, key", parameters=parameters)
        for destination, *o in rows.result_rows:
            objects.setdefault(destination, []).append(Listed(*o))
        facts = facts_of_tables(self.loads, {ids[name]: table for table, name in tables.items()}, listed, parameters)
        for table, name in tables.items():
            is_known = table in destinations and ids[name] not in left
            looked = Looked(at, destinations[table]) if is_known else None
            its_facts = facts.get(table)
            yield name, Shared(_recorder(objects[table], its_facts), self.since, looked), its_facts


def _recorder(objects: Sequence[Listed], facts: Facts | None) -> Callable[[Plan], None]:
    """Return the function that makes these objects, with these facts, the input of a plan."""

    def record(plan: Plan) -> None:
        plan.record_listing([objects])
        if facts is not None:
            plan.expect(facts)

    return record


class _Loads(Loads):
    """The ledger of a listing, whose expression for keys has a group for the name of the table."""

    regex = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The query parameters that identify the listing."""
        return {**super().parameters, "regex": self.regex}


def groups(named: Iterable[Named]) -> Iterator[list[Named]]:
    """Yield the names in groups: of small tables that follow each other, and each other name alone."""
    group: list[Named] = []
    for one in named:
        if group and (
            one.is_alone or len(group) == _TABLES or sum(o.objects for o in group) + one.objects > _OBJECTS
        ):
            yield group
            group = []
        if one.is_alone:
            yield [one]
        else:
            group.append(one)
    if group:
        yield group
