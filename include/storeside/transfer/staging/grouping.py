"""Groups the objects of a batch by how they are read; footers and headers decide for formats that state types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from storeside.transfer.base.errors import LoadObjectError, about
from storeside.transfer.formats.avro_schema import AvroShape
from storeside.transfer.formats.kinds import Headed
from storeside.transfer.formats.registry import MESSAGES, TYPED
from storeside.transfer.objects.archives import kind_by_name
from storeside.transfer.objects.content import Content
from storeside.transfer.staging.parquet_groups import ParquetGroups
from storeside.transfer.staging.proof import SMALL, pattern, plain
from storeside.transfer.staging.work import USUAL, Group, How, Plain, Work
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import check_key


class Grouping:
    """Groups objects by how they are read. The worker reads the footers of `pushed` objects, ClickHouse others.

    With a `member`, the content of an archive is that of this member.
    """

    def __init__(self, work: Work, *, pushed: bool, member: Content | None = None) -> None:
        self.work = work
        self.pushed = pushed
        self._member = member
        self._parquet = ParquetGroups(work, self._content, pushed=pushed)
        self._headers: dict[int, tuple[object, int]] = {}
        self._proved: dict[int, bool] = {}

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        """Return the objects grouped by how they are read; if only first rows are, no object states their number."""
        found = self._groups(objects, destination, how)
        if how.by_arrow:
            found = [replace(group, reading=replace(group.reading, by_arrow=True)) for group in found]
        if not self.work.most_rows:
            return found
        return [replace(group, objects=[Loaded(o, -1) for o in group.planned]) for group in found]

    def _groups(self, objects: Sequence[Planned], destination: Destination, how: How) -> list[Group]:
        form = self.work.form
        for o in objects:
            try:
                check_key(o.key, destination.partitions)
            except LoadObjectError as e:
                raise about(e, o.key) from e
        if form.is_text:
            return self._of_text(objects, destination, how)
        if form.by_schema:
            reading = self._reading(MESSAGES[form.name].shape(form, destination), destination)
            return [Group(reading, [Loaded(o, -1) for o in objects])]
        archives = [o for o in objects if kind_by_name(o.key) and self._content(o).archive]
        if archives:
            packed = {o.load_id for o in archives}
            others = [o for o in objects if o.load_id not in packed]
            return [
                Group(Reading(form, (), ()), [Loaded(o, -1) for o in archives], destination),
                *(self.groups(others, destination, how) if others else ()),
            ]
        if isinstance(headed := TYPED[form.name], Headed):
            return self._by_header(headed, objects, destination)
        return self._parquet.groups(objects, destination)

    def _of_text(self, objects: Sequence[Planned], destination: Destination, how: How) -> list[Group]:
        """Return text objects in one group, or in two if some are plain."""
        if not (self.pushed or how.push or how.apart or self.work.most_rows):
            unproved = [o for o in objects if o.load_id not in self._proved]
            self._proved |= dict.fromkeys((o.load_id for o in unproved), False)
            self._proved |= dict.fromkeys(plain(self.work, unproved, destination.columns, how.compression), True)
        by_worker = self._by_worker(destination, how)
        groups = []
        for is_plain in (False, True):
            if some := [o for o in objects if self._is_proved(o, how) is is_plain]:
                reading = self._text_reading(destination, how, is_plain=is_plain)
                groups.append(Group(reading, [Loaded(o, -1) for o in some], plain=by_worker))
        return groups

    def _text_reading(self, destination: Destination, how: How, *, is_plain: bool) -> Reading:
        reading = self.work.readings.text(
            self.work.form, destination, how.rest, empty_nulls=self.work.request.empties_nested,
            keeps_codes=self.work.keeps_codes, exact=how.exact,
            names_once=self.work.is_strict and not how.checked, plain=is_plain,
        )  # fmt: skip
        return replace(reading, together=not how.apart)

    def _is_proved(self, o: Planned, how: How) -> bool:
        return not how.apart and self._proved.get(o.load_id, False)

    def _worker_proves(self, how: How) -> bool:
        is_sent = self.pushed or how.push
        return is_sent and self.work.form.has_fields and not (how.apart or how.tidy or self.work.most_rows)

    def _by_worker(self, destination: Destination, how: How) -> Plain | None:
        """Return how a worker reads plain objects; None if no proof helps."""
        fault = pattern(self.work.form, destination.columns) if self._worker_proves(how) else None
        return Plain(self._text_reading(destination, how, is_plain=True), fault) if fault else None

    def may_be_plain(self, o: Planned, how: How) -> bool:
        """Return whether an object may have been read as a plain one."""
        return self._is_proved(o, how) or (self._worker_proves(how) and o.size <= SMALL)

    def _by_header(self, form: Headed, objects: Sequence[Planned], destination: Destination) -> list[Group]:
        """Return objects grouped by their columns, which the worker reads from each object."""
        alike: dict[object, Group] = {}
        for o in objects:
            try:
                # A batch with a bad object is divided and grouped again: each header is read once.
                if o.load_id not in self._headers:
                    self._headers[o.load_id] = form.header(self._content(o))
                shape, rows = self._headers[o.load_id]
                if shape not in alike:
                    alike[shape] = Group(self._reading(shape, destination), [])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            alike[shape].objects.append(Loaded(o, rows))
        return list(alike.values())

    def _reading(self, shape: Any, destination: Destination) -> Reading:
        keep_rest, refuse_nulls, form = (
            self.work.request.keeps_rest,
            not self.work.request.empties_nested,
            self.work.form,
        )
        if isinstance(shape, AvroShape):
            return self.work.readings.avro(form, destination, shape, keep_rest=keep_rest, refuse_nulls=refuse_nulls)
        return self.work.readings.typed(form, destination, *shape, keep_rest=keep_rest, refuse_nulls=refuse_nulls)

    def _content(self, o: Planned) -> Content:
        return self._member or self.work.content(o)
