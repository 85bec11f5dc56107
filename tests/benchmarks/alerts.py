"""Alerts about injected faults, and about healthy runs of different sizes: ``make bench-alerts``.

Each of the 20 faults of `tests/alert_faults.py` has its own pipeline on a new stack; an alert counts if a webhook has
received it with the expected contents. The healthy runs load one object each, with all conditions. Their sizes are
log-normal with a standard deviation of 0.3 around a size that grows by 0.5 % with each run, so most are between 55 %
and 180 % of the usual.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from storeside.operators import DeadLetters, FailedObjects, FailedTasks, Freshness, KnownFailures, Lag, Volume
from storeside.stack import demo
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.alert_faults import FAULTS, Watched, receivers, rows
from tests.benchmarks import measure, stacks
from tests.receivers import Receiver

PARTS = ("s3", "clickhouse")
SIZE, DEVIATION, GROWTH = 200, 0.3, 1.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="healthy runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=40, help="seed of their sizes (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running(PARTS) as stack, receivers(stack) as servers:
        print(measure.machine())
        sent = faults(stack, servers)
        false = healthy(stack, servers, options.runs, options.seed)
    print(f"BENCH alerts.told {sent} of {len(FAULTS)} faults", flush=True)
    print(f"BENCH alerts.false {false} of {options.runs} healthy runs", flush=True)
    if sent < len(FAULTS) or false:
        sys.exit("error: an alert is missing or false")


def pipeline(stack: Stack, servers: tuple[Receiver, Receiver]) -> Watched:
    """Return a new pipeline."""
    storage, queues = s3.of_stack("s3", stack), s3.of_stack("sqs", stack)
    return Watched(stack, demo.clickhouse_client(stack), storage, queues, *servers)


def faults(stack: Stack, servers: tuple[Receiver, Receiver]) -> int:
    """Inject each fault into its own pipeline; return the number of faults with a correct message."""
    sent = 0
    for fault, texts in FAULTS.items():
        message = fault(pipeline(stack, servers))
        is_sent = all(text in message for text in texts)
        sent += is_sent
        print(f"{fault.__name__:<30} {'sent' if is_sent else f'NOT SENT: {message}'}", flush=True)
    return sent


def healthy(stack: Stack, servers: tuple[Receiver, Receiver], runs: int, seed: int) -> int:
    """Load one object per run with all conditions; return the number of runs with an alert."""
    chance, w, false, started = random.Random(seed), pipeline(stack, servers), 0, time.monotonic()  # noqa: S311
    w.conditions = [
        FailedTasks(), FailedObjects(), KnownFailures(), Freshness(w.table, hours=1), Volume(),
        DeadLetters(w.name), Lag(w.name, minutes=10),
    ]  # fmt: skip
    for n in range(runs):
        w.put({f"{n:04}.csv": rows(int(SIZE * GROWTH**n * chance.lognormvariate(0, DEVIATION)), n)})
        w.load()
        if (message := w.alert()) != "[]":
            false += 1
            print(f"run {n}: {message}", flush=True)
    print(f"{runs} healthy runs in {time.monotonic() - started:.0f} s", flush=True)
    return false


if __name__ == "__main__":
    main()
