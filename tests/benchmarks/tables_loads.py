"""Loads the tables of a bucket for `tests.benchmarks.tables`: a process, so that its memory and CPU are its own."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from storeside.transfer.cli import aws, clickhouse, given_source
from storeside.transfer.many.tables_transfer import TablesTransfer
from storeside.transfer.request.request import Request
from tests.benchmarks.small_loads import LABEL


def peak() -> float:
    """Return the highest memory of this process so far, in MB; that of `resource` includes the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def main() -> None:
    """Load the tables of the source and the table in the arguments; print the cost and the totals as JSON."""
    source, table, label = sys.argv[1:]
    client = clickhouse()
    client.set_client_setting(LABEL, label)
    request = Request(given_source(source, "storeside_s3"), table, "csv")
    before = peak()
    began, cpu = time.monotonic(), time.process_time()
    report = TablesTransfer(request, client, aws("s3"), f"tables/{label}").run()
    print(
        json.dumps({
            "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu, "tables": report.tables,
            "rows": report.rows, "loaded": report.loaded, "unchanged": report.unchanged,
            "failures": report.failures, "before": before, "peak": peak(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
