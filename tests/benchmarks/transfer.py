"""Loads from S3 into ClickHouse compared with the engine itself, Airbyte, dlt and sling: ``make bench-transfer``.

All cases run interleaved: hand-written ``INSERT … SELECT FROM s3()`` statements, which are the limit, Storeside's
loaders, and the peers, which only read. versitygw serves the objects. Every load writes to a new MergeTree table. The
benchmark counts its rows, and in the first round, which is otherwise a warm-up, compares them with the rows of the
statement. At the end it lists the missed aims; the exit status is 1 if an aim was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from storeside.stack.servers.clickhouse import MEMORY_RATIO
from storeside.stack.servers.clickhouse_server import Config
from storeside.stack.servers.clickhouse_users import DATA, USER
from storeside.stack.settings import CHECKOUT, HOST, default_folder, free_ports
from storeside.stack.supervision.probes import answers
from tests.benchmarks import inventory, listing_server, measure, taxi, transfer_peers, versitygw
from tests.benchmarks.measure import bench
from tests.benchmarks.taxi import OPTIONAL, SCHEMA, Objects
from tests.benchmarks.transfer_ours import S3, ClickHouse, to_plan
from tests.benchmarks.transfer_peers import Run
from tests.benchmarks.versitygw import Gateway

BUCKET = "taxi"
COLLECTION = "bench_s3"
LISTING = "bench_listing"
FORMATS = {"parquet": "Parquet", "csv": "CSVWithNames", "jsonl": "JSONEachRow"}
TYPES = {"int64": "Int64", "double": "Float64", "string": "String", "timestamp[us]": "DateTime64(6)"}
ENGINE = "engine"
# The objects that each peer reads. Slow peers read fewer rows, of which their start is still a small part.
PEERS = {"airbyte": ("parquet", 100_000), "dlt": ("parquet", taxi.MONTH_ROWS), "sling": ("csv", 500_000)}
PARTS = ("parquet", "csv", "jsonl", "five", "small", "large", *PEERS, "plan", "inventory")
LONG = ("five", "small", "large")
REPEATS = 3
START_SECONDS = 60
QUERY_SECONDS = 3600
# The aim of each figure: a minimum; for seconds, megabytes and the cost of small objects a maximum.
AIMS = {
    "pull_of_engine": 0.95,
    "pull_of_engine_one_file": 0.95,
    "pull_of_default_engine": 1.15,
    "push_of_engine": 0.9,
    "push_of_engine_one_file": 0.9,
    "push_changed_of_engine": 0.5,
    "csv_of_engine": 0.9,
    "jsonl_of_engine": 0.9,
    "vs_airbyte": 300,
    "vs_dlt": 8,
    "vs_sling": 4,
}
LIMITS = {"small_objects_cost": 1.5, "plan_1m_seconds": 60, "plan_1m_mb": 300, "plan_10m_seconds": 120}
# Published or measured elsewhere, not by this script: what, rows, seconds.
ELSEWHERE = (
    ("Airbyte into ClickHouse (DoubleCloud's article), one file", 3_174_394, 932),
    ("DoubleCloud's connector into ClickHouse (the article), one file", 3_174_394, 129),
    ("Airbyte (the article), five files", 15_845_558, 4631),
    ("DoubleCloud's connector (the article), five files", 15_845_558, 562),
    ("Airbyte (the article), 60 million rows", 60_000_000, 12_990),
    ("DoubleCloud's connector (the article), 60 million rows", 60_000_000, 2219),
    ("Transferia, the same connector as open source, reading Parquet alone", 3_174_394, 71),
)


@dataclass(frozen=True)
class Load:
    """One load: the costs of the worker and of the engine, and the objects' bytes."""

    worker: Run
    engine_cpu: float = 0.0
    engine_mb: float = 0.0
    size: int = 0


@dataclass(frozen=True)
class Case:
    """Something to measure; `warm` ones run in the first round too, short ones several times in each."""

    name: str
    run: Callable[[bool], Load]
    warm: bool = True
    repeats: int = 1


