"""Throughput of a real cluster under the real aisloader."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
from aistore.sdk.errors import ErrBckNotFound

from storeside.aistore.buckets import Bucket
from storeside.measure.errors import MeasureCancelled, MeasureTransientError
from storeside.measure.throughput.cluster import WARM_UP_SECONDS, Measurement
from storeside.measure.throughput.group import LocalLoaders
from storeside.measure.throughput.load import Load
from storeside.measure.throughput.nodes import Sample, Targets
from storeside.measure.throughput.tables import Measurements, Second
from storeside.stack import authn
from storeside.stack.building import aisloader
from storeside.stack.settings import Stack
from tests.support import put, sizes, unique, until

OBJECT = 256 << 10


@pytest.fixture
def bucket(bucket: Bucket, aistore: Any) -> Bucket:
    """A bucket with a user's object, which must stay."""
    put(aistore, bucket, {"theirs": b"stays"})
    return bucket


@pytest.fixture(scope="module")
def loader(stack: Stack) -> str:
    return str(aisloader.build(stack.cache))


def measurement(
    stack: Stack, clickhouse: Any, bucket: Bucket, loader: str, workload: str = "read", **options: Any
) -> Measurement:
    # at least one second of it must be steady, on a machine that has other work
    load = {"seconds": 12, "dataset_bytes": 0 if workload == "write" else 8 << 20, "write_bytes": 1 << 30}
    load |= options.pop("load", {})
    name = options.pop("name", unique("run"))
    cluster = authn.cluster(stack)
    return Measurement(
        cluster, clickhouse, Load(bucket, workload, OBJECT, 4, **load), loaders=LocalLoaders(cluster, loader),
        name=name, scope=name, **options,
    )  # fmt: skip


def columns(**given: Any) -> dict[str, Any]:
    """Return a row of ``storeside.throughput_runs`` with defaults for columns that these tests ignore."""
    figures = dict.fromkeys(("peak", "time_variance", "node_variance", "latency"), 0.0)
    unknown = dict.fromkeys(("disk_use_min", "disk_use", "disk_use_max", "bound", "share", "baseline"))
    return {**figures, **unknown, "loader_bytes": 0, "requests": 0, **given}


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def loaders() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if p.info["name"] == "aisloader"]


