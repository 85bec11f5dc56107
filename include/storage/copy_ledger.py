"""What a copy through this process keeps in ClickHouse beside what every copy and transform does."""

from __future__ import annotations

from collections.abc import Iterable

from include import sql
from include.transform.ledger import Ledger, Pending, Scope

_COPIED = ("adopted", "copied")
_DONE = (
    *("source", "destination", "effect", "run_id", "status"),
    *("object", "version", "destination_object", "bytes_in", "bytes_out", "result_version"),
)


class CopyLedger(Ledger):
    """Adds which pending objects were copied, or were there before."""

    def begin(self, scope: Scope) -> None:
        """Forget what an earlier try of the same run had copied: the ledger has it as done."""
        for side in _COPIED:
            self._drop(scope, side)

    def adopt(self, scope: Scope) -> int:
        """Keep which pending objects the destination has already, by size and checksum; returns their number."""
        self.client.command(sql.query("adopt"), parameters=scope.parameters)
        count = self.client.query(
            "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side = 'adopted'",
            parameters={"job": scope.job},
        ).first_row[0]
        return int(count)

    def uncopied(self, scope: Scope, after: str, limit: int) -> list[Pending]:
        """Return up to `limit` pending objects with names greater than `after` that have to be copied."""
        rows = self.client.query(
            "SELECT object, destination_object, size, version FROM storeside.listings"
            " WHERE job = {job:String} AND side = 'pending' AND object > {after:String} AND object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'adopted')"
            " ORDER BY object LIMIT {limit:UInt32}",
            parameters={"job": scope.job, "after": after, "limit": limit},
        ).result_rows
        return [Pending(*row) for row in rows]

    def record_copies(self, scope: Scope, rows: Iterable[tuple[Pending, str]]) -> None:
        """Record objects as done, with their versions at the destination, whose answers had the right checksums.

        A run that is killed need not copy them again; `settle_copies` takes back what the destination does not list.
        """
        copied = list(rows)
        self.insert_listing(
            (scope.job, "copied", p.object, p.destination_object, p.size, written, "") for p, written in copied
        )
        if copied:
            of = (scope.source, scope.destination, scope.effect, scope.run_id, "done")
            done = [
                [*of, p.object, p.version, p.destination_object, p.size, p.size, version] for p, version in copied
            ]
            self.client.insert("storeside.objects", done, column_names=_DONE, settings={"async_insert": 0})

    def settle_copies(self, scope: Scope) -> None:
        """Record as done what the destination lists as it was written, and as failed what has a reason or is not."""
        self.client.command(sql.query("settle_copies"), parameters=scope.parameters)

    def taken_back(self, scope: Scope) -> int:
        """Return how many objects that were recorded as done `settle_copies` has found to be not there."""
        count = self.client.query(
            "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side = 'copied' AND object IN"
            " (SELECT object FROM storeside.objects FINAL WHERE source = {source:String}"
            " AND destination = {destination:String} AND run_id = {run_id:String} AND status = 'failed')",
            parameters=scope.parameters,
        ).first_row[0]
        return int(count)

    def forget_listings(self, scope: Scope) -> None:
        """Drop the job's listings; the outcomes stay."""
        self.begin(scope)
        super().forget_listings(scope)
