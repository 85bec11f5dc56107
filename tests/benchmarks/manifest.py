"""Seconds until the facts of many recordings are rows of the speech manifest: ``make bench-manifest``.

The facts are objects in an AIStore of two targets, one per recording, as a transcode stores them. The ledger has the
plan of the run's probe. Collecting brings the facts into one object of JSON Lines; the load checks its rows against
the suite of the manifest, and publishes them in one step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from storeside.aistore.buckets import Bucket
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.listing import Row, destination_rows
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.manifest import ManifestRequest, SpeechManifest, facts_prefix
from storeside.speech.suites import SignalRanges, speech_manifest_suite
from storeside.stack import authn, demo
from storeside.stack.settings import Stack
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transfer.request.options import Expectations, ReadOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench, spread

AUDIO, FACTS = Bucket("ais", "audio"), Bucket("ais", "facts")
EFFECT = "probe"
THREADS = 8
MILLION = 1_000_000
# Facts as the embedded transformers measure them.
MEASURED = {
    "duration_seconds": 12.345, "sample_rate": 16_000, "channels": 1, "samples": 197_520, "bytes": 395_084,
    "peak_dbfs": -3.0123, "rms_dbfs": -21.345, "checksum": "", "codec": "pcm_s16le", "complete": "yes",
    "declared_seconds": 12.345, "ignored": "", "silence_share": 0.123, "clipped_share": 0.0, "bandwidth_hz": 7900.0,
    "snr_db": 35.2,
}  # fmt: skip


@dataclass
class Cost:
    """Seconds of one collection and load, and CPU seconds of this process, AIStore and ClickHouse in it."""

    seconds: float
    task: float
    aistore: float
    clickhouse: float


class Run:
    """A run of the speech pipeline that has measured `count` recordings."""

    def __init__(self, stack: Stack, name: str, count: int) -> None:
        self.count = count
        self.client = authn.cluster(stack).client()
        self.clickhouse = demo.clickhouse_client(stack)
        self.scope = Scope(str(AUDIO), str(FACTS), EFFECT, name)
        self.manifest = SpeechManifest(self.clickhouse, AUDIO, FACTS, name)
        states = [state for state in Supervisor(stack).status() if state.pid]
        self._aistore = [psutil.Process(s.pid) for s in states if s.name.startswith("ais-") and s.pid]
        self._server = [psutil.Process(s.pid) for s in states if s.name == "clickhouse" and s.pid]

    def prepare(self) -> None:
        """Store the facts, and record the listings and the plan of their probe."""
        for bucket in (AUDIO, FACTS):
            bucket.handle(self.client).create(exist_ok=True)
        facts = FACTS.handle(self.client)

        def put(number: int) -> None:
            content = {**MEASURED, "checksum": f"{number:064x}"}
            name = f"{facts_prefix(self.scope.run_id, AUDIO)}{_name(number)}.json"
            facts.object(name).get_writer().put_content(json.dumps(content).encode())

        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(put, range(self.count)):
                pass
        ledger = Ledger(self.clickhouse)
        ledger.create()
        self.clickhouse.command(
            "INSERT INTO storeside.objects (source, destination, object, version, destination_object, status, run_id)"
            " SELECT 's3://made', {audio:String}, name, {run:String}, name, 'done', {run:String} FROM"
            " (SELECT format('books/{}/recording-{}.wav', leftPad(toString(number % 1000), 3, '0'),"
            " leftPad(toString(number), 8, '0')) AS name FROM numbers({count:UInt64}))",
            parameters={"audio": str(AUDIO), "run": self.scope.run_id, "count": self.count},
        )
        ledger.record_listing(self.scope, "source", self._sources())
        ledger.record_listing(self.scope, "before", ())
        ledger.plan(self.scope, retry_failed=False, keeps_result=False)
        found = list_aistore(self.client, FACTS, facts_prefix(self.scope.run_id, AUDIO))
        ledger.record_listing(self.scope, "after", destination_rows(found))

    def _sources(self) -> Iterator[Row]:
        prefix = facts_prefix(self.scope.run_id, AUDIO)
        for number in range(self.count):
            yield _name(number), f"{prefix}{_name(number)}.json", 395_084, f"1/{number:016x}", ""

    def load(self) -> Cost:
        """Collect and load the rows."""
        parts = ([psutil.Process()], self._aistore, self._server)
        before = [measure.cpu_seconds(part) for part in parts]
        began = time.monotonic()
        self.manifest.collect(self.client, self.scope)
        transfer = Transfer(self._request(), self.clickhouse, self.client, self.scope.run_id)
        loaded = transfer.run(transfer.prepare())
        seconds = time.monotonic() - began
        after = [measure.cpu_seconds(part) for part in parts]
        if (loaded.rows, loaded.rejected) != (self.count, 0):
            sys.exit(f"error: {loaded.rows} rows are loaded instead of {self.count}")
        return Cost(seconds, *(b - a for a, b in zip(before, after, strict=True)))

    def _request(self) -> Request:
        """Return the request of the pipeline's task."""
        suite = speech_manifest_suite(16_000, 1, 0.1, 3_600, signal=SignalRanges())
        return ManifestRequest(
            Source(str(FACTS), self.manifest.key), "speech.manifest", format="jsonl", loader="push",
            on_overwrite="replace", read=ReadOptions(strict_json=False),
            expectations=Expectations(suite, "fail", key_column="object"),
        )  # fmt: skip


def _name(number: int) -> str:
    return f"books/{number % 1000:03}/recording-{number:08}.wav"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    given = parser.parse_args()
    costs = []
    with stacks.running(("podrunner", "aistore", "clickhouse")) as stack:
        for number in range(given.rounds):
            run = Run(stack, f"run-{number}", given.count)
            run.prepare()
            costs.append(run.load())
            print(f"round {number}: {costs[-1]}", file=sys.stderr, flush=True)
    report(costs, given.count)
    return 0


def report(costs: list[Cost], count: int) -> None:
    """Print the table and the figures."""
    print(f"{len(costs)} rounds; {measure.machine()}\n")
    print("| recordings | s | µs per recording | µs CPU in the task | in AIStore | in ClickHouse |")
    print("|---|---|---|---|---|---|")
    cpu = [
        f"{statistics.median(getattr(cost, part) for cost in costs) / count * 1e6:.0f}"
        for part in ("task", "aistore", "clickhouse")
    ]
    seconds = [cost.seconds for cost in costs]
    each = statistics.median(seconds) / count
    print(f"| {count:,} | {spread(seconds)} | {each * 1e6:.0f} | " + " | ".join(cpu) + " |\n")
    bench("manifest.seconds_per_million", each * MILLION, "s")


if __name__ == "__main__":
    sys.exit(main())