@dataclass
class Figures:
    """The measurements of one case."""

    loads: list[Load] = field(default_factory=list)

    def median(self, of: Callable[[Load], float]) -> float:
        return statistics.median(map(of, self.loads))

    @property
    def rate(self) -> float:
        """Median rows per second of the load alone."""
        return self.median(lambda load: load.worker.rate)

    @property
    def rate_with_start(self) -> float:
        """Median rows per second, the start of the process included, as the peers are measured."""
        return self.median(lambda load: load.worker.rate_with_start)

    def beside(self, other: Figures) -> float:
        """Median of how much faster each load was than the one that ran beside it: a busy machine slows both."""
        pairs = zip(self.loads, other.loads, strict=True)
        return statistics.median(one.worker.rate / another.worker.rate for one, another in pairs)

    @property
    def bytes_per_second(self) -> float:
        return self.median(lambda load: load.size / load.worker.seconds)


class Server:
    """A separate ClickHouse server with the gateway's keys."""

    def __init__(self, process: psutil.Process, settings: ClickHouse, s3: S3) -> None:
        import clickhouse_connect

        self.process, self.settings, self.s3 = process, settings, s3
        self.client = clickhouse_connect.get_client(**asdict(settings), send_receive_timeout=QUERY_SECONDS)
        self._numbers = itertools.count()
        self._content: dict[str, int] = {}

    def load(self, objects: Objects, loader: str, check: bool) -> Load:
        """Load objects into a new table, with a statement of the engine or with one of Storeside's loaders."""
        with self._table() as table:
            self.client.command("SYSTEM DROP PARQUET METADATA CACHE")  # objects are loaded once, not in rounds
            before = self.begin()
            if loader == ENGINE:
                worker = self._by_statement(objects, table)
            else:
                keys = objects.keys if len(objects.keys) == 1 else objects.prefix
                worker = self.ours(do="load", keys=keys, form=objects.format, table=table, loader=loader)
            cpu, peak = self.end(before)
            self._verify(objects, table, loader, check)
        return Load(worker, cpu, peak, objects.size)

    def ours(self, s3: S3 | None = None, **request: Any) -> Run:
        """Send a request to Storeside's side, which runs in a separate process."""
        request |= {"clickhouse": asdict(self.settings), "s3": asdict(s3 or self.s3), "bucket": BUCKET}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.transfer_ours"],
            input=json.dumps(request), stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        if done.returncode:
            sys.exit(f"error: our side failed to {request['do']}")
        run = Run(**json.loads(done.stdout.splitlines()[-1]))
        return replace(run, start_seconds=seconds - run.seconds)

    def _by_statement(self, objects: Objects, table: str) -> Run:
        single = len(objects.keys) == 1
        name = f"{BUCKET}/{objects.keys[0] if single else f'{objects.prefix}**.{objects.form}'}"
        source = f"s3({COLLECTION}, filename = '{name}', format = '{FORMATS[objects.format]}')"
        text = f"INSERT INTO {table} SELECT * FROM {source}"
        return self.ours(do="statement", text=text, rows=objects.rows, table=table)

    @contextlib.contextmanager
    def _table(self) -> Iterator[str]:
        table = f"{DATA}.trips_{next(self._numbers)}"
        columns = []
        for column in SCHEMA:
            kind = TYPES[str(column.type)]
            columns.append(f"`{column.name}` {f'Nullable({kind})' if column.name in OPTIONAL else kind}")
        self.client.command(
            f"CREATE TABLE {table} ({', '.join(columns)}) ENGINE = MergeTree ORDER BY tpep_pickup_datetime"
        )
        try:
            yield table
        finally:
            # At once: its merges would run on in the next measurement.
            self.client.command(f"DROP TABLE IF EXISTS {table} SYNC")

    def _verify(self, objects: Objects, table: str, loader: str, check: bool) -> None:
        rows = int(str(self.client.command(f"SELECT count() FROM {table}")))
        if rows != objects.rows:
            sys.exit(f"error: {loader} loaded {rows} rows of {objects.rows} from {objects.prefix}")
        if check:
            content = int(str(self.client.command(f"SELECT sum(cityHash64(*)) FROM {table}")))
            if content != self._content.setdefault(objects.prefix, content):
                sys.exit(f"error: {loader} loaded other values from {objects.prefix} than the one before it")

    def begin(self) -> float:
        """Begin to measure the server; give the result to `end`."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # resets its peak
        return measure.cpu_seconds([self.process])

    def end(self, before: float) -> tuple[float, float]:
        """Return the CPU seconds since then, and the peak in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
        return measure.cpu_seconds([self.process]) - before, peak


