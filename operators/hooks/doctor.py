"""Runs the doctor's checks on Airflow connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from storeside.aistore.cluster import cluster_of
from storeside.doctor.findings import Finding, without_secrets
from storeside.errors import BadInput

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from storeside.doctor.connections import Connection as Plain
    from storeside.doctor.report import Report

# Seconds that a check may take after a click on Airflow's button.
_CHECK_SECONDS = 15


def look(connections: Mapping[str, Connection], bucket: str, queue: str, *, write: bool) -> list[Finding]:
    """Check the systems behind the connections with the clients that the operators use.

    `connections` maps systems to connections, not ids, because threads of the triggerer cannot look connections up.
    Raises TransferInputError for an invalid bucket name.
    """
    from storeside.doctor.connections import systems
    from storeside.doctor.examination import examine
    from storeside.operators.hooks.transfer import clickhouse_client, on_servers_of, s3_client, sqs_client

    plain = {system: _plain(connection) for system, connection in connections.items()}
    made: dict[str, Any] = {}
    if aws := connections.get("aws"):
        made |= {"s3": lambda: s3_client(aws), "sqs": lambda: sqs_client(aws)}
    for role in ("clickhouse", "ledger", "pages"):
        if role in connections:
            house = connections.get("clickhouse", connections[role])
            made[role] = partial(clickhouse_client, on_servers_of(house, connections[role]))
    if store := connections.get("aistore"):
        made["aistore"] = lambda: cluster_of(store)
    return examine(systems(plain, bucket, queue=queue, write=write, **made))


def tested(connection: Connection, checks: Callable[[Report], object]) -> tuple[bool, str]:
    """Run the doctor's checks of one connection for Airflow's button *Test connection*.

    Returns whether all passed, and what they found; after a failure the first one, with its remedy. The text contains
    no secret of the connection.
    """
    from storeside.doctor.report import Report

    findings: list[Finding] = []
    try:
        checks(Report(_CHECK_SECONDS, findings.append))
    except BadInput as e:  # the connection lacks a field
        return False, str(e)
    shown = list(without_secrets(findings, _plain(connection).secrets()))
    if failed := next((finding for finding in shown if finding.state == "failed"), None):
        return False, f"{failed.found}: {failed.remedy}"
    return True, "; ".join(f"{finding.check}: {finding.found}" for finding in shown)


def _plain(c: Connection) -> Plain:
    """Return a connection as the doctor takes it."""
    from storeside.doctor.connections import Connection as Plain

    return Plain(c.conn_id, c.host or "", c.port, c.login or "", c.password or "", c.schema or "", c.extra_dejson)


def lines(findings: Sequence[Finding]) -> str:
    """Return the findings as text for the log, one or more lines per finding."""
    return "\n".join(line for finding in findings for line in finding.lines())
