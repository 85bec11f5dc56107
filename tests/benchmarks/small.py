"""The cost of a load of one small object: ``make bench-small``.

One process loads objects of two rows, each in a separate run: each into a new table, and all into one table.
ClickHouse pulls them, or the worker pushes them. With ``--before DIR``, a process of another checkout loads the
same objects into other tables, in turns of 20 loads. Statements are those in ClickHouse's log. CPU seconds of
ClickHouse are those of its process, which also merges parts and drops tables; those of the worker include its
requests to S3. The first load of a process is counted apart, because each Airflow task is a new process. The
engine's own share is that of one ``INSERT … SELECT FROM s3()`` of the same object into a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from storeside.sql.answers import first_row
from storeside.stack import demo
from storeside.stack.clients import clients_environment
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, small_loads, stacks
from tests.benchmarks.measure import bench, spread

TURN = 20
KINDS = ("into a new table", "into one table")
LOADERS = ("pull", "push")


@dataclass
class Costs:
    """Milliseconds of each load: in all, and of CPU in the worker; and of CPU in ClickHouse, by turn."""

    wall: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    clickhouse: list[float] = field(default_factory=list)

    @property
    def cpu(self) -> float:
        """Median milliseconds of CPU of one load."""
        return statistics.median(self.worker) + statistics.median(self.clickhouse)


class Process:
    """A process of a checkout, which loads objects; `label` names its statements in ClickHouse's log."""

    def __init__(self, checkout: Path, environment: dict[str, str]) -> None:
        self.label = f"small-{uuid.uuid4().hex}"
        self._process = subprocess.Popen(
            [sys.executable, small_loads.__file__, self.label],
            env={**os.environ, **environment, "PYTHONPATH": str(checkout / "include")},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def load(self, loads: Sequence[tuple[str, str, str, str]]) -> list[dict[str, float]]:
        """Load objects of bucket, key, table and loader, and return the cost of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(loads) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            sys.exit("error: the process that loads has ended")
        costs: list[dict[str, float]] = json.loads(line)
        if wrong := [cost for cost in costs if cost["rows"] != 2]:
            sys.exit(f"error: a load has {wrong[0]['rows']} rows instead of 2")
        return costs

    def end(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Bench:
    """The stack, and the objects."""

    def __init__(self, stack: Stack, count: int) -> None:
        self.stack = stack
        self.environment = clients_environment(stack)
        self.clickhouse = demo.clickhouse_client(stack)
        self._server = [psutil.Process(s.pid) for s in Supervisor(stack).status() if s.name == "clickhouse" and s.pid]
        self.keys = [f"small/{n:05}.csv" for n in range(count)]
        client = s3.of_stack("s3", stack)

        def put(key: str) -> None:
            client.put_object(Bucket=s3.TABLES, Key=key, Body=f"id,word\n1,{key}\n2,b\n".encode())

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, self.keys))

    def first(self, checkout: Path, loader: str) -> float:
        """Return the number of statements of the first load of a process, after another one created the tables."""
        process = Process(checkout, self.environment)
        process.load([(s3.TABLES, self.keys[0], f"data.first_{uuid.uuid4().hex}", loader)])
        process.end()
        return self.statements(process.label)

    def turn(self, process: Process, costs: Costs, loads: Sequence[tuple[str, str, str, str]]) -> None:
        """Load some objects, and add their costs."""
        before = measure.cpu_seconds(self._server)
        for cost in process.load(loads):
            costs.wall.append(cost["seconds"] * 1e3)
            costs.worker.append(cost["cpu"] * 1e3)
        costs.clickhouse.append((measure.cpu_seconds(self._server) - before) * 1e3 / len(loads))

    def statements(self, label: str) -> int:
        """Return the number of statements with a label."""
        self.clickhouse.command("SYSTEM FLUSH LOGS")
        asked = (
            f"SELECT count() FROM system.query_log WHERE {small_loads.LABEL} = {{l:String}} AND type != 'QueryStart'"
        )
        return int(first_row(self.clickhouse.query(asked, parameters={"l": label}))[0])

    def engine(self, count: int) -> float:
        """Return the milliseconds of CPU of ClickHouse's own INSERT of one object."""
        self.clickhouse.command("CREATE TABLE data.engine (id Nullable(Int64), word Nullable(String)) ORDER BY ()")
        before = measure.cpu_seconds(self._server)
        for key in self.keys[:count]:
            place = f"storeside_s3, filename = '{s3.TABLES}/{key}', format = 'CSVWithNames'"
            self.clickhouse.command(f"INSERT INTO data.engine SELECT * FROM s3({place})")
        return (measure.cpu_seconds(self._server) - before) * 1e3 / count


def turns(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[n : n + TURN] for n in range(0, len(keys), TURN))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--loads", type=int, default=200, help="loads of each kind (default: %(default)s)")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    with stacks.running(("s3", "clickhouse")) as stack:
        rig = Bench(stack, given.loads + 1)
        found = measured(rig, {"now": CHECKOUT, **({"before": given.before} if given.before else {})})
        engine = rig.engine(min(50, given.loads))
    print(f"{given.loads} loads of each kind in turns of {TURN}; {measure.machine()}\n")
    report(found, engine)
    return 0


@dataclass
class Found:
    """Costs by checkout, loader and kind of load; statements of a load, and of the first one of a process."""

    costs: dict[tuple[str, str, str], Costs] = field(default_factory=lambda: defaultdict(Costs))
    statements: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    firsts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def of(self, checkout: str) -> list[Costs]:
        """Return the costs of a checkout."""
        return [costs for (name, *_), costs in self.costs.items() if name == checkout]


def measured(rig: Bench, checkouts: dict[str, Path]) -> Found:
    """Load all objects in all ways."""
    found = Found()
    for loader in LOADERS:
        processes = {name: Process(checkout, rig.environment) for name, checkout in checkouts.items()}
        for name, process in processes.items():
            process.load([(s3.TABLES, rig.keys[0], f"data.warm_{loader}_{name}", loader)])
            found.firsts[name].append(rig.first(checkouts[name], loader))
        for number, kind in enumerate(KINDS):
            for some, (name, process) in itertools.product(turns(rig.keys[1:]), processes.items()):
                table = f"data.small_{number}_{loader}_{name}"
                into = {key: f"{table}_{key[6:11]}" if kind == KINDS[0] else table for key in some}
                loads = [(s3.TABLES, key, into[key], loader) for key in some]
                rig.turn(process, found.costs[name, loader, kind], loads)
                time.sleep(0.2)  # merges of these loads end before the turn of the other checkout
        for name, process in processes.items():
            process.end()
            count = 1 + len(KINDS) * (len(rig.keys) - 1)
            found.statements[name].append(rig.statements(process.label) / count)
    return found


def report(found: Found, engine: float) -> None:
    """Print the table and the figures; `engine` is the milliseconds of CPU of ClickHouse's own INSERT."""
    print("| checkout | loader | loads | ms | ms CPU in the worker | ms CPU in ClickHouse |")
    print("|---|---|---|---|---|---|")
    for (name, loader, kind), cost in found.costs.items():
        columns = (spread(cost.wall, 0), spread(cost.worker, 0), spread(cost.clickhouse, 0))
        print(f"| {name} | {loader} | {kind} | " + " | ".join(columns) + " |")
    print()
    for name, numbers in found.statements.items():
        of = "" if name == "now" else f"_{name}"
        bench(f"small.statements{of}", max(numbers), "")
        bench(f"small.first_in_a_process_statements{of}", max(found.firsts[name]), "")
    now, before = found.of("now"), found.of("before")
    bench("small.clickhouse_cpu", statistics.mean(statistics.median(cost.clickhouse) for cost in now), "ms")
    bench("small.worker_cpu", statistics.mean(statistics.median(cost.worker) for cost in now), "ms")
    bench("small.of_engine", engine / statistics.mean(cost.cpu for cost in now), "x")
    if before:
        bench("small.cpu_of_before", sum(cost.cpu for cost in now) / sum(cost.cpu for cost in before), "x")
        wall = [sum(statistics.median(cost.wall) for cost in costs) for costs in (now, before)]
        bench("small.wall_of_before", wall[0] / wall[1], "x")


if __name__ == "__main__":
    sys.exit(main())