@contextlib.contextmanager
def serve(folder: Path, s3: S3, *more: S3) -> Iterator[Server]:
    """Run a ClickHouse server below `folder`, with named collections for where it reads."""
    http, tcp = free_ports(2)
    password = secrets.token_urlsafe(24)
    collections = {
        one.collection: {
            "url": f"{one.endpoint}/",
            "access_key_id": one.access_key_id,
            "secret_access_key": one.secret_access_key,
        }
        for one in (s3, *more)
    }
    config = Config(str(folder / "clickhouse"), http, tcp, password, MEMORY_RATIO, collections=collections)
    path = folder / "launcher.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(asdict(config)))
    command = [sys.executable, "-m", "storeside.stack.servers.clickhouse_server", "--config", str(path)]
    with (
        (folder / "clickhouse.log").open("wb") as log,
        subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(f"http://{HOST}:{http}/ping"):
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "clickhouse.log").read_text()
                    sys.exit(f"error: the ClickHouse server did not start: {said[-500:]}")
                time.sleep(0.1)
            yield Server(psutil.Process(process.pid), ClickHouse(HOST, http, USER, password, DATA), s3)
        finally:
            process.terminate()


def loads(server: Server, bucket: taxi.Bucket, options: argparse.Namespace) -> Iterator[Case]:
    """Yield the loads to compare; each of Storeside's loaders is next to the statement for the same objects."""

    def case(name: str, objects: Objects, *loaders: str) -> Iterator[Case]:
        for loader in (ENGINE, *(() if options.without_ours else loaders)):
            load = functools.partial(server.load, objects, loader)
            yield Case(f"{name}, {loader}", load, name != "large", 1 if name.startswith(LONG) else REPEATS)

    if "parquet" in options.only:
        yield from case("parquet", bucket.month(rows=options.rows), "pull", "push", "push_changed")
    for form in ("csv", "csv.gz", "jsonl", "jsonl.gz"):
        if form.removesuffix(".gz") in options.only:
            yield from case(form, bucket.month(form, options.text_rows), "pull")
    if "five" in options.only:
        yield from case("five", bucket.five(), "pull", "push")
    if "small" in options.only:
        small = bucket.small(options.small_form, options.small_count)
        yield from case(f"small {options.small_form}", small, "pull")
    if "large" in options.only:
        yield from case("large", bucket.large(options.large_rows), "pull", "push")


def peers(gateway: Gateway, bucket: taxi.Bucket, cache: Path, only: Sequence[str]) -> Iterator[Case]:
    """Yield the peers; their first round is not thrown away, for it takes long."""

    def case(name: str, form: str, rows: int) -> Case:
        environment = transfer_peers.install(name, cache)
        objects = bucket.month(form, rows)

        def run(check: bool) -> Load:
            done = transfer_peers.run(name, environment, gateway, BUCKET, objects.keys[0], form)
            if done.rows != rows:
                sys.exit(f"error: {name} read {done.rows} rows of {rows}")
            return Load(done, size=objects.size)

        return Case(f"{name}, reading {form}", run, warm=False)

    for name, (form, rows) in PEERS.items():
        if name in only:
            yield case(name, form, rows)


def planning(server: Server, listing: S3, count: int) -> Case:
    """Return the planning of many listed objects against a ledger of the same size."""
    planned = f"{DATA}.planned"

    def run(check: bool) -> Load:
        before = server.begin()
        done = server.ours(listing, do="plan", prefix="trips/", table=planned)
        cpu, peak = server.end(before)
        if done.rows != to_plan(count):
            sys.exit(f"error: {done.rows} objects are planned instead of {to_plan(count)}")
        return Load(replace(done, rows=count), cpu, peak)

    server.ours(do="remember", count=count, table=planned)
    return Case("plan", run, warm=False)


def planning_from_inventory(server: Server, gateway: Gateway, count: int) -> Case:
    """Return the planning of many objects of an inventory against a ledger of the same size."""
    planned, folder = f"{DATA}.inventoried", f"inventory-{count}/"
    inventory.write(gateway.client(), BUCKET, folder, count)

    def run(check: bool) -> Load:
        before = server.begin()
        done = server.ours(do="plan_from_inventory", uri=f"s3://{BUCKET}/{folder}", table=planned)
        cpu, peak = server.end(before)
        if done.rows != to_plan(count):
            sys.exit(f"error: {done.rows} objects are planned instead of {to_plan(count)}")
        return Load(replace(done, rows=count), cpu, peak)

    server.ours(do="remember", count=count, table=planned)
    return Case("inventory", run, warm=False)


