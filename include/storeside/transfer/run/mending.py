"""Retries objects that failed alone in the ways that the request's options allow, or records them as failed."""

from __future__ import annotations

import logging
import re

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import (
    BusyObjectError,
    DriftError,
    FailureKind,
    GoneError,
    LimitError,
    LoadObjectError,
    TransferInputError,
    TransferTransientError,
    by_size,
    classify,
    kind_of,
)
from storeside.transfer.formats.encoding import refuse_encoding
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.objects import strict_json
from storeside.transfer.request.options import refuse_own
from storeside.transfer.run.altering import Altering
from storeside.transfer.run.explanation import OF_A_VALUE, Explanation
from storeside.transfer.run.rereading import Rereading
from storeside.transfer.run.salvage import RejectedRows
from storeside.transfer.staging.json_names import Names
from storeside.transfer.staging.staging import Staged, Staging
from storeside.transfer.staging.work import How
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.statements.composing import TWICE

log = logging.getLogger(__name__)

# ClickHouse 26.9 takes zeros after gzip for damage, which gzip itself leaves out.
_INFLATING = "ZLIB_INFLATE_FAILED"
_TWICE = TWICE.rpartition("}")[2]
# How ClickHouse's errors quote a number with a fraction or an exponent in a column of integers, or refuse a list.
_UNSURE = re.compile(r"before: '[.eE]|Cannot read (?:array|Map) from text")
_ROW = re.compile(r"\(row (\d{1,18})\)")


class Mending:
    """Loads the objects of one batch that failed alone."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.work = staging.work
        self.request = staging.work.request
        self.altering = Altering(staging)
        self.rereading = Rereading(staging)
        self.explanation = Explanation(self.rereading)

    def mend(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Load an object in each way that the request's options allow; record it as failed if none succeeds."""
        remedies = (
            self._by_its_compression,
            self._by_arrow,
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
        reason = self.explanation.of(o, str(error))
        log.debug("%r: %s", o.key, reason)  # the report at the end has it
        self.work.loads.record_failed([(o, kind_of(error), reason)])
        return None

    def _exactly(self, o: Planned, error: LoadObjectError) -> tuple[Staged | None, LoadObjectError]:
        """Read numbers of JSON, and lists of CSV, from their texts, which shows whether a column has each whole.

        Returns the error that remains.
        """
        if not (_UNSURE.search(str(error)) and (self.work.is_strict or self.work.form.has_fields)):
            return None, error
        try:
            return self.staging.stage([o], How(exact=True)), error
        except LoadObjectError as e:
            return None, e

    def _check_beginning(self, o: Planned, error: LoadObjectError) -> None:
        """Raise LoadObjectError if the content explains the failure: another encoding, or Excel's first line."""
        if not self.work.form.is_text or error.kind is not FailureKind.OBJECT or OF_A_VALUE.match(str(error)):
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
        compression = self.rereading.compression(o)
        if compression == "auto":
            return None
        return self.staging.stage([o], How(compression=compression) if compression else How(push=True))

    def _by_arrow(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Let the worker read Parquet with a page that ClickHouse takes for damaged although it is not."""
        return self.staging.stage([o], How(by_arrow=True)) if self.rereading.needs_arrow(o, str(error)) else None

    def _by_names(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Load an object that only seemed to have a name twice: a name with a point is no object in another one.

        Raises LoadObjectError if it has one, unless its row may be left out.
        """
        if not (OF_A_VALUE.match(str(error)) and str(error).endswith(_TWICE)):
            return None
        names = Names(self.rereading.reading().columns)
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
        if OF_A_VALUE.match(str(error)):  # tidying changes no value
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
            found = self.altering.columns(o)
        except TransferInputError as e:  # its rows show no columns
            raise LoadObjectError(str(e)) from e
        if options.mask and self.work.form.has_fields and not any(c.name in options.mask for c in found):
            return None  # its first row may have values instead of names, and must not become columns
        found = self.work.readings.known(found, destination)
        if policy == "rest":
            missing = [c for c in found if destination.type_of(options.target(c.name) or "") is None]
            rest = tuple(c for c in missing if c.name not in options.mask)
            return self.staging.stage([o], How(rest=rest)) if rest and self.work.form.is_text else None
        if not self.altering.fit(found, error):
            return None
        return self._with_changed_columns(o)

    def _by_a_larger_sample(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Infer the columns of an empty table again, from the samples and from every row of the object.

        Only columns whose types came from a sample of text change.
        """
        if not (self.work.form.is_text and self.staging.destination.inferred) or isinstance(error, DriftError):
            return None
        if not self.altering.infer_again(o):
            return None
        return self._with_changed_columns(o)

    def _with_changed_columns(self, o: Planned) -> Staged:
        """Load an object into the columns that were changed for it, which may still leave bad rows."""
        try:
            return self.staging.stage([o])
        except LoadObjectError as e:
            if (staged := self._by_salvage(o, e)) is None:
                raise
            return staged

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
            rows = self.rereading.salvaged(o, table, rejected)
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
