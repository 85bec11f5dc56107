"""Many runs of `s3_to_clickhouse` within a minute, each of one small CSV into its own table: ``make bench-airflow``.

The embedded Airflow has a LocalExecutor with four processes. Seconds are from the first request for a run to the end
of the last run. CPU seconds are those of all processes of the stack, which depend less on other work of the machine.
Memory is the maximum proportional set size (PSS) of the scheduler and of the triggerer with all their child
processes; those of the scheduler include the tasks.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import psutil

from storeside.sql.answers import first_row
from storeside.stack import demo
from storeside.stack.airflow.api import FINAL
from storeside.stack.servers import s3
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, stacks
from tests.benchmarks.scale import LOAD, Site
from tests.support import allow_in_forms

TRIGGER_SECONDS = 60.0
MOST_SECONDS = 600.0
COMPONENTS = ("scheduler", "triggerer")


class Processes:
    """The processes of the stack; `most` is the maximum memory of components in bytes over all calls of `look`."""

    def __init__(self, site: Site) -> None:
        self._all = {one.name: psutil.Process(one.pid) for one in Supervisor(site.stack).status() if one.pid}
        self.most = dict.fromkeys(COMPONENTS, 0)

    def look(self) -> None:
        """Measure the memory once."""
        for name in COMPONENTS:
            self.most[name] = max(self.most[name], sum(map(_memory, self._tree(name))))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return measure.cpu_seconds(self._all.values())

    def _tree(self, name: str) -> list[psutil.Process]:
        return [self._all[name], *self._all[name].children(recursive=True)]


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


@dataclass(frozen=True)
class Burst:
    """The result of a burst: runs that succeeded with their rows, seconds, and CPU seconds of a run."""

    succeeded: int
    seconds: float
    cpu: float


def burst(site: Site, count: int, processes: Processes) -> Burst:
    """Trigger runs evenly over a minute, and wait for their end for up to ten minutes."""
    database = f"burst_{time.time_ns()}"
    site.put(s3.TABLES, ((f"{database}/{n}.csv", f"n,word\n{n},x\n".encode()) for n in range(count)))
    began, cpu = time.monotonic(), processes.cpu_seconds()
    runs = []
    for number in range(count):
        time.sleep(max(0.0, began + number * TRIGGER_SECONDS / count - time.monotonic()))
        keys, table = f"{database}/{number}.csv", f"{database}.t{number}"
        runs.append(site.api.trigger(LOAD, {"bucket": s3.TABLES, "keys": keys, "table": table}))
        processes.look()
    triggered = time.monotonic() - began
    states = dict.fromkeys(runs, "")
    while not all(state in FINAL for state in states.values()) and time.monotonic() - began < MOST_SECONDS:
        time.sleep(2)
        processes.look()
        found = {run["dag_run_id"]: run["state"] for run in site.api.runs(LOAD)}
        states = {run: found[run] for run in states}
    seconds, cpu = time.monotonic() - began, processes.cpu_seconds() - cpu
    rows = first_row(
        demo.clickhouse_client(site.stack).query(
            "SELECT countIf(total_rows = 1), sum(total_rows) FROM system.tables WHERE database = {name:String}",
            parameters={"name": database},
        )
    )
    succeeded = sum(state == "success" for state in states.values())
    print(
        f"{count} runs: triggered within {triggered:.0f} s, {succeeded} succeeded within"
        f" {seconds:.0f} s; {rows[0]} tables with one row each, {rows[1]} rows",
        file=sys.stderr,
    )
    return Burst(min(succeeded, int(rows[0])), seconds, cpu / max(succeeded, 1))


def main() -> None:
    """Run the bursts one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.airflow_runs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[40, 200], help="of a burst (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running() as stack:
        site = Site(stack)
        allow_in_forms(site.api, tables=["*.*"], databases=["burst_*"])
        site.run(LOAD, bucket=s3.TABLES, keys="nothing/", table="data.nothing")  # the first task takes ten seconds
        processes = Processes(site)
        found = {count: burst(site, count, processes) for count in options.runs}
    print(f"{measure.machine()}\n")
    print("| runs triggered within a minute | succeeded | seconds | CPU seconds of a run |\n|---|---|---|---|")
    for count, one in found.items():
        print(f"| {count} | {one.succeeded} | {one.seconds:.0f} | {one.cpu:.1f} |")
    print()
    for count, one in found.items():
        measure.bench(f"airflow.seconds_of_{count}_runs", one.seconds, "s")
    for name, most in processes.most.items():
        measure.bench(f"airflow.{name}_peak", most / 1e6, "MB")
    measure.bench("airflow.runs_succeeded", found[max(found)].succeeded, "runs")
    if any(one.succeeded < count for count, one in found.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
