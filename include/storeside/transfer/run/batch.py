"""Loads one batch: stages its objects, isolates bad ones, checks the rows, and publishes the rest."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.quality.errors import QualityError
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    BusyObjectError,
    LoadObjectError,
    StaleError,
    TransferInputError,
    TransferTransientError,
    classify,
)
from storeside.transfer.publish.publishing import publish
from storeside.transfer.request.source import Source
from storeside.transfer.run.mending import Mending
from storeside.transfer.staging.staging import ATTEMPTS, Staged, Staging
from storeside.transfer.staging.validation import Validation
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Planned
from storeside.transfer.state.plan import Batch

log = logging.getLogger(__name__)


class BatchLoad:
    """Loads one batch. Objects that cannot be loaded are recorded as failed; all others are published.

    `validation` checks rows before they are published.
    """

    def __init__(self, work: Work, batch: Batch, validation: Validation | None = None) -> None:
        self.work = work
        self.validation = validation
        self.batch = batch
        self.request = work.request
        self.client = work.client
        self.staging = Staging(work, batch.number, pushed=work.push_all or batch.pushed)
        self.mending = Mending(self.staging)
        self._first = True

    def run(self) -> None:
        """Load, check and publish; raises TransferError when the outcome of the batch is unknown."""
        for _ in range(ATTEMPTS):
            try:
                for staged in self.staged():
                    self.publish(staged)
            except StaleError as e:
                log.info("batch %d: %s: reading its objects again", self.batch.number, e)
                self.work.is_untidy = True
            else:
                return
        raise TransferTransientError(
            f"batch {self.batch.number} became stale {ATTEMPTS} times: check whether another run loads its objects"
        )

    def staged(self) -> Iterator[Staged]:
        """Yield staging tables with the objects that can be loaded: as few tables as possible."""
        objects, running = self._objects()
        if (adopted := self.staging.adopt(objects, running)) is not None:
            yield adopted
            taken = {o.planned.load_id for o in adopted.loaded}
            objects = [o for o in objects if o.load_id not in taken]
        waiting = [objects]
        while waiting:
            some = waiting.pop()
            if not some:
                continue
            try:
                yield self.staging.stage(some)
            except LoadObjectError as e:
                # A busy object has had all of its attempts.
                alone = [o for o in some if len(some) == 1 or (isinstance(e, BusyObjectError) and o.key == e.key)]
                for o in alone:
                    if (staged := self.mending.mend(o, e)) is not None:
                        yield staged
                others = [o for o in some if o not in alone]
                waiting.extend([others] if alone else reversed(_divided(some, e, self.request.source)))

    def _objects(self) -> tuple[list[Planned], Collection[str]]:
        """Return the objects of the batch, and the ids of running statements of an earlier process.

        At first, both are known if this process has just planned the load: it has also killed such statements.
        """
        if self._first and self.batch.listed and self.work.recent is not None:
            self._first = False
            self.staging.use(self.work.recent)
            return list(self.batch.listed), ()
        objects, _, running = queries.at_once(
            lambda: self.work.plan.objects(self.batch.number),
            self.staging.look_up,
            lambda: queries.running(self.client, self.staging.tables),
        )
        return objects, running

    def publish(self, staged: Staged) -> None:
        """Check the rows of a staging table, publish them, and drop it.

        Raises ExpectationsError and QualityError, see `Validation.examine`.
        """
        try:
            if self.validation is not None:
                staged = self.validation.examine(self.staging, staged)
            if not staged.loaded:  # all objects break expectations
                self.staging.drop(staged.table)
                return
            self._publish(staged)
        except (TransferInputError, QualityError):
            self.staging.drop(staged.table, has_bad=True)
            raise
        except TransferTransientError:  # the objects are read and checked again
            if self.validation is not None:
                self.validation.forget(staged.table)
            raise

    def _publish(self, staged: Staged) -> None:
        for attempt in range(ATTEMPTS):
            try:
                publish(
                    self.staging.destination, self.work.loads, self.work.token, staged.table, staged.loaded,
                    self.work.s3, has_bad=staged.has_bad,
                    again=staged.adopted or attempt > 0, mirror=self.work.mirror,
                )  # fmt: skip
                break
            except (DatabaseError, OperationalError) as e:
                self.work.is_untidy = True
                error = classify(e)
                if not isinstance(error, TransferTransientError):
                    raise TransferInputError(
                        f"{self.staging.destination.name} does not accept the rows: {error}"
                    ) from e
                if attempt == ATTEMPTS - 1:
                    raise error from e
                self.staging.wait(attempt)
        self.staging.drop_others(staged.table, has_bad=staged.has_bad)


def _divided(objects: list[Planned], error: LoadObjectError, source: Source) -> list[list[Planned]]:
    """Split the objects into the object that the error names and two halves of the others."""
    key = error.key or source.key_of(error.__cause__ or error)
    named = [o for o in objects if o.key == key]
    others = [o for o in objects if o.key != key]
    middle = (len(others) + 1) // 2
    # A listing may have two versions of an object.
    return [part for part in (named[:1], named[1:], others[:middle], others[middle:]) if part]