def test_a_mixed_load_is_measured_at_its_targets_and_leaves_nothing(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    run = measurement(stack, clickhouse, bucket, loader, "mixed", bound=1e9)
    report = run.run()
    assert sizes(aistore, bucket) == {"theirs": 5}
    assert report.verdict.name == "first"
    assert report.nodes == stack.targets
    assert report.figures.ticks
    assert 0 < report.figures.mean <= report.figures.peak
    assert report.share == pytest.approx(100 * report.figures.mean / (stack.targets * 1e9))
    read, written, reads, writes, read_ns, nodes = clickhouse.query(
        "SELECT sum(read_bytes), sum(written_bytes), sum(reads), sum(writes), sum(read_ns), uniqExact(node)"
        " FROM storeside.throughput FINAL WHERE measurement = {m:String}",
        parameters={"m": run.name},
    ).first_row
    assert nodes == stack.targets
    # the targets' counters match the loader's figures, except for the time before the first sample
    assert 0.5 * report.outcome.requests < reads + writes < 1.1 * report.outcome.requests
    assert 0.5 * report.outcome.bytes < read + written < 1.1 * report.outcome.bytes
    assert min(reads, writes, read_ns) > 0
    row = clickhouse.query(
        "SELECT verdict, requests, nodes, workload, dateDiff('second', began, ended) >= 3"
        " FROM storeside.throughput_runs FINAL WHERE measurement = {m:String}",
        parameters={"m": run.name},
    ).first_row
    assert row == ("first", report.outcome.requests, stack.targets, "mixed", True)
    rates = run.tables.rates(run.name)
    assert set(rates) == set(Targets(aistore).names)
    seconds = run.tables.seconds(run.name)
    assert len(seconds) <= min(map(len, rates.values()))
    assert max(s.rate for s in seconds) >= report.figures.peak > 0


def test_seconds_of_a_measurement_have_the_rate_of_all_targets_and_the_use_of_all_disks(clickhouse: Any) -> None:
    def sample(tick: int, node: str, disk_use: tuple[float, ...]) -> Sample:
        return Sample(tick, node, began + tick, began + tick + 1, 5_000_000, 5, 1, 1_000_000, 1, 1, 0, disk_use)

    began = round(time.time()) - 60.0  # older rows are removed by a TTL
    tables, name = Measurements(clickhouse), unique("measurement")
    tables.create()
    samples = [sample(0, "a", ()), sample(0, "b", ()), sample(1, "a", (10.0, 30.0)), sample(1, "b", (80.0,))]
    tables.add(name, [*samples, sample(2, "a", (90.0,))])  # one target did not answer
    assert tables.seconds(name) == [Second(1.0, 12e6, None), Second(2.0, 12e6, (10.0, 40.0, 80.0))]


def test_several_loaders_are_one_measurement(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    run = measurement(stack, clickhouse, bucket, loader, load={"loaders": 3, "seconds": 15})
    seen: set[int] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            seen.add(len([p for p in loaders() if "-pctput=0" in arguments(p)]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        report = run.run()
    finally:
        ended.set()
        watcher.join()
    assert max(seen) == 3
    outcome = report.outcome
    assert sizes(aistore, bucket) == {"theirs": 5}
    assert outcome.bytes == outcome.requests * OBJECT
    assert 0 < outcome.latency_min_seconds < outcome.latency_seconds < outcome.latency_max_seconds
    since, until = outcome.together
    assert outcome.began <= since < until <= outcome.began + outcome.seconds + 0.01
    read, reads = clickhouse.query(
        "SELECT sum(read_bytes), sum(reads) FROM storeside.throughput FINAL WHERE measurement = {m:String}",
        parameters={"m": run.name},
    ).first_row
    # the targets counted the requests of all three
    assert 0.5 * outcome.requests < reads < 1.1 * outcome.requests
    assert 0.5 * outcome.bytes < read < 1.1 * outcome.bytes
    row = clickhouse.query(
        "SELECT loaders, concurrency, requests, latency_min < latency AND latency < latency_max,"
        " toUnixTimestamp64Milli(began) / 1000"
        " FROM storeside.throughput_runs FINAL WHERE measurement = {m:String}",
        parameters={"m": run.name},
    ).first_row
    assert row == (3, 4, outcome.requests, True, pytest.approx(since + WARM_UP_SECONDS, abs=0.01))


def started(run: Measurement) -> tuple[threading.Thread, list[BaseException]]:
    """Run a measurement in a thread; return it, and the list to which it adds the error that ends it."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            run.run()
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, failures


def test_one_of_several_loaders_that_dies_fails_the_measurement(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    run = measurement(stack, clickhouse, bucket, loader, load={"loaders": 3, "seconds": 120})
    thread, failures = started(run)
    reading: list[psutil.Process] = []

    def all_read() -> bool:
        reading[:] = [p for p in loaders() if "-pctput=0" in arguments(p)]
        return len(reading) == 3

    until(all_read, 60, "three loaders")
    reading[1].kill()
    thread.join(60)
    assert [type(e) for e in failures] == [MeasureTransientError]
    assert re.match(r"loader \d of 3: aisloader exited with -9", str(failures[0]))
    assert loaders() == []
    assert sizes(aistore, bucket) == {"theirs": 5}


def test_existing_objects_are_read_and_left_alone_and_a_slower_cluster_is_a_regression(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    put(aistore, bucket, {f"in/{n}": bytes(OBJECT) for n in range(8)})
    before = sizes(aistore, bucket)
    run = measurement(stack, clickhouse, bucket, loader, load={"dataset_bytes": 0, "prefix": "in/"})
    earlier = columns(cluster=Targets(aistore).cluster, nodes=stack.targets, mean=1e12)
    run.tables.create()
    run.tables.record(unique("earlier"), run.load, began=1e9, ended=1e9 + 5, verdict="first", **earlier)
    report = run.run()
    assert report.outcome.bytes == report.outcome.requests * OBJECT  # never the five bytes
    assert sizes(aistore, bucket) == before
    assert (report.verdict.name, report.verdict.baseline, report.verdict.runs) == ("regression", 1e12, 1)


def test_a_cancelled_load_ends_and_leaves_nothing(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    run = measurement(stack, clickhouse, bucket, loader, "write", load={"seconds": 60, "loaders": 2})
    thread, failures = started(run)
    until(lambda: len(sizes(aistore, bucket)) > 20, 20, "objects of the loaders")
    assert len(loaders()) == 2
    run.cancel()
    thread.join(20)
    assert [type(e) for e in failures] == [MeasureCancelled]
    assert "cancelled" in str(failures[0])
    assert loaders() == []
    assert sizes(aistore, bucket) == {"theirs": 5}


def test_a_try_removes_what_a_killed_one_left(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str
) -> None:
    run = measurement(stack, clickhouse, bucket, loader)
    put(aistore, bucket, {f"{run.prefix}/left-{n}": b"x" for n in range(200)})
    run.remove()
    assert sizes(aistore, bucket) == {"theirs": 5}


def test_a_try_ends_the_loaders_of_a_killed_one_before_it_removes_their_objects(
    stack: Stack, clickhouse: Any, aistore: Any, bucket: Bucket, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        pass

    def clear(_: LocalLoaders) -> None:
        assert len(sizes(aistore, bucket)) == 2
        raise EndedError

    monkeypatch.setattr(LocalLoaders, "clear", clear)
    run = measurement(stack, clickhouse, bucket, loader)
    put(aistore, bucket, {f"{run.prefix}/left": b"x"})
    with pytest.raises(EndedError):
        run.run()


def test_a_missing_bucket_is_not_made(stack: Stack, clickhouse: Any, aistore: Any, loader: str) -> None:
    missing = Bucket("ais", unique("missing"))
    with pytest.raises(ErrBckNotFound):
        measurement(stack, clickhouse, missing, loader).run()
    assert missing.name not in {b.name for b in aistore.cluster().list_buckets()}


@pytest.mark.parametrize("prefix", ["", "absent/"])
def test_nothing_to_read_is_said_before_the_loader_starts(
    stack: Stack, clickhouse: Any, bucket: Bucket, loader: str, prefix: str
) -> None:
    with pytest.raises(ValueError, match=r"fewer than two objects.*let the measurement write a dataset"):
        measurement(stack, clickhouse, bucket, loader, load={"dataset_bytes": 0, "prefix": prefix}).run()


def test_runs_are_compared_with_those_before(clickhouse: Any) -> None:
    """Only with runs of the same load on the same cluster, without regressions, and since the first one."""
    tables = Measurements(clickhouse)
    tables.create()
    cluster = unique("cluster")
    load = Load(Bucket("ais", "b"), "read", OBJECT, 4, 5, 8 << 20)

    def add(at: int, mean: float, verdict: str, loaders: int = 1, **other: Any) -> None:
        row = columns(**{"cluster": cluster, "nodes": 2, "mean": mean, "verdict": verdict, **other})
        tables.record(f"{cluster}/{at}", replace(load, loaders=loaders), began=float(at), ended=at + 5.0, **row)

    def baseline(last: int = 5) -> tuple[float | None, int]:
        return tables.compare("now", load, cluster, 2, last)

    assert baseline() == (None, 0)
    add(100, 50, "first")
    add(200, 500, "first")  # a new series
    add(300, 100, "held")
    add(400, 110, "held")
    add(500, 5, "regression")
    add(600, 1, "held", nodes=4)
    add(700, 1, "held", loaders=2)
    assert baseline() == (110, 3)
    assert baseline(last=2) == (105, 2)
    assert tables.compare(f"{cluster}/400", load, cluster, 2, 1) == (100, 1)
