"""The stand-in of a preview: a table in the staging database takes the place of the destination of a load."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier
from storeside.transfer.base import queries
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.publish.leftovers import sweep
from storeside.transfer.request.upsert import NO_UPSERT
from storeside.transfer.run.table_setup import TableSetup
from storeside.transfer.tables.creation import ddl, no_database, statements
from storeside.transfer.tables.current import require, view
from storeside.transfer.tables.storable import too_many
from storeside.transfer.tables.table import Destination, existing, look_up

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


@dataclass
class Created:
    """A missing table as the load would create it, with types as ClickHouse writes them."""

    statements: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    inferred: Collection[str] = ()


class StandIn(TableSetup):
    """The setup of a table whose stand-in is created and changed instead, as `name` in the staging database."""

    def __init__(self, *args: Any, name: str) -> None:
        super().__init__(*args)
        self.name = name
        self.original: Destination | None = None
        self.created = Created()

    @property
    def place(self) -> str:
        """The stand-in as ``database.table``."""
        return f"{STAGING}.{self.name}"

    @property
    def now(self) -> Destination:
        """The stand-in as it is now."""
        return existing(self.client, self.place)

    def exists(self) -> bool:
        """Return whether there is a stand-in: there is none before the first object of a missing table."""
        return look_up(self.client, self.place) is not None

    def find(self) -> Destination | None:
        """Return a stand-in with the columns of the destination; None if that does not exist."""
        self.original = look_up(self.client, self.request.table, self.servers, completes=False)
        if self.original is None:
            return None
        self.original.stage(self.name)
        return self.now

    def make(self, columns: Sequence[Column], inferred: Collection[str]) -> Destination:
        """Create the stand-in, and remember the statements that would create the destination."""
        request, options = self.request, self.request.table_options
        if len(columns) > request.limits.columns:
            raise TransferInputError(too_many(request.table, len(columns), request.limits.columns))
        made = statements(request.table, columns, options, inferred)
        if request.upsert:
            columns = request.upsert.fitted(request.table, columns)
        plain = replace(options, engine="MergeTree()", cluster="", sharding_key="", upsert=NO_UPSERT)
        self.client.command(ddl(self.place, columns, plain, inferred))
        found = self.now
        self.created = Created([*self._database(), *made], list(found.columns), inferred)
        return found

    def keep_current(self, destination: Destination) -> None:
        """With `upsert`, remember the view's statement. Raises TransferInputError for a table that does not fit."""
        upsert = self.request.upsert
        if upsert and self.original is not None:
            require(self.original, upsert)
        elif upsert:
            database, _, table = self.request.table.partition(".")
            self.created.statements.append(view(replace(destination, database=database, table=table), upsert))

    def cancel(self) -> None:
        """Kill the statements of the preview, from any thread."""
        queries.kill(self.client, queries.tables_of(self.plan.loads.transfer), wait=False)

    def sweep(self) -> None:
        """Drop the stand-in and all staging tables of the preview."""
        sweep((self.client,), self.plan.loads.transfer)

    def _database(self) -> list[str]:
        """Return the statement that creates the table's database, if it does not exist.

        Raises TransferInputError if the load may not create it.
        """
        name = self.request.table.partition(".")[0]
        if has_database(self.client, name):
            return []
        if not self.request.create_database:
            raise TransferInputError(no_database(self.request.table))
        return [f"CREATE DATABASE IF NOT EXISTS {identifier(name)}"]


def has_database(client: Client, name: str) -> bool:
    """Return whether a database exists."""
    query = "SELECT count() FROM system.databases WHERE name = {name:String}"
    return bool(first_row(client.query(query, parameters={"name": name}))[0])


_TABLES = f"FROM system.tables WHERE database = '{STAGING}'"


@contextmanager
def staging_database(client: Client) -> Iterator[None]:
    """Create the staging database if it does not exist, and then drop it unless others use it by now."""
    is_there = has_database(client, STAGING)
    if not is_there:
        client.command(f"CREATE DATABASE IF NOT EXISTS {STAGING}")
    try:
        yield
    finally:
        if not is_there and not first_row(client.query(f"SELECT count() {_TABLES}"))[0]:
            client.command(f"DROP DATABASE IF EXISTS {STAGING} SYNC")
