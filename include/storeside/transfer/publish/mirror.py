"""Makes a table equal to its source: one snapshot of an Iceberg or Delta table, or the listed objects of a bucket.

Rows of files that left the snapshot, and of objects that were deleted, are removed. Other runs may load other
snapshots or objects meanwhile.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storeside.amounts import counted
from storeside.sql.answers import first_row
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.publish.partition import Replacement, empty
from storeside.transfer.request.source import uri_of
from storeside.transfer.state.loads import Loaded, Loads, Planned
from storeside.transfer.state.lock import locked
from storeside.transfer.state.small_plan import SELECTED
from storeside.transfer.tables.table import Destination

log = logging.getLogger(__name__)

_FILES = f"(SELECT key, etag FROM storeside.load_listings WHERE transfer = {{transfer:String}} AND {SELECTED})"
_KEYS = "(SELECT key FROM storeside.load_listings WHERE transfer = {transfer:String})"
_MINE = (
    "destination = {destination:String} AND bucket = {bucket:String} AND startsWith(key, {prefix:String})"
    " AND match(key, {regex:String})"
)


@dataclass(frozen=True)
class Mirror:
    """The files of a snapshot in the plan of a load, or the listed objects, compared with the ledger.

    With `partition`, the table's partition of this value is to have the rows of the listed objects and no others.

    `files` is the number of files or of objects that the keys select, and `since` the time of the ledger's server, in
    microseconds since the epoch, before the snapshot was looked up or the listing began. `most_removed` is the
    largest share, from 0 to 1, of the loaded objects whose rows may be removed; None for a snapshot.
    """

    loads: Loads
    files: int
    since: int
    most_removed: float | None = None
    partition: str = ""

    @property
    def _parameters(self) -> dict[str, Any]:
        return {**self.loads.parameters, "since": self.since, "modified_from": 0}

    def check(self) -> None:
        """Raise TransferTransientError if another run has loaded another snapshot since ours was looked up.

        The caller holds the lock of the table, so that no other run publishes meanwhile.
        """
        self._check_files()
        count = first_row(
            self.loads.client.query(
                f"SELECT count() FROM storeside.loads FINAL WHERE {_MINE}"
                " AND toUnixTimestamp64Micro(recorded_at) > {since:Int64}"
                f" AND (state IN ('loaded', 'publishing') AND (key, version) NOT IN {_FILES}"
                f" OR state = 'replaced' AND (key, version) IN {_FILES})",
                parameters=self._parameters,
            )
        )[0]
        if count:
            source = self.loads.source
            raise TransferTransientError(
                f"another run has loaded another state of {uri_of(source.bucket, source.keys)}"
                f" into {self.loads.destination} meanwhile: the next try reads the current one"
            )

    def gone(self) -> list[Loaded]:
        """Return the loaded files of the table that are not in the snapshot, or all loads of objects that are gone.

        Objects that were loaded since the listing began are not gone: it need not have them.
        """
        self._check_files()
        gone = f"(key, version) NOT IN {_FILES}"
        if self.most_removed is not None:
            gone = f"key NOT IN {_KEYS} AND toUnixTimestamp64Micro(recorded_at) < {{since:Int64}}"
        rows = self.loads.client.query(
            "SELECT key, version, bytes, toFloat64(modified), load_id, rows, rejected, filtered"
            " FROM storeside.loads FINAL"
            f" WHERE {_MINE} AND state = 'loaded' AND {gone}",
            parameters=self._parameters,
        ).result_rows
        self._check_files()
        return [Loaded(Planned(*row[:5]), row[5], row[6], filtered=row[7]) for row in rows]

    def replacement(self, destination: Destination, gone: Sequence[Loaded]) -> Replacement:
        """Return the replacement of the partition, without the rows of `gone`; the caller holds the lock."""
        rows = self.loads.client.query(
            "SELECT key, version, bytes, toFloat64(modified), load_id FROM storeside.loads FINAL"
            f" WHERE {_MINE} AND state = 'loaded' AND (key, version) IN {_FILES}",
            parameters=self._parameters,
        ).result_rows
        kept = [Planned(*row) for row in rows]
        return Replacement(destination, self.loads, self.partition, kept, [o.planned for o in gone])

    def _check_files(self) -> None:
        """Raise TransferTransientError unless the plan still has the listing: without it, every file seems gone."""
        query = f"SELECT count() FROM {_FILES}"
        found = first_row(self.loads.client.query(query, parameters=self._parameters))[0]
        if found != self.files:
            raise TransferTransientError(
                f"the plan of {self.loads.destination} has {found} of {self.files} files, because another try of this"
                " run has replaced it: the next try plans again"
            )

    def _check_loaded(self) -> None:
        """Raise TransferTransientError unless all files of the snapshot are loaded, which replace those that left."""
        count, example = first_row(
            self.loads.client.query(
                f"SELECT count(), min(key) FROM {_FILES} WHERE (key, etag) NOT IN"
                f" (SELECT key, version FROM storeside.loads FINAL WHERE {_MINE} AND state = 'loaded')",
                parameters=self._parameters,
            )
        )
        if count:
            raise TransferTransientError(
                f"{count} files of the snapshot are not loaded into {self.loads.destination}, such as {example!r}, so"
                " no rows of earlier snapshots are removed: the next try loads these files first"
            )

    def refuse_gone(self) -> None:
        """Raise TransferInputError if the snapshot lacks files that are loaded."""
        if gone := self.gone():
            raise TransferInputError(
                f"{len(gone)} files that are loaded into {self.loads.destination} are no longer in the snapshot, such"
                f" as {gone[0].planned.key!r}: rows were deleted or changed, or files compacted, so appending could"
                " load rows twice: use on_overwrite='replace', which also removes the rows of these files"
            )

    def _check_share(self, gone: Sequence[Loaded], most: float) -> None:
        """Raise TransferInputError if more objects are gone than this share of the loaded ones, from 0 to 1."""
        keys = sorted({o.planned.key for o in gone})
        query = f"SELECT uniqExact(key) FROM storeside.loads FINAL WHERE {_MINE} AND state = 'loaded'"
        loaded = int(first_row(self.loads.client.query(query, parameters=self._parameters))[0])
        if len(keys) > most * loaded:
            source = self.loads.source
            raise TransferInputError(
                f"{len(keys)} of the {loaded} objects that are loaded from {uri_of(source.bucket, source.keys)} into"
                f" {self.loads.destination} are gone ({len(keys) / loaded:.1%}), such as"
                f" {', '.join(map(repr, keys[:3]))}, and remove_deleted allows {100 * most:g} %: no row"
                " was removed. If the objects were meant to be deleted, run the load once with a larger share"
            )

    def remove_gone(self, destination: Destination | None) -> int:
        """Remove the rows of files or objects that are gone; return the number of these.

        Raises TransferTransientError, and removes nothing, unless all files of a snapshot are loaded, and
        TransferInputError if more objects are gone than the user allows.
        """
        if destination is None or (self.partition and not self.files) or not self.gone():
            return 0
        name, others, owner = destination.name, destination.others, uuid.uuid4().hex[:8]
        staging = empty(destination, self.loads.transfer, owner) if self.partition else "nothing"
        with locked(destination.client, name, owner, staging, others) as hold:
            gone = self.gone()
            if self.most_removed is not None:
                self._check_share(gone, self.most_removed)
            else:
                self.check()
                self._check_loaded()
            # A run that is killed here leaves loads in doubt: the next run counts their rows and decides again.
            self.loads.record(gone, "publishing")
            if self.partition and destination.count([o.planned for o in gone]):
                self.replacement(destination, gone).take(staging, (), hold)
            destination.remove([o.planned for o in gone], hold)
            self.loads.record_replaced([o.planned for o in gone])
        log.info("removed the rows of %s that are gone from %s", counted(len(gone), "object"), name)
        return len(gone)
