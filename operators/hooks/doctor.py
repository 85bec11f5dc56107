"""Runs the doctor's checks on Airflow connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from storeside.aistore.cluster import cluster_of
from storeside.doctor.findings import Finding
from storeside.operators.hooks.button import plain

if TYPE_CHECKING:
    from airflow.sdk import Connection


def look(connections: Mapping[str, Connection], bucket: str, queue: str, *, write: bool) -> list[Finding]:
    """Check the systems behind the connections with the clients that the operators use.

    `connections` maps systems to connections, not ids, because threads of the triggerer cannot look connections up.
    Raises TransferInputError for an invalid bucket name.
    """
    from storeside.doctor.connections import systems
    from storeside.doctor.examination import examine
    from storeside.operators.hooks.transfer import clickhouse_client, on_servers_of, s3_client, sqs_client

    given = {system: plain(connection) for system, connection in connections.items()}
    made: dict[str, Any] = {}
    if aws := connections.get("aws"):
        made |= {"s3": lambda: s3_client(aws), "sqs": lambda: sqs_client(aws)}
    for role in ("clickhouse", "ledger", "pages"):
        if role in connections:
            house = connections.get("clickhouse", connections[role])
            made[role] = partial(clickhouse_client, on_servers_of(house, connections[role]))
    if store := connections.get("aistore"):
        made["aistore"] = lambda: cluster_of(store)
    return examine(systems(given, bucket, queue=queue, write=write, **made))


def lines(findings: Sequence[Finding]) -> str:
    """Return the findings as text for the log, one or more lines per finding."""
    return "\n".join(line for finding in findings for line in finding.lines())
