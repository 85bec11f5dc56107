"""Explains why an object failed: with the row of a wrong value, the likely cause, and the remedy."""

from __future__ import annotations

import logging
import re

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.base.damage import AGAIN
from storeside.transfer.base.errors import (
    LoadObjectError,
    TransferError,
)
from storeside.transfer.base.schema import INTEGERS, bare
from storeside.transfer.formats.text_lines import with_line
from storeside.transfer.request.known_formats import KNOWN, typed_format
from storeside.transfer.run.rereading import Rereading
from storeside.transfer.run.salvage import Rejected
from storeside.transfer.state.loads import Loaded, Planned

log = logging.getLogger(__name__)

# Reasons of the checks in `statement`, which state a column and no row.
OF_A_VALUE = re.compile(r"column .* has (an?|invalid) ")
_NOT_HELD = " cannot hold"
# How ClickHouse says that a JSON value is no object, or no list.
_OTHER_KIND = re.compile(
    r"^(column .*?(expected '\{' before|JSON object should start with|(?P<list>Array does not start with))"
    r"|Cannot parse input: expected ',' before: '[\[{])"
)
_AS_TEXT = (
    "the column's values have several kinds: change it to String; a new table has text for them with"
    ' read.nested="string"'
)
_NO_OBJECT = f": {_AS_TEXT}"
_NO_LIST = f': if it is NULL, set read.on_null_nested to "empty"; otherwise {_AS_TEXT}'


class Explanation:
    """Explains the failures of objects, which it may read again for that."""

    def __init__(self, rereading: Rereading) -> None:
        self.rereading = rereading
        self.staging = rereading.staging
        self.work = rereading.work

    def of(self, o: Planned, reason: str) -> str:
        """Return a reason with its place in the object, a likely cause, and a remedy."""
        hint = self._hint(o)
        # Another upload of an object of another format changes nothing.
        place = self._with_place(o, reason.removesuffix(f": {AGAIN}") if hint else reason)
        return f"{place}{hint}{self._remedy(reason)}"

    def _with_place(self, o: Planned, reason: str) -> str:
        """Add the row to a reason that states a column, and the line to one that states a row.

        The worker has read an object whose text cannot be parsed, but not CSV with a wrong value.
        """
        if OF_A_VALUE.match(reason):
            reason = self._with_row(o, reason)
            if self.work.form.has_fields:
                return reason
        try:
            content = self.work.content(o)
            return reason if content.archive else with_line(reason, content.plain, self.work.form)
        except TransferError:  # the reason tells more
            return reason

    def _with_row(self, o: Planned, reason: str) -> str:
        """Add the row to a reason that states a column of text, because the checks of values do not know their row.

        ClickHouse reads the object again up to the faulty row, or the worker does if ClickHouse cannot.
        """
        form = self.work.form
        if not (form.is_text and form.is_native and OF_A_VALUE.match(reason)):
            return reason
        try:
            compression, reading = self.rereading.compression(o), self.rereading.reading()
            if compression is None or reading.hides_virtual:
                return self._row_by_worker(o, reason)
            for check in reading.checks:
                if reason.startswith(" ".join(check.reason.split())):
                    name = f"{self.staging.tables}{self.work.token}"
                    row = self.staging.reader.first_row(name, o, reading, check, compression)
                    return reason if row is None else f"row {row}, {reason}"
        except (TransferError, DatabaseError, OperationalError) as e:
            log.debug("%r: the row of its error is unknown: %s", o.key, e)
        return reason

    def _row_by_worker(self, o: Planned, reason: str) -> str:
        def reject(rejected: Rejected) -> None:
            raise LoadObjectError(rejected.reason)

        try:
            self.staging.drop(
                self.staging.filled(lambda table: [Loaded(o, self.rereading.salvaged(o, table, reject))]).table
            )
        except (TransferError, DatabaseError, OperationalError) as e:
            row, _, told = str(e).partition(", ")
            if not row.startswith("row "):
                return reason
            return f"{row}, {reason}" if reason.startswith(told) else str(e)  # the reason may state more
        return reason

    def _remedy(self, reason: str) -> str:
        """Return the remedy for a value of a text whose kind, digits or fraction its column does not hold."""
        if self.work.form.has_documents and (other := _OTHER_KIND.search(reason)):
            return _NO_LIST if other["list"] else _NO_OBJECT
        destination = self.staging.destination
        names = {*destination.inferred, *(c.name for c in destination.columns if INTEGERS.fullmatch(bare(c.type)))}
        is_held = not (self.work.form.is_text and reason.endswith(_NOT_HELD))
        if is_held or not any(f"column {name!r} has" in reason for name in names):
            return ""
        return ": change the column to a type that holds it, such as String, and load the object with `retry_failed`"

    def _hint(self, o: Planned) -> str:
        """Return the likely cause of a failure, by the object's first bytes; empty if they suggest none."""
        try:
            if (content := self.work.content(o)).archive:
                return ""
            head = content.range(0, 10 if self.work.form.is_stream else 64)
        except TransferError:
            return ""
        if not head:
            return "" if self.work.form.is_stream else " (the object is empty)"
        found, wanted = typed_format(head), self.work.form
        begins = wanted.facts.begins if wanted.facts.kind == "types" else None
        if found != (wanted.name if begins else None):
            kind = f"is {KNOWN[found].title} file" if found else f"does not begin like {wanted.facts.title} file"
            return f" (the object {kind}: load it with other keys, or move it to a separate prefix)"
        return ""
