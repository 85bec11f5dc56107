"""The ledger of copies through the worker: pending objects that it copied, or that already existed."""

from __future__ import annotations

from collections.abc import Iterable

from storeside import sql
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope

_COPIED = ("adopted", "copied")
_DONE = {
    **dict.fromkeys(("source", "destination", "prepend", "effect", "run_id", "status"), "String"),
    **dict.fromkeys(("object", "version", "destination_object"), "String"),
    **dict.fromkeys(("bytes_in", "bytes_out"), "UInt64"),
    "result_version": "String",
}


class CopyLedger(Ledger):
    """A ledger that also records pending objects that were copied or already existed at the destination."""

    def begin(self, scope: Scope) -> None:
        """Delete the list of copies of an earlier try of the same run, which the ledger records as done."""
        for side in _COPIED:
            self.drop(scope, side)

    def adopt(self, scope: Scope) -> int:
        """Record the pending objects that the destination already has, by size and checksum; return their number."""
        self.client.command(sql.query("adopt"), parameters=scope.parameters)
        query = "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side = 'adopted'"
        return self._count(query, scope)

    def uncopied(self, scope: Scope, after: str, limit: int) -> list[Pending]:
        """Return up to `limit` pending objects with names greater than `after` that must be copied."""
        rows = self.client.query(
            "SELECT object, destination_object, size, version FROM storeside.listings"
            " WHERE job = {job:String} AND side = 'pending' AND object > {after:String} AND object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'adopted')"
            " ORDER BY object LIMIT {limit:UInt32}",
            parameters={"job": scope.job, "after": after, "limit": limit},
        ).result_rows
        return [Pending(*row) for row in rows]

    def record_copies(self, scope: Scope, rows: Iterable[tuple[Pending, str]]) -> None:
        """Record objects as done with their versions at the destination, after answers with the right checksums.

        After a kill, the next try does not copy them again. `settle_copies` records a copy as failed if the
        destination does not list it.
        """
        copied = list(rows)
        self.insert_listing(
            (scope.job, "copied", p.object, p.destination_object, p.size, written, "") for p, written in copied
        )
        if copied:
            of = (scope.source, scope.destination, scope.prepend, scope.effect, scope.run_id, "done")
            done = [
                [*of, p.object, p.version, p.destination_object, p.size, p.size, version] for p, version in copied
            ]
            self._insert("storeside.objects", done, _DONE)

    def settle_copies(self, scope: Scope) -> None:
        """Record each copy as done if the destination lists it as written, otherwise as failed.

        Objects without a copy are recorded as failed if they have a reason.
        """
        self.client.command(sql.query("settle_copies"), parameters=scope.parameters)

    def taken_back(self, scope: Scope) -> int:
        """Return the number of objects that `record_copies` recorded as done, and `settle_copies` as failed."""
        return self._count(
            "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side = 'copied' AND object IN"
            " (SELECT object FROM storeside.objects FINAL WHERE source = {source:String}"
            " AND destination = {destination:String} AND prepend = {prepend:String}"
            " AND run_id = {run_id:String} AND status = 'failed')",
            scope,
        )

    def forget_listings(self, scope: Scope) -> None:
        """Delete the job's listings; the outcomes stay."""
        self.begin(scope)
        super().forget_listings(scope)
