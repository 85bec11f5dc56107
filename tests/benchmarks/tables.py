"""Loads of one object into each of many tables in one run: ``make bench-tables``.

The objects have two rows each, and their keys name the tables, which do not exist. One process loads all of them
(``raw/{table}/`` into ``data.{table}``), and a second one finds nothing to load. CPU seconds are those of the process
that loads, of ClickHouse, and of the S3 server. The memory is the process's highest, above that of its start, with
all tables and with a tenth of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from storeside.stack.clients import clients_environment
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench


class Rig:
    """The stack, with the objects below prefixes."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.servers = {s.name: [psutil.Process(s.pid)] for s in Supervisor(stack).status() if s.pid}
        self.environment = {**os.environ, **clients_environment(stack)}
        self.environment["PYTHONPATH"] = f"{CHECKOUT / 'include'}:{CHECKOUT}"

    def put(self, prefix: str, count: int) -> None:
        """Store one object for each table."""
        client = s3.of_stack("s3", self.stack)

        def put(n: int) -> None:
            body = f"id,word\n1,{n}\n2,b\n".encode()
            client.put_object(Bucket=s3.TABLES, Key=f"{prefix}/t{n:06}/1.csv", Body=body)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, range(count)))

    def load(self, prefix: str) -> dict[str, Any]:
        """Load the tables below a prefix in a process; return its cost, with milliseconds of CPU by part."""
        before = {name: measure.cpu_seconds(processes) for name, processes in self.servers.items()}
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.benchmarks.tables_loads", f"s3://{s3.TABLES}/{prefix}/{{table}}/",
                f"data.{prefix}_{{table}}", uuid.uuid4().hex,
            ],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"error: {done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if found["failures"]:
            sys.exit(f"error: {found['failures'][0]}")
        cpu = {name: measure.cpu_seconds(processes) - before[name] for name, processes in self.servers.items()}
        return {**found, "cpu": {"worker": found["cpu"], **cpu}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tables", type=int, default=1000, help="tables (default: %(default)s)")
    given = parser.parse_args()
    count, few = given.tables, max(1, given.tables // 10)
    with stacks.running(("s3", "clickhouse")) as stack:
        rig = Rig(stack)
        rig.put("few", few)
        small = rig.load("few")
        rig.put("raw", count)
        first, second = rig.load("raw"), rig.load("raw")
    if (first["loaded"], first["rows"], second["unchanged"]) != (count, 2 * count, count):
        sys.exit(f"error: wrong totals: {first}, {second}")
    print(f"{count} tables of one object with two rows; {measure.machine()}\n")
    print("| run | s | ms of a table | ms CPU in the worker | ms CPU in ClickHouse | ms CPU in the S3 server | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, one, tables in ((f"{few} tables", small, few), ("all", first, count), ("again", second, count)):
        cpu = " | ".join(f"{one['cpu'][part] * 1e3 / tables:.1f}" for part in ("worker", "clickhouse", "s3"))
        memory = one["peak"] - one["before"]
        print(f"| {name} | {one['seconds']:.1f} | {one['seconds'] * 1e3 / tables:.0f} | {cpu} | {memory:.0f} |")
    print()
    bench("tables.seconds", first["seconds"], "s")
    bench("tables.wall_of_a_table", first["seconds"] * 1e3 / count, "ms")
    bench("tables.cpu_of_a_table", sum(first["cpu"].values()) * 1e3 / count, "ms")
    bench("tables.unchanged_cpu_of_a_table", sum(second["cpu"].values()) * 1e3 / count, "ms")
    bench("tables.memory_of_few", small["peak"] - small["before"], "MB")
    bench("tables.memory", first["peak"] - first["before"], "MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
