"""Tests one connection for Airflow's button *Test*, with the doctor's checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from storeside.doctor.findings import Finding, without_secrets
from storeside.errors import BadInput

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from storeside.doctor.connections import Connection as Plain
    from storeside.doctor.report import Report

# Seconds that a check may take after a click.
_CHECK_SECONDS = 15


def tested(connection: Connection, checks: Callable[[Report], object]) -> tuple[bool, str]:
    """Run the doctor's checks of one connection for Airflow's button.

    Returns whether all passed, and their findings; after a failure the first failed one, with its remedy. The text
    contains no secret of the connection.
    """
    from storeside.doctor.report import Report

    findings: list[Finding] = []
    try:
        checks(Report(_CHECK_SECONDS, findings.append))
    except BadInput as e:  # the connection lacks a field
        return False, str(e)
    shown = list(without_secrets(findings, plain(connection).secrets()))
    if failed := next((finding for finding in shown if finding.state == "failed"), None):
        return False, f"{failed.found}: {failed.remedy}"
    return True, "; ".join(f"{finding.check}: {finding.found}" for finding in shown)


def plain(c: Connection) -> Plain:
    """Return a connection as the doctor takes it."""
    from storeside.doctor.connections import Connection as Plain

    return Plain(c.conn_id, c.host or "", c.port, c.login or "", c.password or "", c.schema or "", c.extra_dejson)
