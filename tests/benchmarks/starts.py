"""CPU of starts: the command for a small load, its ``--help``, and DAG files in a parse: ``make bench-starts``.

- **command**: ``python -m storeside.transfer`` for one object of two rows, each time into a new table.
- **help**: the same command with ``--help``.
- **dag_file**: the import of one DAG file in a process that has imported what Airflow itself needs to read it, so
  that only the work of the file and of its operators counts. Objects that Airflow has made are frozen
  (``gc.freeze``), because a collection of all of them belongs to no file.

With ``--before DIR``, another checkout starts in turns with this one. CPU seconds are those of the new process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from storeside.stack.clients import clients_environment
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench, spread

# Prints the milliseconds of CPU of each DAG file's import. The first import of a file, in another process, only
# finds the modules of Airflow that it needs.
PARSE = """
import gc, importlib, json, os, pathlib, sys, time
import airflow.sdk
airflow.sdk.Asset(name="a", uri="s3://a")
def forked(work):
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = json.loads(answer.read())
    os.waitpid(pid, 0)
    return found
def needed():
    importlib.import_module(name)
    return [module for module in sys.modules if module.partition(".")[0] not in ("storeside", "dags")]
def cost():
    began = time.process_time()
    importlib.import_module(name)
    return (time.process_time() - began) * 1e3
names = sorted(f"dags.{path.stem}" for path in pathlib.Path("dags").glob("[a-z]*.py"))
for name in names:
    for module in forked(needed):
        if module.partition(".")[0] in ("airflow", "croniter"):
            importlib.import_module(module)
gc.collect()
gc.freeze()
print("COSTS", json.dumps({name: forked(cost) for name in names}))
"""


def started(checkout: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Run Python with these arguments in a checkout; return its CPU seconds and its output."""
    before = os.times()
    done = subprocess.run(
        [str(checkout / ".venv/bin/python"), *arguments], cwd=checkout, check=False, capture_output=True, text=True,
        env={**os.environ, **environment, "PYTHONPATH": f"{checkout}:{checkout / 'include'}"},
    )  # fmt: skip
    after = os.times()
    if done.returncode:
        sys.exit(f"error: {' '.join(arguments[:3])} ended with {done.returncode}: {done.stderr[-500:]}")
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return used, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind (default: %(default)s)")
    parser.add_argument("--before", type=Path, help="another checkout with its environment, to compare with")
    given = parser.parse_args()
    checkouts = {"now": CHECKOUT, **({"before": given.before.resolve()} if given.before else {})}
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with stacks.running(("s3", "clickhouse")) as stack:
        environment = clients_environment(stack)
        s3.of_stack("s3", stack).put_object(Bucket=s3.TABLES, Key="starts/a.csv", Body=b"id,word\n1,a\n2,b\n")
        place = ("--collection", "storeside_s3", "--format", "csv")
        for n in range(given.rounds + 1):  # the first round compiles modules, and is left out
            for name, checkout in checkouts.items():
                table = f"data.start_{uuid.uuid4().hex}"
                load = ("-m", "storeside.transfer", f"s3://{s3.TABLES}/starts/a.csv", table, *place)
                for kind, arguments in (("command", load), ("help", ("-m", "storeside.transfer", "--help"))):
                    used, _ = started(checkout, arguments, environment)
                    costs[kind, name] += [used] * bool(n)
    for n in range(given.rounds + 1):
        for name, checkout in checkouts.items():
            _, printed = started(checkout, ("-c", PARSE), {})
            files = json.loads(printed.partition("COSTS ")[2])
            for file, used in files.items():
                costs[file, name] += [used / 1e3] * bool(n)
    report(costs, given.rounds)
    return 0


def report(costs: Mapping[tuple[str, str], list[float]], rounds: int) -> None:
    """Print the table and the figures."""
    print(f"{rounds} starts of each kind; {measure.machine()}\n\n| start | checkout | ms of CPU |\n|---|---|---|")
    for (kind, name), used in costs.items():
        print(f"| {kind} | {name} | {spread([one * 1e3 for one in used], 0)} |")
    print()
    middle = {key: statistics.median(used) for key, used in costs.items()}
    for name in dict.fromkeys(name for _, name in costs):
        of = "" if name == "now" else f"_{name}"
        files = [used for (kind, checkout), used in middle.items() if kind.startswith("dags.") and checkout == name]
        bench(f"start.command_cpu{of}", middle["command", name], "s")
        bench(f"start.help_cpu{of}", middle["help", name], "s")
        bench(f"start.dag_file_own_cpu{of}", max(files) * 1e3, "ms")


if __name__ == "__main__":
    sys.exit(main())
