"""``storeside doctor``: check the connections of the environment from this machine.

The command reads Airflow's variables AIRFLOW_CONN_CLICKHOUSE_DEFAULT, AIRFLOW_CONN_AWS_DEFAULT,
AIRFLOW_CONN_AISTORE_DEFAULT and AIRFLOW_CONN_HSDS_DEFAULT. Connections that are stored elsewhere are checked by the
DAG check_connections. The doctor removes all objects and tables that it creates for its checks; it leaves
Storeside's databases, which it creates if they are absent.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict

from storeside.doctor import connections
from storeside.doctor.errors import DoctorInputError
from storeside.doctor.examination import examine
from storeside.errors import BadInput
from storeside.transfer.cli import Help, ending


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and print them; return 1 if a check failed, and 2 if there is no valid connection to check."""
    parser = argparse.ArgumentParser(
        prog="storeside doctor", description=__doc__, formatter_class=Help,
        epilog=ending(
            "storeside doctor --bucket recordings --queue '' --read-only",
            "1 if a check failed, 2 if there is no valid connection to check",
        ),
    )  # fmt: skip
    parser.add_argument("--bucket", default="recordings", help="S3 bucket to check; default: %(default)s")
    parser.add_argument(
        "--queue", default="recordings-events", help="SQS queue of its events, '' for none; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print each finding as a line of JSON")
    parser.add_argument("--read-only", action="store_true", help="write no test objects and tables")
    for system, conn_id in connections.IDS.items():
        parser.add_argument(f"--{system}-conn-id", default=conn_id, metavar="ID", help="default: %(default)s")
    given = parser.parse_args(arguments)
    ids = {system: getattr(given, f"{system}_conn_id") for system in connections.IDS}
    try:
        found = connections.found(os.environ, ids)
        if not found:
            names = ", ".join(connections.PREFIX + conn_id.upper() for conn_id in ids.values())
            raise DoctorInputError(f"no connection is set: set at least one of {names}, or run check_connections")
        systems = connections.systems(found, given.bucket, queue=given.queue, write=not given.read_only)
    except BadInput as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # the findings contain its errors
    if given.json:
        results = examine(systems, lambda finding: print(json.dumps(asdict(finding)), flush=True))
        return 1 if any(finding.state == "failed" for finding in results) else 0
    print(f"from {socket.gethostname()}:", flush=True)
    results = examine(systems, lambda finding: print(*finding.lines(), sep="\n", flush=True))
    failed = sum(finding.state == "failed" for finding in results)
    missing = [ids[system] for system in ids if system not in found]
    if missing:
        print(f"not set, and therefore not checked: {', '.join(missing)}")
    print(f"{failed} of {len(results)} checks failed" if failed else f"no check failed ({len(results)} checks)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
