"""Many runs of `s3_to_clickhouse` within a minute, each of one small CSV into its own table: ``make bench-airflow``.

The embedded Airflow has a LocalExecutor with four processes. Seconds are from the first request for a run to the end
of the last run. Memory is the maximum proportional set size (PSS) of a process: of the scheduler without the tasks
that its executor runs, and of the triggerer.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress

import psutil

from storeside.sql.answers import first_row
from storeside.stack import demo, s3
from storeside.stack.airflow_api import FINAL
from tests.benchmarks import measure, stacks
from tests.benchmarks.scale import LOAD, Site
from tests.support import process

TRIGGER_SECONDS = 60.0
MOST_SECONDS = 600.0
COMPONENTS = ("scheduler", "triggerer")


class Memory:
    """The maximum memory of components, in bytes, over all calls of `look`."""

    def __init__(self, site: Site) -> None:
        self._processes = {name: process(site.stack, name) for name in COMPONENTS}
        self.most = dict.fromkeys(COMPONENTS, 0)

    def look(self) -> None:
        """Measure once."""
        for name, one in self._processes.items():
            with suppress(psutil.Error):
                self.most[name] = max(self.most[name], one.memory_full_info().pss)


def burst(site: Site, count: int, memory: Memory) -> tuple[int, float]:
    """Trigger runs evenly over a minute; return how many succeeded with their rows, and the seconds."""
    database = f"burst_{time.time_ns()}"
    site.put(s3.TABLES, ((f"{database}/{n}.csv", f"n,word\n{n},x\n".encode()) for n in range(count)))
    began = time.monotonic()
    runs = []
    for number in range(count):
        time.sleep(max(0.0, began + number * TRIGGER_SECONDS / count - time.monotonic()))
        keys, table = f"{database}/{number}.csv", f"{database}.t{number}"
        runs.append(site.api.trigger(LOAD, {"bucket": s3.TABLES, "keys": keys, "table": table}))
        memory.look()
    triggered = time.monotonic() - began
    states = dict.fromkeys(runs, "")
    while not all(state in FINAL for state in states.values()) and time.monotonic() - began < MOST_SECONDS:
        time.sleep(2)
        memory.look()
        found = {run["dag_run_id"]: run["state"] for run in site.api.runs(LOAD)}
        states = {run: found[run] for run in states}
    seconds = time.monotonic() - began
    rows = first_row(
        demo.clickhouse_client(site.stack).query(
            "SELECT count(), sum(total_rows) FROM system.tables WHERE database = {name:String} AND name NOT LIKE"
            " '%rejected'",
            parameters={"name": database},
        )
    )
    succeeded = sum(state == "success" for state in states.values())
    print(
        f"{count} runs: triggered within {triggered:.0f} s, {succeeded} succeeded within"
        f" {seconds:.0f} s; {rows[0]} tables with {rows[1]} rows",
        file=sys.stderr,
    )
    return (succeeded if tuple(rows) == (count, count) else 0), seconds


def main() -> None:
    """Run the bursts one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.airflow_runs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[40, 200], help="of a burst (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running() as stack:
        site = Site(stack)
        site.run(LOAD, bucket=s3.TABLES, keys="nothing/", table="data.nothing")  # the first task takes ten seconds
        memory = Memory(site)
        found = {count: burst(site, count, memory) for count in options.runs}
    print(f"{measure.machine()}\n")
    print("| runs triggered within a minute | succeeded | seconds |\n|---|---|---|")
    for count, (succeeded, seconds) in found.items():
        print(f"| {count} | {succeeded} | {seconds:.0f} |")
    print()
    for count, (_, seconds) in found.items():
        measure.bench(f"airflow.seconds_of_{count}_runs", seconds, "s")
    for name, most in memory.most.items():
        measure.bench(f"airflow.{name}_peak", most / 1e6, "MB")
    measure.bench("airflow.runs_succeeded", found[max(found)][0], "runs")
    if any(succeeded < count for count, (succeeded, _) in found.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
