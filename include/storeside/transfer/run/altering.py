"""Changes the columns of a table for an object that does not fit them: drift, and types from too small a sample."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from storeside.transfer.base.errors import (
    LimitError,
    LoadObjectError,
    TransferInputError,
)
from storeside.transfer.base.schema import Column, bare, is_nested, resolved, same
from storeside.transfer.formats.registry import MESSAGES
from storeside.transfer.samples.columns import columns_of_members, larger_columns, typed_columns, whole_columns
from storeside.transfer.staging.staging import Staging
from storeside.transfer.state.loads import Planned
from storeside.transfer.state.lock import Hold, locked
from storeside.transfer.tables.storable import refuse_same_names
from storeside.transfer.tables.table import Destination, names_column
from storeside.transfer.types.inference import merge, wider
from storeside.transfer.types.widening import widens

log = logging.getLogger(__name__)


class Altering:
    """Changes the destination of a staging, and gives the staging the changed one."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.work = staging.work
        self.request = staging.work.request

    def columns(self, o: Planned) -> list[Column]:
        """Return an object's columns: from the whole object if ClickHouse can read it, else from a sample."""
        if not self.work.form.is_text:
            if self.work.form.by_schema:
                return MESSAGES[self.work.form.name].columns(self.work.form, self.request.table_options.columns)
            content = self.work.content(o)
            if content.archive:
                return merge(self.work.client, [*columns_of_members(self.work.form, content)], {})
            return typed_columns(self.work.form, content)
        return whole_columns(self.work.client, self.request, self.work.form, self.work.content(o))

    def fit(self, found: Sequence[Column], error: LoadObjectError) -> bool:
        """Add and widen columns so that the table holds those `found` in an object; return whether any changed.

        `error` is why the object was refused. Raises LoadObjectError if the table cannot hold its values.
        """
        destination = self.staging.destination
        try:
            # For another object, the table may just have changed. The lock keeps other runs from publishing values
            # that the type chosen here cannot hold.
            with self.work.alters, self._locked() as hold:
                latest = self.staging.look_up()
                wanted, kept = self._changes(found, latest)
                if wanted:
                    refuse_same_names([*{c.name: c for c in (*latest.columns, *wanted)}.values()])
                    self._check_columns(sum(latest.type_of(c.name) is None for c in wanted))
                    hold.check()
                    latest = latest.widen(wanted)
                elif latest.columns == destination.columns:
                    if kept and self.request.on_bad_rows == "fail":
                        raise type(error)(f"{error} (column {', '.join(kept)}: load the object into another table)")
                    return False
                self.staging.destination = latest
        except TransferInputError as e:  # only this object fails: the table's types cannot hold its values
            raise LoadObjectError(str(e)) from e
        return True

    def infer_again(self, o: Planned) -> bool:
        """Infer the columns of an empty table again, from the samples and every row of an object.

        Returns whether any changed.
        """
        sample = self.work.plan.sample(self.request.read.sample_objects)
        contents = [self.work.content(other) for other in sample if other.key != o.key]
        try:
            found = larger_columns(self.work.client, self.request, self.work.form, self.work.content(o), contents)
        except TransferInputError:  # its rows show no columns
            return False
        with self.work.alters, self._locked() as hold:
            latest = self.staging.look_up()
            options, changed = self.request.read.columns, []
            for c in found:
                name = options.target(c.name) or ""
                kind = resolved(options.made(c.name, c.type))
                if name in latest.inferred and not same(latest.type_of(name) or kind, kind):
                    changed.append(Column(name, kind))
            if not changed or not latest.is_empty():
                return False
            hold.check()
            try:
                self.staging.destination = latest.widen(changed)
            except TransferInputError:  # a column of a key
                return False
        log.info("%r: inferred %s again", o.key, ", ".join(f"{c.name} as {c.type}" for c in changed))
        return True

    def _locked(self) -> AbstractContextManager[Hold]:
        """Hold the lock of the table in order to change its columns."""
        destination = self.staging.destination
        return locked(destination.client, destination.name, self.work.token, "columns", destination.others)

    def _changes(self, found: Sequence[Column], destination: Destination) -> tuple[list[Column], list[str]]:
        """Return the columns to add to a table or to widen, and why others keep their types."""
        options, wanted, kept = self.request.read.columns, [], []
        key = f"{destination.partition_key} {destination.sorting_key}"
        for c in found:
            name, kind = options.target(c.name) or "", options.made(c.name, c.type)
            now = destination.type_of(name)
            if now is None:
                wanted.append(Column(name, kind))
            elif self.request.on_drift == "widen" and (wide := wider(self.work.client, now, kind)) != now:
                if same(now, wide) and (name in self.request.upsert.columns or names_column(key, name)):
                    continue  # a key has no NULLs; an object with one fails for that reason
                if widens(now, wide):
                    wanted.append(Column(name, wide))
                elif is_nested(now) and bare(wide) == "String":
                    kept.append(f"{name!r} stays {now}, because lists, maps and structs do not become text")
                else:
                    kept.append(f"{name!r} stays {now}, because {bare(wide)} cannot hold each value of this type")
        return wanted, kept

    def _check_columns(self, added: int) -> None:
        most = self.request.limits.columns
        if added and len(self.staging.destination.columns) + added > most:
            raise LimitError(f"with its {added} new columns the table exceeds {most} columns: see `limits`")
