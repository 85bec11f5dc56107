"""The ledger of copies and transforms.

It records the outcome of each object version. It also joins the listings of a job's two buckets inside ClickHouse, so
neither the memory nor the time of a worker grows with the number of objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from storeside import sql
from storeside.errors import StoresideError, Transient
from storeside.ledger.listing import Row
from storeside.ledger.scope import REASONS, LeftOut, Others, Pending, Plan, Scope, Totals
from storeside.sql.acceptance import accept
from storeside.sql.answers import first_row
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.httpclient import HttpClient

_LISTING = dict.fromkeys(("job", "side", "object", "destination_object", "size", "version", "reason"), "String")
_LISTING["size"] = "UInt64"
_RUN = dict.fromkeys(("listed", "skipped", "done", "failed", "bytes_in", "bytes_out"), "UInt64")
_RUN |= dict.fromkeys(("seconds", "job_seconds"), "Float64")
# `planned` marks a complete plan. It is deleted first, because a task resumes only complete plans.
_PLANNED = (
    "planned", "pending", "known_bad", "forgiven", "refused", "accepted", "changed", "reason", "final", "left_out",
    "facts", "member", "left_out_member", "reported", "announced", "incomplete", "obsolete", "submitted",
)  # fmt: skip
_BATCH = 20_000
# The kinds of entries in a server's log about an object: a failure that may pass, one that may not, that its
# transformer left it out, or the facts of its result.
Reported = Literal["reason", "final", "left_out", "facts"]
_SYNCHRONOUS = {"async_insert": 0}


class LedgerTransientError(StoresideError, Transient):
    """ClickHouse did not store all sent rows exactly once."""


class Ledger:
    """Reads and writes ``storeside.objects`` and ``storeside.listings`` through a clickhouse-connect client."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client

    def create(self) -> None:
        """Create the tables, or bring them up to date. Raises DatabaseError."""
        migrate(self.client)

    def record_listing(self, scope: Scope, side: str, rows: Iterable[Row]) -> int:
        """Replace one side of a job's listing with `rows`.

        Streams in batches; returns the number of rows. The time when a listing of the source began is stored, too.
        Raises LedgerTransientError when ClickHouse did not store the rows exactly once, because the client repeats an
        INSERT whose answer was lost.
        """
        self.drop(scope, side)
        if side == "source":
            self.drop(scope, "listing")
            self.insert_listing([(scope.job, "listing", "", "", 0, "", "")])
        sent = self.insert_listing((scope.job, side, *row) for row in rows)
        if (arrived := self._sides(scope).get(side, 0)) != sent:
            raise LedgerTransientError(f"ClickHouse stored {arrived} of {sent} listed objects: list again")
        return sent

    def record_ignored(self, scope: Scope, counts: Mapping[str, int]) -> None:
        """Store how many objects the listing of the source leaves out, by the pattern of their names."""
        self.drop(scope, "ignored")
        if counts:
            self.insert_listing((scope.job, "ignored", name, "", count, "", "") for name, count in counts.items())

    def ignored(self, scope: Scope) -> dict[str, int]:
        """Return the numbers that `record_ignored` stored."""
        query = "SELECT object, size FROM storeside.listings WHERE job = {job:String} AND side = 'ignored'"
        rows = self.client.query(query, parameters={"job": scope.job}).result_rows
        return {name: int(count) for name, count in rows}

    def strays(self, scope: Scope, limit: int) -> tuple[int, list[str]]:
        """Return how many names the job is given something of that are no objects of it, and the first of them."""
        query = (
            "SELECT object, count() OVER () FROM storeside.listings WHERE job = {job:String} AND side = 'stray'"
            " ORDER BY object LIMIT {limit:UInt32}"
        )
        rows = self.client.query(query, parameters={"job": scope.job, "limit": limit}).result_rows
        return int(rows[0][1]) if rows else 0, [name for name, _ in rows]

    def insert_listing(self, rows: Iterable[tuple[Any, ...]]) -> int:
        """Add rows to ``storeside.listings`` in batches; return their number."""
        count = 0
        for batch in _batches(rows):
            self._insert("storeside.listings", batch, _LISTING)
            count += len(batch)
        return count

    def _insert(self, table: str, rows: Sequence[Sequence[Any]], columns: Mapping[str, str]) -> None:
        names, types = list(columns), list(columns.values())
        self.client.insert(table, rows, column_names=names, column_type_names=types, settings=_SYNCHRONOUS)

    def plan(
        self,
        scope: Scope,
        *,
        retry_failed: bool,
        keeps_result: bool,
        trusts_failures: bool = True,
        splits: bool = False,
        several: bool = False,
        record: bool = True,
    ) -> Plan:
        """Compute the plan from the recorded listings, and store it as the job's ``pending`` side.

        With `keeps_result`, an object is done only if its result still exists at the destination. With
        `trusts_failures`, earlier failures were caused by the objects, not by their server, and are not retried,
        unless the scope's effect or options differ.
        Unless `record` is off, objects with names that AIStore cannot store, and objects whose results would have the
        same name as those of others, are recorded as failed; see `storeside.ledger.owners`. With `splits`, so are
        shards whose members could get the names of others. With `several`, an object is done only if all its results
        still exist.
        """
        for side in _PLANNED:
            self.drop(scope, side)
        self.client.command(
            sql.query("plan"),
            parameters={
                **scope.parameters,
                "retry_failed": retry_failed,
                "keeps_result": keeps_result,
                "trusts_failures": trusts_failures,
                "splits": splits,
                "several": several,
            },
        )
        if record:
            self.client.command(sql.query("settle_refused"), parameters=scope.parameters)
            # for `parts`, or for claim_results_of_running.sql
            shared = (_whole(scope).job, "", 0, scope.options, scope.selection)
            own = (scope.source, scope.destination, 0, scope.options, scope.effect)
            self.insert_listing([(scope.job, "planned", *(own if keeps_result else shared))])
        return self._plan(self._sides(scope))

    def plan_lost(self, scope: Scope) -> int:
        """Add the objects whose earlier results the job removed to the plan; return the number of pending objects."""
        self.client.command(sql.query("plan_lost"), parameters={"job": scope.job})
        return self._sides(scope).get("pending", 0)

    def distrust(self, scope: Scope) -> None:
        """Copy results that do not belong to the current objects from the job's ``after`` to its ``before`` side.

        For jobs whose results may be stored together with their objects in the same run.
        """
        self.drop(scope, "before")
        self.client.command(sql.query("distrust"), parameters=scope.parameters)

    def planned(self, scope: Scope) -> Plan | None:
        """Return the recorded plan of the job; None when there is no complete plan.

        ClickHouse writes a plan block by block, so a killed query leaves a part of a plan.
        """
        counts = self._sides(scope)
        return self._plan(counts) if "planned" in counts else None

    def is_overtaken(self, scope: Scope) -> bool:
        """Return whether another transformer has made some of the planned results since the plan, or may have."""
        return self._count(sql.query("overtaken"), scope) > 0

    def record_submitted(self, scope: Scope, job_id: str) -> None:
        """Record that AIStore's job `job_id` belongs to this job, for a later try of its task."""
        self.insert_listing([(scope.job, "submitted", job_id, "", 0, "", "")])

    def has_submitted(self, scope: Scope, job_id: str) -> bool:
        """Return whether a try of this job's task submitted AIStore's job `job_id`."""
        query = (
            "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side = 'submitted'"
            " AND object = {id:String}"
        )
        return int(first_row(self.client.query(query, parameters={"job": scope.job, "id": job_id}))[0]) > 0

    def shared_names(self, scope: Scope) -> tuple[int, str, str]:
        """Return how many objects this plan or an earlier one refused because results of others have the same names.

        The other values are the first of these objects, and the reason.
        """
        query = (
            "SELECT count(), min(object), argMin(reason, object) FROM storeside.listings"
            " WHERE job = {job:String} AND side IN ('refused', 'known_bad', 'forgiven') AND reason != ''"
            " AND object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'source' AND reason != '')"
        )
        count, name, reason = first_row(self.client.query(query, parameters=scope.parameters))
        return int(count), str(name), str(reason)

    def parts(self, scope: Scope) -> list[Scope]:
        """Return the scopes of the planned jobs of intermediate results between the scope's buckets in its run.

        Tasks of one run may divide a bucket between them, so there is one job for each selection of objects. A plan
        of an earlier version of Storeside states no selection.
        """
        whole = _whole(scope)
        rows = self.client.query(
            "SELECT DISTINCT reason, version FROM storeside.listings"
            " WHERE side = 'planned' AND (object = {job:String} OR job = {job:String}) ORDER BY reason, version",
            parameters={"job": whole.job},
        ).result_rows
        return [replace(whole, selection=selection, options=options) for selection, options in rows]

    def _sides(self, scope: Scope) -> dict[str, int]:
        """Return the number of rows on each side of the job's listings."""
        rows = self.client.query(
            "SELECT side, count() FROM storeside.listings WHERE job = {job:String} GROUP BY side",
            parameters={"job": scope.job},
        ).result_rows
        return {side: count for side, count in rows}

    @staticmethod
    def _plan(counts: Mapping[str, int]) -> Plan:
        return Plan(
            listed=counts.get("source", 0),
            pending=counts.get("pending", 0),
            known_bad=counts.get("known_bad", 0),
            refused=counts.get("refused", 0),
        )

    def missing(self, scope: Scope, after: str, limit: int, *, final: bool = False) -> list[Pending]:
        """Return up to `limit` pending objects with names greater than `after` that have no fresh result.

        Objects that failed for good are included only with `final`, and those that were left out, and those of
        `record_changed`, never.
        """
        rows = self.client.query(
            "SELECT object, destination_object, size, version"
            " FROM storeside.job_results(job = {job:String}, effect = {effect:String})"
            " WHERE NOT fresh AND object > {after:String} AND ({final:Bool} OR object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'final'))"
            " AND object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side IN ('changed', 'left_out'))"
            " ORDER BY object LIMIT {limit:UInt32}",
            parameters={**scope.parameters, "after": after, "limit": limit, "final": final},
        ).result_rows
        return [Pending(*row) for row in rows]

    def unchanged(self, scope: Scope, after: str, limit: int) -> list[Pending]:
        """Return up to `limit` pending objects with names greater than `after` whose results the job left unchanged.

        Copies are returned only if they are as large as their source. Objects that a transform failed for good
        or left out are not returned.
        """
        rows = self.client.query(
            "SELECT object, destination_object, size, version"
            " FROM storeside.job_results(job = {job:String}, effect = {effect:String})"
            " WHERE NOT fresh AND object > {after:String} AND destination_object IN"
            " (SELECT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'after')"
            " AND if({effect:String} = '', result_size = size, object NOT IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side IN ('final', 'left_out')))"
            " AND object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'changed')"
            " ORDER BY object LIMIT {limit:UInt32}",
            parameters={**scope.parameters, "after": after, "limit": limit},
        ).result_rows
        return [Pending(*row) for row in rows]

    def stale(self, scope: Scope, after: str, limit: int) -> list[str]:
        """Return up to `limit` pending objects, greater than `after`, whose copies in the cluster are other versions.

        The job's ``held`` side has the versions of these copies; one that is unknown counts as another version.
        Objects with a fresh result are left out.
        """
        rows = self.client.query(
            "SELECT r.object FROM ("
            "SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE NOT fresh) AS r"
            " INNER JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'held') AS h"
            " ON h.object = r.object WHERE r.object > {after:String}"
            " AND (h.version = '' OR if(r.version = '', h.size != r.size,"
            " NOT has(splitByChar('\\n', h.version), r.version)))"
            " ORDER BY r.object LIMIT {limit:UInt32} SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0",
            parameters={**scope.parameters, "after": after, "limit": limit},
        ).result_rows
        return [name for (name,) in rows]

    def has_results_without_copies(self, scope: Scope) -> bool:
        """Return whether an object with a fresh result has no copy of a known version in the cluster.

        The job's ``held`` side has these versions.
        """
        query = (
            "SELECT count() FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh"
            " AND object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'held'"
            " AND version != '')"
        )
        return self._count(query, scope) > 0

    def record_changed(self, scope: Scope, reason: str, *, by_now: bool) -> None:
        """Record results of other versions of their objects than the planned ones, so that they are not fresh.

        The job's ``held`` and ``now`` sides have the versions; with `by_now`, only the latter.
        """
        parameters = {**scope.parameters, "reason": reason, "by_now": by_now}
        self.client.command(sql.query("record_changed"), parameters=parameters)

    def changed(self, scope: Scope, limit: int) -> list[str]:
        """Return up to `limit` objects with a fresh result that were changed or deleted since the plan.

        The job's ``now`` side has the current versions. An object with the content of its result was replaced by an
        earlier try and is left out.
        """
        rows = self.client.query(
            "SELECT r.object FROM"
            " (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r"
            " LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'now') AS n"
            " ON n.destination_object = r.object WHERE n.version != r.version"
            " AND splitByChar('/', n.version)[-1] != splitByChar('/', r.result_version)[-1] LIMIT {limit:UInt32}"
            " SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0",
            parameters={**scope.parameters, "limit": limit},
        ).result_rows
        return [name for (name,) in rows]

    def accept(self, scope: Scope, copies: Iterable[Pending]) -> None:
        """Accept the destination's objects as copies of these objects, even if they existed before the job."""
        self.insert_listing((scope.job, "accepted", p.object, p.destination_object, 0, "", "") for p in copies)

    def record_reasons(self, scope: Scope, reasons: Iterable[tuple[str, str, bool]]) -> None:
        """Store the reasons of failed objects until `settle`, as (object, reason, whether it failed for good)."""
        self.record_outcomes(scope, ((name, why, "final" if final else "reason", "") for name, why, final in reasons))

    def record_outcomes(self, scope: Scope, outcomes: Iterable[tuple[str, str, Reported, str]]) -> None:
        """Store what servers report of objects until `settle`, as (object, reason, kind, facts)."""
        self.insert_listing((scope.job, kind, name, "", 0, facts, why) for name, why, kind, facts in outcomes)

    def results_of_left_out(self, scope: Scope, after: str, limit: int) -> list[str]:
        """Return up to `limit` names, greater than `after`, of earlier results of objects that the job left out.

        Call it before `settle`, which replaces the record of these results.
        """
        asked = {**scope.parameters, "after": after, "limit": limit}
        return [name for (name,) in self.client.query(sql.query("results_of_left_out"), parameters=asked).result_rows]

    def left_out(self, scope: Scope) -> LeftOut:
        """Return how many of the job's listed objects are left out, now or in earlier runs, by their reasons."""
        asked = {**scope.parameters, "limit": REASONS}
        rows = self.client.query(sql.query("left_out"), parameters=asked).result_rows
        return LeftOut(int(rows[0][2]) if rows else 0, {reason: int(count) for reason, count, _ in rows})

    def has_reasons(self, scope: Scope) -> bool:
        """Return whether the job has a failed object so far."""
        query = "SELECT count() FROM storeside.listings WHERE job = {job:String} AND side IN ('reason', 'final')"
        return self._count(query, scope) > 0

    def settle(self, scope: Scope, *, record_done: bool, no_reason: str, remote: bool = False) -> None:
        """Record every pending object as done or as failed for good.

        Without `record_done`, only failures are recorded. `no_reason` is the reason of failed objects without one; if
        it is empty, these objects were not tried and are not recorded. In a `remote` source, only objects that the
        transformer refused have failed for good.
        """
        self.client.command(
            sql.query("settle"),
            parameters={**scope.parameters, "record_done": record_done, "no_reason": no_reason, "remote": remote},
        )

    def settle_in_place(self, scope: Scope) -> None:
        """Record the objects that were replaced by their results as done, in the versions of the ``now`` side."""
        self.client.command(sql.query("settle_in_place"), parameters=scope.parameters)

    def settle_invalid(self, scope: Scope, facts: str, key: str) -> None:
        """Record the objects in the manifest's quarantine as failed, with the expectations they do not meet.

        `facts` is the URI of the bucket of their facts, `key` the object in it with the rows of the run.
        """
        parameters = {**scope.parameters, "facts": facts, "key": key}
        self.client.command(sql.query("settle_invalid"), parameters=parameters)

    def totals(self, scope: Scope) -> Totals:
        """Return the run's totals for the listed objects so far."""
        row = first_row(self.client.query(sql.query("totals"), parameters=scope.parameters))
        return Totals(*(int(value) for value in row))

    def others(self, scope: Scope, limit: int) -> Others:
        """Return what became of planned objects whose outcome in the ledger is not of this run."""
        asked = {**scope.parameters, "limit": limit}
        failed, left, examples = first_row(self.client.query(sql.query("outcomes_of_others"), parameters=asked))
        return Others(int(failed), int(left), tuple((name, reason) for name, reason in examples))

    def fresh_results(self, scope: Scope) -> tuple[int, int, int]:
        """Return the number, the bytes and the result bytes of pending objects that have a fresh result."""
        row = first_row(
            self.client.query(
                "SELECT countIf(fresh), sumIf(size, fresh), sumIf(result_size, fresh)"
                " FROM storeside.job_results(job = {job:String}, effect = {effect:String})",
                parameters=scope.parameters,
            )
        )
        return int(row[0]), int(row[1]), int(row[2])

    def failures(self, scope: Scope, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` listed objects that failed in this run, with their reasons."""
        return [
            (name, reason)
            for name, reason in self.client.query(
                sql.query("failures"), parameters={**scope.parameters, "limit": limit}
            ).result_rows
        ]

    def known_failures(self, scope: Scope, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` objects that the plan leaves out because they failed for good before, with reasons."""
        rows = self.client.query(
            "SELECT object, reason FROM storeside.objects FINAL"
            " WHERE source = {source:String} AND destination = {destination:String}"
            " AND prepend IN ({prepend:String}, '') AND status = 'failed' AND object IN"
            " (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'known_bad')"
            " ORDER BY object, prepend DESC LIMIT 1 BY object LIMIT {limit:UInt32}",
            parameters={**scope.parameters, "limit": limit},
        ).result_rows
        return [(name, reason) for name, reason in rows]

    def accept_failed(
        self, source: str, destination: str, who: str, *,
        prefix: str = "", prepend: str | None = None, names: Collection[str] = (),
    ) -> int:  # fmt: skip
        """Accept that objects below `prefix` have no results, because they failed for good; return their number.

        `source` and `destination` are the URIs of buckets. With `prepend`, only results with this prefix are meant,
        and with `names`, only these objects. `who` is recorded in the ledger. A new version of an object is processed
        as any other. Copies are tried again by each run, unless the destination cannot store an object under its
        name.
        """
        those = (
            "source = {source:String} AND destination = {destination:String} AND startsWith(object, {prefix:String})"
            " AND (prepend = {prepend:String} OR {any_prepend:Bool}) AND status = 'failed' AND version != ''"
            " AND (effect != '' OR destination_object = '') AND accepted_by = ''"
        )
        those += " AND object IN {names:Array(String)}" if names else ""
        asked = {
            "source": source, "destination": destination, "prefix": prefix, "names": list(names),
            "prepend": prepend or "", "any_prepend": prepend is None,
        }  # fmt: skip
        return accept(self.client, "storeside.objects", those, asked, who)

    def unfit_names(self, scope: Scope) -> tuple[int, str, str]:
        """Return how many listed objects have no result because of their names, the first of them, and the reason."""
        query = (
            "SELECT count(), min(object), argMin(reason, object) FROM storeside.listings"
            " WHERE job = {job:String} AND side = 'source' AND reason != ''"
        )
        count, name, reason = first_row(self.client.query(query, parameters=scope.parameters))
        return int(count), str(name), str(reason)

    def empty_results(self, scope: Scope, after: str, limit: int) -> list[str]:
        """Return up to `limit` names, greater than `after`, of empty objects that this job left behind."""
        rows = self.client.query(
            "SELECT p.destination_object FROM storeside.listings AS a INNER JOIN storeside.listings AS p"
            " ON p.destination_object = a.destination_object WHERE a.job = {job:String} AND a.side = 'after'"
            " AND a.size = 0 AND p.job = {job:String} AND p.side = 'pending'"
            " AND p.destination_object > {after:String} ORDER BY p.destination_object LIMIT {limit:UInt32}",
            parameters={"job": scope.job, "after": after, "limit": limit},
        ).result_rows
        return [name for (name,) in rows]

    def record_run(self, run: Mapping[str, Any]) -> None:
        """Record one task of a run in ``storeside.runs``; keys are the table's columns.

        When the task has ended, its failures are kept in ``storeside.failures`` as well: a later run replaces its
        outcomes in the ledgers.
        """
        self._insert("storeside.runs", [list(run.values())], {name: _RUN.get(name, "String") for name in run})
        if run.get("state") != "running" and run.get("destination"):
            asked = {name: run[name] for name in ("run_id", "source", "destination")}
            kept = "SELECT count() FROM storeside.failures WHERE run_id = {run_id:String}"
            if run.get("failed") or int(first_row(self.client.query(kept, parameters=asked))[0]):
                self.keep_failures(**asked)

    def record_loads(self, runs: Sequence[Mapping[str, Any]]) -> None:
        """Record loads of tables within one task in ``storeside.runs``, as `record_run` does with one task.

        All have the same keys.
        """
        if runs:
            names = {name: _RUN.get(name, "String") for name in runs[0]}
            self._insert("storeside.runs", [list(run.values()) for run in runs], names)
        for run in runs:
            if run["failed"]:
                self.keep_failures(**{name: run[name] for name in ("run_id", "source", "destination")})

    def keep_failures(self, *, run_id: str, source: str, destination: str) -> None:
        """Copy the failures of a run into ``storeside.failures``; see `record_run`."""
        asked = {"run_id": run_id, "source": source, "destination": destination}
        self.client.command(sql.query("keep_failures"), parameters=asked)

    def forget_listings(self, scope: Scope) -> None:
        """Delete the job's plan, so that no task resumes it, and then its listings; the outcomes stay."""
        listed = "listing", "source", "given", "stray", "ignored", "held", "before", "after", "now"
        sides = (*listed, "claimed", "found", "rival")
        for side in (*_PLANNED, *sides):
            self.drop(scope, side)

    def _count(self, query: str, scope: Scope) -> int:
        return int(first_row(self.client.query(query, parameters=scope.parameters))[0])

    def drop(self, scope: Scope, side: str) -> None:
        """Delete one side of a job's listings."""
        self.client.command(f"ALTER TABLE storeside.listings DROP PARTITION ('{scope.job}', '{side}')")


def _whole(scope: Scope) -> Scope:
    return replace(scope, selection="")


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
