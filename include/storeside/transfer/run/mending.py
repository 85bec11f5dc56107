"""Retries objects that failed alone in the ways that the request's options allow, or records them as failed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.base.errors import (
    BusyObjectError,
    DriftError,
    FailureKind,
    GoneError,
    LimitError,
    LoadObjectError,
    TransferError,
    TransferInputError,
    TransferTransientError,
    by_size,
    classify,
    kind_of,
)
from storeside.transfer.base.schema import INTEGERS, Column, bare, is_nested, resolved, same
from storeside.transfer.formats.encoding import refuse_encoding
from storeside.transfer.formats.registry import MESSAGES, TEXTS
from storeside.transfer.formats.text_lines import with_line
from storeside.transfer.objects import strict_json
from storeside.transfer.request.known_formats import KNOWN, typed_format
from storeside.transfer.request.object_format import BY_WORKER, compression_by_name
from storeside.transfer.request.options import refuse_own
from storeside.transfer.run.salvage import Rejected, RejectedRows, salvage
from storeside.transfer.run.samples import columns_of_members, larger_columns, typed_columns, whole_columns
from storeside.transfer.staging.json_names import Names
from storeside.transfer.staging.staging import Staged, Staging
from storeside.transfer.staging.work import How
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.state.lock import Hold, locked
from storeside.transfer.statements.composing import TWICE
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.storable import refuse_same_names
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.inference import merge, wider
from storeside.transfer.types.widening import widens

log = logging.getLogger(__name__)

# Reasons of the checks in `statement`, which state a column and no row.
_OF_A_VALUE = re.compile(r"column .* has (an?|invalid) ")
# ClickHouse 26.9 takes zeros after gzip for damage, which gzip itself leaves out.
_INFLATING = "ZLIB_INFLATE_FAILED"
_NOT_HELD = " cannot hold whole"
_TWICE = TWICE.rpartition("}")[2]
# How ClickHouse's error begins to quote a number with a fraction or an exponent in a column of integers, and the
# reason for a float that may lack digits of an integer.
_UNSURE = re.compile(r"before: '[.eE]|a number that Float64 does not keep")
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
_ROW = re.compile(r"\(row (\d{1,18})\)")


class Mending:
    """Loads the objects of one batch that failed alone."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.work = staging.work
        self.request = staging.work.request

    def mend(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Load an object in each way that the request's options allow; record it as failed if none succeeds."""
        remedies = (
            self._by_its_compression,
            self._check_beginning,
            self._by_names,
            self._by_tidying,
            self._by_a_larger_sample,
            self._by_drift,
            self._by_salvage,
        )
        try:
            staged, error = self._exactly(o, error)
            if staged is not None:
                return staged
            for remedy in () if isinstance(error, LimitError | GoneError | BusyObjectError) else remedies:
                if (staged := remedy(o, error)) is not None:
                    return staged
        except (LoadObjectError, DatabaseError) as e:
            error = classify(e) if isinstance(e, DatabaseError) else e  # type: ignore[assignment]
            if isinstance(error, TransferTransientError) and not by_size(e):
                raise error from e
        reason = f"{self._with_place(o, str(error))}{self._hint(o)}{self._remedy(str(error))}"
        log.debug("%r: %s", o.key, reason)  # the report at the end has it
        self.work.loads.record_failed([(o, kind_of(error), reason)])
        return None

    def _exactly(self, o: Planned, error: LoadObjectError) -> tuple[Staged | None, LoadObjectError]:
        """Read numbers of JSON from their texts, which shows whether a column has each of them whole.

        Returns the error that remains.
        """
        if not (_UNSURE.search(str(error)) and self.work.is_strict):
            return None, error
        try:
            return self.staging.stage([o], How(exact=True)), error
        except LoadObjectError as e:
            return None, e

    def _check_beginning(self, o: Planned, error: LoadObjectError) -> None:
        """Raise LoadObjectError if the content explains the failure: another encoding, or Excel's first line."""
        if not self.work.form.is_text or error.kind is not FailureKind.OBJECT or _OF_A_VALUE.match(str(error)):
            return
        try:
            sample = self.work.content(o).sample(self.request.read.sample_bytes)
        except LoadObjectError:  # `error` tells more
            return
        refuse_encoding(sample, self.work.form)
        TEXTS[self.work.form.name].check_beginning(sample, self.work.form)

    def _by_its_compression(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Read an object with the compression of its content, if its name suggests another one."""
        if self.staging.reader.pushed or not self.work.form.is_stream:
            return None
        compression = self._compression(o)
        if compression == "auto":
            return None
        return self.staging.stage([o], How(compression=compression) if compression else How(push=True))

    def _compression(self, o: Planned) -> str | None:
        """Return ClickHouse's name for the compression of a text object; "auto" if the object's name shows it.

        None if the worker must read the object.
        """
        if self.staging.reader.pushed:
            return None
        actual = self.work.content(o).compression
        if actual in BY_WORKER:
            return None
        return "auto" if actual.removeprefix("hadoop-") == compression_by_name(o.key) else actual or "none"

    def _by_names(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Load an object that only seemed to have a name twice: a name with a point is no object in another one.

        Raises LoadObjectError if it has one, unless its row may be left out.
        """
        if not (_OF_A_VALUE.match(str(error)) and str(error).endswith(_TWICE)):
            return None
        names = Names(self._text_reading().columns)
        for row, document in TEXTS[self.work.form.name].records(self.work.content(o).plain(), self.work.form):
            if reason := names.fault(document):
                if self.request.on_bad_rows != "fail":
                    return None
                raise LoadObjectError(f"row {row}, {reason}")
        return self.staging.stage([o], How(checked=True))

    def _by_tidying(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Push a text object without blank lines, with names for unnamed columns, and without zeros after gzip."""
        form = self.work.form
        if not (form.is_text and form.is_native) or by_size(error.__cause__ or error):
            return None
        if _OF_A_VALUE.match(str(error)):  # tidying changes no value
            return None
        try:
            if _INFLATING not in str(error) and not TEXTS[form.name].is_untidy(self.work.content(o).plain(), form):
                return None
            return self.staging.stage([o], How(push=True, tidy=True))
        except LoadObjectError as e:
            log.info("%r: without its blank lines, and with all names: %s", o.key, e)
            return None

    def _by_drift(self, o: Planned, error: LoadObjectError) -> Staged | None:
        policy = self.request.on_drift
        if isinstance(error, DriftError):
            refuse_own(re.findall(r"\w+", str(error)), self.request.own_columns)
        if policy == "fail" or (policy == "add" and not isinstance(error, DriftError)):
            return None
        options, destination = self.request.read.columns, self.staging.destination
        try:
            found = self._columns(o)
        except TransferInputError as e:  # its rows show no columns
            raise LoadObjectError(str(e)) from e
        if options.mask and self.work.form.has_fields and not any(c.name in options.mask for c in found):
            return None  # its first row may have values instead of names, and must not become columns
        found = self.work.readings.known(found, destination)
        if policy == "rest":
            missing = [c for c in found if destination.type_of(options.target(c.name) or "") is None]
            rest = tuple(c for c in missing if c.name not in options.mask)
            return self.staging.stage([o], How(rest=rest)) if rest and self.work.form.is_text else None
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
                    return None
                self.staging.destination = latest
        except TransferInputError as e:  # only this object fails: the table's types cannot hold its values
            raise LoadObjectError(str(e)) from e
        return self._with_changed_columns(o)

    def _by_a_larger_sample(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Infer the columns of an empty table again, from the samples and from every row of the object.

        Only columns whose types came from a sample of text change.
        """
        if not (self.work.form.is_text and self.staging.destination.inferred) or isinstance(error, DriftError):
            return None
        sample = self.work.plan.sample(self.request.read.sample_objects)
        contents = [self.work.content(other) for other in sample if other.key != o.key]
        try:
            found = larger_columns(self.work.client, self.request, self.work.form, self.work.content(o), contents)
        except TransferInputError:  # its rows show no columns
            return None
        with self.work.alters, self._locked() as hold:
            latest = self.staging.look_up()
            options, changed = self.request.read.columns, []
            for c in found:
                name = options.target(c.name) or ""
                kind = resolved(options.made(c.name, c.type))
                if name in latest.inferred and not same(latest.type_of(name) or kind, kind):
                    changed.append(Column(name, kind))
            if not changed or not latest.is_empty():
                return None
            hold.check()
            try:
                self.staging.destination = latest.widen(changed)
            except TransferInputError:  # a column of a key
                return None
        log.info("%r: inferred %s again", o.key, ", ".join(f"{c.name} as {c.type}" for c in changed))
        return self._with_changed_columns(o)

    def _with_changed_columns(self, o: Planned) -> Staged:
        """Load an object into the columns that were changed for it, which may still leave bad rows."""
        try:
            return self.staging.stage([o])
        except LoadObjectError as e:
            if (staged := self._by_salvage(o, e)) is None:
                raise
            return staged

    def _locked(self) -> AbstractContextManager[Hold]:
        """Hold the lock of the table in order to change its columns."""
        destination = self.staging.destination
        return locked(destination.client, destination.name, self.work.token, "columns", destination.others)

    def _changes(self, found: Sequence[Column], destination: Destination) -> tuple[list[Column], list[str]]:
        """Return the columns to add to a table or to widen, and why others keep their types."""
        options, wanted, kept = self.request.read.columns, [], []
        for c in found:
            name, kind = options.target(c.name) or "", options.made(c.name, c.type)
            now = destination.type_of(name)
            if now is None:
                wanted.append(Column(name, kind))
            elif self.request.on_drift == "widen" and (wide := wider(self.work.client, now, kind)) != now:
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

    def _by_salvage(self, o: Planned, error: LoadObjectError) -> Staged | None:
        if self.request.on_bad_rows == "fail" or not (self.work.form.is_text and self.work.form.is_native):
            return None
        if isinstance(error, DriftError) and not self._is_no_json(o, error):
            return None
        keep = self.request.on_bad_rows == "keep"
        rejected = RejectedRows(
            self.staging.destination, o, self.request.source.bucket, keep=keep, limit=self.request.read.max_bad_rows,
            hides=bool(self.request.read.columns.mask),
        )  # fmt: skip

        def fill(table: str) -> list[Loaded]:
            rows = self._salvaged(o, table, rejected)
            rejected.flush()
            return [Loaded(o, rows, rejected.count)]

        rejected.begin()
        try:
            staged = self.staging.filled(fill)
        except (LoadObjectError, DatabaseError) as e:
            is_in_table = self.work.loads.states([o]).get(o.load_id) in ("loaded", "publishing")  # by another run
            if not (is_in_table or isinstance(classify(e), TransferTransientError)):
                rejected.forget()
            # A bad row before the one with unknown fields has hidden them.
            if isinstance(e, DriftError) and (drifted := self._by_drift(o, e)) is not None:
                return drifted
            raise
        rejected.forget_earlier()
        log.info("%r: %d rows loaded, %d rejected", o.key, staged.loaded[0].rows, rejected.count)
        return staged

    def _is_no_json(self, o: Planned, error: DriftError) -> bool:
        """Return whether the row that has an unknown field is no JSON document: then its names do not count."""
        if not (self.work.is_strict and (row := _ROW.search(str(error)))):
            return False
        rows = TEXTS[self.work.form.name].records(self.work.content(o).plain(), self.work.form)
        document = next((document for number, document in rows if number == int(row[1])), None)
        return document is not None and bool(strict_json.fault(document))

    def _with_place(self, o: Planned, reason: str) -> str:
        """Add the row to a reason that states a column, and the line to one that states a row.

        The worker has read an object whose text cannot be parsed, but not CSV with a wrong value.
        """
        if _OF_A_VALUE.match(reason):
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
        if not (form.is_text and form.is_native and _OF_A_VALUE.match(reason)):
            return reason
        try:
            compression, reading = self._compression(o), self._text_reading()
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
            self.staging.drop(self.staging.filled(lambda table: [Loaded(o, self._salvaged(o, table, reject))]).table)
        except (TransferError, DatabaseError, OperationalError) as e:
            row, _, told = str(e).partition(", ")
            if not row.startswith("row "):
                return reason
            return f"{row}, {reason}" if reason.startswith(told) else str(e)  # the reason may state more
        return reason

    def _salvaged(self, o: Planned, table: str, reject: Callable[[Rejected], None]) -> int:
        return salvage(
            self.work.client, self.work.content(o), self._text_reading(), o, table,
            self.request.table_options.system_columns, self.staging.reader.query_id(table), reject,
            strict=self.work.is_strict,
        )  # fmt: skip

    def _text_reading(self) -> Reading:
        empty_nulls = self.request.read.on_null_nested == "empty"
        return self.work.readings.text(
            self.work.form, self.staging.destination, empty_nulls=empty_nulls,
            keeps_codes=self.work.keeps_codes, exact=self.work.is_strict,
        )  # fmt: skip

    def _columns(self, o: Planned) -> list[Column]:
        """Return an object's columns: from the whole object if ClickHouse can read it, else from a sample."""
        if not self.work.form.is_text:
            if self.work.form.by_schema:
                return MESSAGES[self.work.form.name].columns(self.work.form, self.request.table_options.columns)
            content = self.work.content(o)
            if content.archive:
                return merge(self.work.client, [*columns_of_members(self.work.form, content)], {})
            return typed_columns(self.work.form, content)
        return whole_columns(self.work.client, self.request, self.work.form, self.work.content(o))

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
            return f" (the object {kind}: move it to a separate prefix)"
        return ""
