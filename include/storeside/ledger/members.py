"""The ledger of members of shards: each failed member is an object ``shard/member`` that failed.

In the same way, each member that the transformer left out is an object that is left out.

A server reports each shard that it delivered. A result that no server reported does not count, because its failed
members are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from storeside import sql
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import REASONS, LeftOut, Scope
from storeside.sql.answers import first_row

# Shard, member and reason, with the time in seconds at which the server reported the shard.
Failed = tuple[str, str, str, float]


def record(
    ledger: Ledger, scope: Scope, failed: Iterable[Failed], left_out: Iterable[Failed],
    reported: Iterable[tuple[str, float]],
) -> None:  # fmt: skip
    """Store members without results, then the delivered shards with the times of their deliveries, until `settle`."""
    for side, members in (("member", failed), ("left_out_member", left_out)):
        ledger.insert_listing(
            (scope.job, side, f"{shard}/{member}", shard, 0, _time(time), reason)
            for shard, member, reason, time in members
        )
    ledger.insert_listing((scope.job, "reported", shard, "", 0, _time(time), "") for shard, time in reported)


def unreported(ledger: Ledger, scope: Scope) -> set[str]:
    """Return the names of results of pending shards that no server reported."""
    rows = ledger.client.query(
        "SELECT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'pending'"
        " AND object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'reported')",
        parameters=scope.parameters,
    ).result_rows
    return {name for (name,) in rows}


def pending(ledger: Ledger, scope: Scope) -> dict[str, str]:
    """Return the versions of the pending objects of a job by their names."""
    query = "SELECT object, version FROM storeside.listings WHERE job = {job:String} AND side = 'pending'"
    return {name: version for name, version in ledger.client.query(query, parameters=scope.parameters).result_rows}


def settle(ledger: Ledger, scope: Scope) -> None:
    """Record members of delivered shards without results, and as done those of earlier runs that have one now."""
    ledger.client.command(sql.query("settle_members"), parameters=scope.parameters)
    ledger.client.command(sql.query("mend_members"), parameters=scope.parameters)


def failures(ledger: Ledger, scope: Scope, limit: int) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of failed members of delivered shards, and up to `limit` of them with their reasons."""
    parameters = {**scope.parameters, "limit": limit}
    found = "FROM storeside.job_failed_members(job = {job:String}, effect = {effect:String}) WHERE NOT left_out"
    (count,) = first_row(ledger.client.query(f"SELECT count() {found}", parameters=parameters))
    query = f"SELECT object, reason {found} ORDER BY object LIMIT {{limit:UInt32}}"
    rows = ledger.client.query(query, parameters=parameters).result_rows
    return int(count), [(name, reason) for name, reason in rows]


def left_out(ledger: Ledger, scope: Scope) -> LeftOut:
    """Return how many members of delivered shards were left out, by their reasons."""
    query = (
        "SELECT reason, count() AS members, sum(count()) OVER ()"
        " FROM storeside.job_failed_members(job = {job:String}, effect = {effect:String}) WHERE left_out"
        " GROUP BY reason ORDER BY members DESC, reason LIMIT {limit:UInt32}"
    )
    rows = ledger.client.query(query, parameters={**scope.parameters, "limit": REASONS}).result_rows
    return LeftOut(int(rows[0][2]) if rows else 0, {reason: int(count) for reason, count, _ in rows})


def _time(seconds: float) -> str:
    return f"{seconds:017.6f}"
