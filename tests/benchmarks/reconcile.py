"""Planning and reconciling a bucket of many objects, in seconds and memory of the worker: ``make bench-reconcile``.

The listings are synthetic; ClickHouse stores and compares them as in a real run.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.stack import demo
from storeside.stack.settings import Stack
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench

Row = tuple[str, str, int, str, str]
MISSING_EVERY = 1_000


def name(number: int) -> str:
    """Return a key of a usual length."""
    return f"speech/2026/11/{number % 1000:03}/recording-{number:010}"


def source(count: int) -> Iterator[Row]:
    """Yield the source's listing."""
    for number in range(count):
        yield f"{name(number)}.flac", f"{name(number)}.wav", 190_000, f"etag-{number:x}", ""


def results(count: int) -> Iterator[Row]:
    """Yield the destination's listing after a job that lost one object in a thousand."""
    for number in range(count):
        if number % MISSING_EVERY:
            yield "", f"{name(number)}.wav", 380_000, "1/abcdef", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="objects (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running(("clickhouse",)) as stack:
        run(stack, options.count)


def run(stack: Stack, count: int) -> None:
    """Go through the steps of a job, one after another."""
    client = demo.clickhouse_client(stack)
    ledger = Ledger(client)
    ledger.create()
    scope = Scope("ais://in", "ais://out", "effect", "run")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    print(f"{count} objects; {measure.machine()}")
    ledger.record_listing(scope, "source", source(count))
    ledger.record_listing(scope, "before", ())
    _said("listings recorded", began)
    plan = ledger.plan(scope, retry_failed=False, keeps_result=True)
    _said(f"planned: {plan}", began)
    ledger.record_listing(scope, "after", results(count))
    missing = len(ledger.missing(scope, "", 10_000))
    _said(f"compared: {missing} missing in the first window", began)
    ledger.settle(scope, record_done=True, no_reason="lost")
    totals = ledger.totals(scope)
    seconds = time.monotonic() - began
    _said(f"settled: {totals}", began)
    lost = -(-count // MISSING_EVERY)
    assert (plan.pending, totals.failed, totals.done) == (count, lost, count - lost), totals
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bench("reconcile.seconds_per_million", seconds / count * 1e6, "s")
    bench("reconcile.worker_peak", peak / 1024, "MB")
    bench("reconcile.worker_growth", (peak - before) / 1024, "MB")


def _said(what: str, began: float) -> None:
    print(f"{time.monotonic() - began:8.1f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
