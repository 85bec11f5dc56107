"""The pages over a ledger of many objects and runs, seconds of each page and query: ``make bench-pages``.

ClickHouse generates the ledger: ten million objects and a thousand runs. The benchmark requests the pages from
Airflow's API server, and runs their queries in ClickHouse.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import requests

from storeside.pages import movement, objects
from storeside.pages.movement import Filter, Movement
from storeside.pages.objects import Place, Search
from storeside.pages.tables import At, Tables, write_cursor
from storeside.sql.migrate import migrate
from storeside.stack import demo
from storeside.stack.settings import Stack
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench

RUNS = 1000
# The list of objects as CSV, which is no page: the first 10,000 rows.
DOWNLOAD = "download"
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


HISTORY = """
INSERT INTO storeside.runs
    (run_id, dag_id, task_id, kind, source, destination, state, listed, done, failed, bytes_in, bytes_out, seconds)
SELECT format('d/{{}}', toString(number)), 'd', 't', 'transform', 'ais://in', 'ais://out', 'partial', {each}, {each},
    9, 140000, 280000, 60
FROM numbers({runs})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="objects (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of every question (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running(("s3", "clickhouse", "airflow")) as stack:
        run(stack, options.count, options.rounds)


def run(stack: Stack, count: int, rounds: int) -> None:
    """Make the ledger, and ask everything several times in turn."""
    client = demo.clickhouse_client(stack)
    migrate(client)
    client.command(LEDGER.format(count=count, runs=RUNS))
    client.command(HISTORY.format(runs=RUNS, each=count // RUNS))
    print(f"{count} objects, {RUNS} runs; {measure.machine()}")
    tables = Tables(client)
    asked = {f"asks.{name}": question for name, question in questions(tables, count).items()}
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds + 1):  # the first only warms up
        for name, question in {**asked, **pages(stack)}.items():
            tables.begin()  # each question has the time of a page
            began = time.monotonic()
            assert question(), name
            seconds.setdefault(name, []).append(time.monotonic() - began)
    medians = {name: statistics.median(measured[1:]) for name, measured in seconds.items()}
    for name, median in medians.items():
        bench(f"pages.{name}", median, "s")
    slowest = max(median for name, median in medians.items() if name not in asked and name != DOWNLOAD)
    bench("pages.slowest_ms", 1000 * slowest, "ms")


def pages(stack: Stack) -> dict[str, Callable[[], Any]]:
    """Return what fetches each page, signed in."""
    login = {"username": "admin", "password": stack.secrets["airflow_admin"]}
    session = requests.Session()
    session.trust_env = False
    answer = session.post(f"{stack.url('airflow')}/auth/token", json=login, timeout=30)
    session.cookies.set("_token", answer.json()["access_token"])

    def fetch(path: str, **query: str) -> Callable[[], bool]:
        url = f"{stack.url('airflow')}/storeside/{path}"
        return lambda: session.get(url, params=query, timeout=60).status_code == 200

    recording = f"speech/8/recording-{8:09}.wav"
    return {
        "overview": fetch("overview"),
        "movement": fetch("movement"),
        "live": fetch("live"),
        "run": fetch("run", dag="d", run="7"),
        "run_failed": fetch("run", dag="d", run="7", status="failed"),
        "objects": fetch("objects"),
        "objects_by_name": fetch("objects", text=recording, begins="true"),
        "objects_anywhere": fetch("objects", text="absent"),
        "objects_failed": fetch("objects", status="failed"),
        "object": fetch("object", bucket="ais://out", object=recording),
        "tables": fetch("tables"),
        "quality": fetch("quality"),
        "benchmarks": fetch("benchmarks"),
        "queues": fetch("queues"),
        DOWNLOAD: fetch("objects.csv"),
    }


def questions(tables: Tables, count: int) -> dict[str, Callable[[], Any]]:
    """Return the questions; each gives something true."""
    one = f"speech/8/recording-{8:09}"
    stage = Movement(
        "d/7", "t", "transform", "ais://in", "ais://out", "done", 0, 0, 1, 0, 0, 0, 1.0, 1.0, time.time()
    )
    middle = write_cursor((0, "ais://in", "ais://out", "speech/5", ""))
    return {
        "first_page": lambda: objects.search(tables, Search()).rows,
        "middle_page": lambda: objects.search(tables, Search(), At(middle)).rows,
        "name_begins": lambda: objects.search(tables, Search(f"{one}.wav")).rows,
        "name_has": lambda: objects.search(tables, Search(f"{count - 1:09}", anywhere=True)).rows,
        "name_has_not": lambda: objects.search(tables, Search("absent", anywhere=True)).rows == [],
        "failed": lambda: objects.search(tables, Search(status="failed")).rows,
        "lineage": lambda: objects.lineage(tables, Place("ais://out", f"{one}.wav")).steps,
        "objects_of_a_run": lambda: movement.outcomes(tables, stage).rows,
        "failures_of_a_run": lambda: movement.outcomes(tables, stage, "failed").rows,
        "runs": lambda: movement.movements(tables, Filter()).rows,
    }


if __name__ == "__main__":
    main()