def run(cases: Sequence[Case], rounds: int) -> Mapping[str, Figures]:
    """Measure all cases in turn, several times."""
    found = {case.name: Figures() for case in cases}
    for number, repeat in itertools.product(range(rounds + 1), range(REPEATS)):
        # Every second round is reversed, so that the first case is not always the same.
        for case in cases if (number + repeat) % 2 else reversed(cases):
            if repeat >= (case.repeats if number else case.warm):
                continue
            load = case.run(not number)
            print(f"round {number}: {case.name}: {_row(Figures([load]))}", file=sys.stderr, flush=True)
            if number:  # the first round warms up
                found[case.name].loads.append(load)
    return found


def _row(figures: Figures) -> str:
    """Return the columns of the table; what has no worker or no engine has nothing there."""
    more = {
        "cpu": figures.median(lambda load: load.worker.cpu_seconds),
        "engine cpu": figures.median(lambda load: load.engine_cpu),
        "mb": figures.median(lambda load: load.worker.peak_mb),
        "engine mb": figures.median(lambda load: load.engine_mb),
    }
    rows, seconds = figures.loads[0].worker.rows, figures.median(lambda load: load.worker.seconds)
    columns = [f"{rows:,}", f"{seconds:.2f}", f"{figures.rate:,.0f}", f"{figures.bytes_per_second / 1e6:.3g}"]
    columns += ["" if not value else f"{value:.{0 if 'mb' in name else 1}f}" for name, value in more.items()]
    return " | ".join(columns)


def report(found: Mapping[str, Figures], rounds: int) -> int:
    """Print the table, the aims that are missed, and the ratios as ``BENCH`` lines; returns the exit status."""
    print(f"\nmedians of {rounds} interleaved rounds; {measure.machine()}\n")
    if not transfer_peers.isolated():
        print("No network namespaces here: the peers ran with the host's network.\n")
    print("| case | rows | s | rows/s | MB/s | CPU s, worker | CPU s, engine | MB, worker | MB, engine |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} | {_row(figures)} |")
    for name, rows, seconds in ELSEWHERE:
        print(f"| {name}; not rerun here | {rows:,} | {seconds} | {rows / seconds:,.0f} | | | | | |")
    print()
    compared = ratios(found)
    lines = missed({name: value for name, (value, _) in compared.items()})
    for line in lines:
        print(line)
    for name, (value, unit) in compared.items():
        bench(f"transfer.{name}", value, unit)
    return int(bool(lines))


def missed(figures: Mapping[str, float]) -> list[str]:
    """Return a line for each of these figures that misses its aim."""
    low = [(name, "at least", aim) for name, aim in AIMS.items() if figures.get(name, aim) < aim]
    high = [(name, "at most", aim) for name, aim in LIMITS.items() if figures.get(name, aim) > aim]
    return [f"missed: transfer.{name} {figures[name]:.2f}, aim: {bound} {aim:g}" for name, bound, aim in low + high]


