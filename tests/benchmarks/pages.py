"""What the pages ask of a ledger of many objects: seconds of each question, ``make bench-pages``.

The ledger is made up in ClickHouse, and everything else is what the pages do.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

from include import sql
from include.pages import movement, objects
from include.pages.movement import Filter, Movement
from include.pages.objects import Place, Search
from include.pages.tables import Tables, write_cursor
from include.stack import cli, demo
from include.stack.settings import Stack, default_folder
from include.stack.supervisor import Supervisor
from tests.benchmarks import measure
from tests.benchmarks.measure import bench

RUNS = 40
LEDGER = """
INSERT INTO storeside.objects
    (source, destination, object, version, effect, destination_object, status, reason, bytes_in, bytes_out, run_id)
SELECT 'ais://in', 'ais://out', concat(name, '.flac'), hex(sipHash64(number)), 'e', concat(name, '.wav'),
    if(number % 1000 = 7, 'failed', 'done'), '', 140000, 280000, format('d/{{}}', toString(number % {runs}))
FROM
(
    SELECT
        number,
        format('speech/{{}}/recording-{{}}', toString(number % 977), leftPad(toString(number), 9, '0')) AS name
    FROM numbers({count})
)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="objects (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of every question (default: %(default)s)")
    options = parser.parse_args()
    folder = default_folder() / "bench"
    if (old := Stack.load(folder)) is not None:
        Supervisor(old).stop()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stack = cli.up(folder, only=("clickhouse",))
    try:
        run(stack, options.count, options.rounds)
    finally:
        Supervisor(stack).stop()


def run(stack: Stack, count: int, rounds: int) -> None:
    """Make the ledger, and ask everything several times in turn."""
    client = demo.clickhouse_client(stack)
    for statement in (*sql.schema(), *sql.schema("transfer")):
        client.command(statement)
    client.command(LEDGER.format(count=count, runs=RUNS))
    print(f"{count} objects; {measure.machine()}")
    tables = Tables(client)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, question in questions(tables, count).items():
            began = time.monotonic()
            assert question(), name
            seconds.setdefault(name, []).append(time.monotonic() - began)
    for name, measured in seconds.items():
        bench(f"pages.{name}", statistics.median(measured), "s")


def questions(tables: Tables, count: int) -> dict[str, Callable[[], Any]]:
    """Return the questions; each gives something true."""
    one = f"speech/8/recording-{8:09}"
    stage = Movement(
        "d/7", "d", "t", "transform", "ais://in", "ais://out", "done", 0, 0, 1, 0, 0, 0, 1.0, 1.0, time.time()
    )
    middle = write_cursor(("ais://in", "ais://out", "speech/5"))
    return {
        "first_page": lambda: objects.search(tables, Search()).rows,
        "middle_page": lambda: objects.search(tables, Search(), middle).rows,
        "name_begins": lambda: objects.search(tables, Search(f"{one}.wav")).rows,
        "name_has": lambda: objects.search(tables, Search(f"{count - 1:09}", anywhere=True)).rows,
        "name_has_not": lambda: objects.search(tables, Search("absent", anywhere=True)).rows == [],
        "failed": lambda: objects.search(tables, Search(status="failed")).rows,
        "lineage": lambda: objects.lineage(tables, Place("ais://out", f"{one}.wav")).steps,
        "objects_of_a_run": lambda: movement.outcomes(tables, stage).rows,
        "failures_of_a_run": lambda: movement.outcomes(tables, stage, "failed").rows,
        "runs": lambda: movement.movements(tables, Filter()).rows == [],
    }


if __name__ == "__main__":
    main()
