"""Finds how a load would change the columns of its table, and how its objects differ from the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from storeside.sql.quoting import identifier
from storeside.transfer.base.schema import bare
from storeside.transfer.request.object_format import Format
from storeside.transfer.run.stand_in import StandIn
from storeside.transfer.types.inference import NoTypeError, wider


class Differences:
    """Compares the stand-in of a table with the table, and with sampled objects."""

    def __init__(self, table: StandIn) -> None:
        self.table = table

    def text_names(self) -> list[str]:
        """Return the names in objects of the columns that became text."""
        options, created = self.table.readings.columns, self.table.created
        kinds = {c.name: bare(c.type).removeprefix("LowCardinality(").rstrip(")") for c in created.columns}
        names = [name for name in created.inferred if kinds.get(name) in ("String", "Nullable(String")]
        return [options.source(name) or name for name in names]

    def drift(self, form: Format) -> Iterator[str]:
        """Yield the differences between the columns of samples and those of an existing table."""
        if (table := self.table.original) is None or (sampled := self.table.sampled(form)) is None:
            return
        options, request = self.table.readings.columns, self.table.request
        sampled = self.table.readings.known(sampled, table)
        made = [(options.target(c.name) or c.name, options.made(c.name, c.type)) for c in sampled]
        for name, kind in made:
            now = table.type_of(name)
            if now is None:
                yield f"column {name!r} ({kind}) is not in the table"
            elif self._differs(bare(now), bare(kind)):
                yield f"column {name!r} is {kind} in the objects, and {now} in the table"
        filled = {*dict(made), *table.defaults, *request.read.partition_columns, *options.compute}
        for c in table.columns:
            if c.name not in filled and not replace(table, own=request.own_columns).is_own(c):
                yield f"column {c.name!r} ({c.type}) of the table is not in the objects"

    def _differs(self, now: str, kind: str) -> bool:
        try:
            return bare(wider(self.table.client, now, kind)) != now
        except NoTypeError:
            return True

    def changes(self) -> list[str]:
        """Return the statement with which the load would change the table's columns."""
        original = self.table.original
        before = {c.name: c.type for c in (original or self.table.created).columns}
        actions = [
            f"{'MODIFY COLUMN' if c.name in before else 'ADD COLUMN IF NOT EXISTS'} {c.definition}"
            for c in self.table.now.columns if before.get(c.name) != c.type
        ]  # fmt: skip
        database, _, table = self.table.request.table.partition(".")
        quoted = f"{identifier(database)}.{identifier(table)}"
        return [f"ALTER TABLE {quoted} {', '.join(actions)}"] if actions else []
