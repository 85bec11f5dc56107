"""Samples the objects of a plan: their format, and the columns of a missing table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import (
    LoadObjectError,
    TransferInputError,
    TransferTransientError,
    is_transient,
    kind_of,
    plain,
)
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.registry import MESSAGES, TEXTS, settings_of
from storeside.transfer.objects.content import Content, content_of
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.samples.columns import columns_of
from storeside.transfer.samples.recognition import SamplesError, recognise
from storeside.transfer.samples.text import NoRowsError
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.state.plan import Plan

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Maximum number of sampled objects when the first ones show no format or no columns.
MOST_SAMPLED = 200
# Objects without rows that are recorded at a time.
_RECORDED = 100_000


@dataclass(frozen=True)
class Look:
    """Samples the plan of a request; `client` infers columns, `s3` reads the source."""

    request: Request
    client: Client
    s3: Any
    plan: Plan

    def found(self, with_columns: bool, *, given: bool) -> tuple[Format, list[Column]] | None:
        """Return the format of sampled objects and, `with_columns`, their columns; None if no object is left to load.

        If objects were `given`, samples without a recognizable format or columns are recorded as failed, and so are
        all objects that are left if S3 denies or archives each of them. Raises TransferInputError, and
        TransferTransientError while another run publishes the objects.
        """
        sample_size = self.request.read.sample_objects
        while True:
            tried = sample = self.plan.sample(sample_size)
            try:
                form, samples = recognise(self.request, [content_of(self.s3, self.request, o) for o in sample])
                tried = [o for o in sample if o.key in {content.key for content in samples}]
                return form, columns_of(self.client, self.request, form, samples) if with_columns else []
            except TransferInputError as e:
                if self._may_tell_more(e, sample_size) and not self._are_all(sample):
                    sample_size = MOST_SAMPLED
                    continue
                if isinstance(e, NoRowsError):
                    rowless = self._rowless(sample, samples, form)
                    if self._are_all(rowless):
                        self._none()
                        return None
                    if rowless:
                        self._without_rows(rowless)
                        continue
                if not sample and not given and not self.request.has_kind("types"):
                    return self._of_empty(with_columns)
                if not given and not self._all_pass(e, sample):
                    raise
                left = tried or self.plan.unfinished()  # without a sample, all are empty
                self._failed(left, e)
                if not sample or not self.plan.unfinished(1):
                    return None

    def columns(self, form: Format) -> list[Column] | None:
        """Return the columns of sampled objects; None if no sample shows any, so that objects fail one by one."""
        try:
            sample = self.plan.sample(self.request.read.sample_objects)
            _, contents = recognise(self.request, [content_of(self.s3, self.request, o) for o in sample])
            return columns_of(self.client, self.request, form, contents)
        except (TransferInputError, DatabaseError) as e:
            if is_transient(e):
                raise
            log.info("the names in the options for columns are not checked: %s", plain(e))
            return None

    def check_schema(self) -> None:
        """Check the schema of messages, if the request has one. Raises TransferInputError."""
        if self.request.has_kind("messages"):
            form = self.request.form(self.request.format)
            MESSAGES[form.name].check(self.client, form, settings_of(form))

    @staticmethod
    def _may_tell_more(error: TransferInputError, size: int) -> bool:
        """Return whether a larger sample than one of `size` objects may have what the objects of this one lack."""
        return size < MOST_SAMPLED and isinstance(error, SamplesError)

    def _all_pass(self, error: TransferInputError, sample: Sequence[Planned]) -> bool:
        """Return whether no object is left that could be read now, and each may be readable later."""
        passing = error.passing if isinstance(error, SamplesError) and not self.request.all_or_none else {}
        return bool(passing) and all(o.key in passing for o in sample) and self._are_all(sample)

    def _of_empty(self, with_columns: bool) -> tuple[Format, list[Column]] | None:
        """Return the format of empty objects for a table, where they may replace versions with rows."""
        if not with_columns:
            return self.request.form("csv"), []
        self._none()
        return None

    def _rowless(self, sample: Sequence[Planned], samples: Sequence[Content], form: Format) -> list[Planned]:
        """Return the objects of a sample that have no rows; `samples` are those with the format."""
        fitting = {content.key for content in samples}
        contents = [(o, content_of(self.s3, self.request, o, o.version)) for o in sample]
        return [o for o, content in contents if _is_without_rows(content, form, fits=o.key in fitting)]

    def _are_all(self, sample: Sequence[Planned]) -> bool:
        """Return whether a sample contains all unfinished objects that are not empty."""
        return int(self.plan.facts("countIf(size > 0)")[0]) <= len(sample)

    def _none(self) -> None:
        """Record all unfinished objects as loaded without rows."""
        while some := self.plan.unfinished(_RECORDED):
            self._without_rows(some)

    def _without_rows(self, objects: Sequence[Planned]) -> None:
        """Record objects without rows as loaded; they create no table."""
        self.plan.loads.record([Loaded(o, 0) for o in objects], "loaded")
        log.info(
            "%d objects have no rows, such as %r: %s is created when an object has one",
            len(objects), objects[0].key, self.request.table,
        )  # fmt: skip

    def _failed(self, objects: Sequence[Planned], error: TransferInputError) -> None:
        """Record objects as failed. Raises TransferTransientError if another run publishes all of them."""
        states = self.plan.loads.states(objects)
        if objects and all(states.get(o.load_id) == "publishing" for o in objects):
            raise TransferTransientError(
                f"another run publishes {len(objects)} of the objects, such as {objects[0].key!r}: the next try"
                " finds their outcome"
            ) from error
        passing = error.passing if isinstance(error, SamplesError) else {}
        errors = ((o, passing.get(o.key, error)) for o in objects)
        self.plan.loads.record_failed((o, kind_of(e), str(e)) for o, e in errors)


def _is_without_rows(content: Content, form: Format, *, fits: bool) -> bool:
    """Return whether an object has no row: it is read as a whole, and is a text of up to a megabyte.

    The text is blank, or `fits` the format and has no more than a header. A sample does not show that: it may end
    before the first row, and objects of other formats are not in it.
    """
    text = bytearray()
    try:
        file = content.plain()
        while len(text) <= CHUNK and (piece := file.read(CHUNK)):
            text += piece
        if len(text) > CHUNK:
            return False
        if not fits:
            return not text.strip()
        found = TEXTS[form.name]
        return len(found.sample(bytes(text), form)) <= found.headers(form)
    except (LoadObjectError, OSError):
        return False