def ratios(found: Mapping[str, Figures]) -> Mapping[str, tuple[float, str]]:
    """Return the figures that scripts read, those of cases that were not measured left out."""

    def of_engine(*names: str) -> tuple[float, str]:
        return min(found[name].beside(found[f"{name.split(',')[0]}, {ENGINE}"]) for name in names), "x"

    def together(loader: str) -> tuple[float, str]:
        """One file, five files and the large file, because the fixed cost of a load is 0.1 to 0.3 seconds."""
        cases = [case for case in ("parquet", "five", "large") if f"{case}, {loader}" in found]
        engine = sum(found[f"{case}, {ENGINE}"].median(lambda load: load.worker.seconds) for case in cases)
        return engine / sum(
            found[f"{case}, {loader}"].median(lambda load: load.worker.seconds) for case in cases
        ), "x"

    def vs(ours: str, peer: str) -> tuple[float, str]:
        return found[ours].rate_with_start / found[peer].rate_with_start, "x"

    def small() -> tuple[float, str]:
        """Seconds of a load relative to one statement with a glob."""
        ours = next(name for name in found if name.startswith("small ") and name.endswith(", pull"))
        return 1 / of_engine(ours)[0], "x"

    wanted: Mapping[str, Callable[[], tuple[float, str]]] = {
        "pull_of_engine": lambda: together("pull"),
        "pull_of_engine_one_file": lambda: of_engine("parquet, pull"),
        "pull_of_engine_large_file": lambda: of_engine("large, pull"),
        # Several files, beside a statement with ClickHouse's default settings.
        "pull_of_default_engine": lambda: of_engine("five, pull"),
        "push_of_engine": lambda: together("push"),
        "push_of_engine_one_file": lambda: of_engine("parquet, push"),
        "push_of_engine_large_file": lambda: of_engine("large, push"),
        "push_changed_of_engine": lambda: of_engine("parquet, push_changed"),
        "large_file_seconds": lambda: (found["large, pull"].median(lambda load: load.worker.seconds), "s"),
        "vs_airbyte": lambda: vs("parquet, pull", "airbyte, reading parquet"),
        "vs_dlt": lambda: vs("parquet, pull", "dlt, reading parquet"),
        "vs_sling": lambda: vs("csv, pull", "sling, reading csv"),
        "csv_of_engine": lambda: of_engine("csv, pull", "csv.gz, pull"),
        "jsonl_of_engine": lambda: of_engine("jsonl, pull", "jsonl.gz, pull"),
        "small_objects_cost": small,
        "plan_1m_seconds": lambda: (found["plan"].median(lambda load: load.worker.seconds), "s"),
        "plan_10m_seconds": lambda: (found["inventory"].median(lambda load: load.worker.seconds), "s"),
        "plan_10m_mb": lambda: (found["inventory"].median(lambda load: load.worker.peak_mb), "MB"),
        "plan_1m_mb": lambda: (found["plan"].median(lambda load: load.worker.peak_mb), "MB"),
    }
    figures = {}
    for name, figure in wanted.items():
        with contextlib.suppress(KeyError, StopIteration, ZeroDivisionError):
            figures[name] = figure()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    add("--only", default=",".join(PARTS), help="parts to measure (default: %(default)s)")
    add("--rows", type=int, default=taxi.MONTH_ROWS, help="of the Parquet object (default: %(default)s)")
    add("--text-rows", type=int, default=taxi.MONTH_ROWS, help="of CSV and JSON Lines (default: %(default)s)")
    add("--large-rows", type=int, default=taxi.LARGE_ROWS, help="of the large Parquet object (default: %(default)s)")
    add("--small-form", choices=sorted(taxi.SMALL_ROWS), default="parquet", help="default: %(default)s")
    add("--small-count", type=int, default=taxi.SMALL_COUNT, help="small objects (default: %(default)s)")
    add("--plan-count", type=int, default=1_000_000, help="objects to plan (default: %(default)s)")
    add("--inventory-count", type=int, default=10_000_000, help="objects of an inventory (default: %(default)s)")
    add("--plan-answer-ms", type=float, default=0, help="milliseconds of a listing's answer (default: %(default)s)")
    add("--without-ours", action="store_true", help="measure the engine and the peers alone")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    cache = default_folder() / "cache" / "bench"
    bucket = taxi.Bucket(cache / "s3" / BUCKET)
    bucket.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-transfer-", dir=default_folder()) as folder,
        versitygw.serve(versitygw.build(cache), bucket.folder.parent) as gateway,
        listing_server.serve(options.plan_count, options.plan_answer_ms) as endpoint,
        serve(
            Path(folder),
            S3(gateway.endpoint, gateway.keys.access, gateway.keys.secret, versitygw.REGION, COLLECTION),
            listing := S3(endpoint, "listing", "listing", versitygw.REGION, LISTING),
        ) as server,
    ):
        cases = list(loads(server, bucket, options))
        cases += peers(gateway, bucket, cache, options.only)
        if "plan" in options.only and not options.without_ours:
            cases.append(planning(server, listing, options.plan_count))
        if "inventory" in options.only and not options.without_ours:
            cases.append(planning_from_inventory(server, gateway, options.inventory_count))
        return report(run(cases, options.rounds), options.rounds)


if __name__ == "__main__":
    sys.exit(main())
