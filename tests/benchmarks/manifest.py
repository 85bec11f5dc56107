"""Seconds until the facts of many recordings are staged for the speech manifest: ``make bench-manifest``.

The facts are objects in an AIStore of two targets, one per recording, as a transcode stores them. The ledger has the
plan of the run's probe. Staging brings the facts into ClickHouse and makes the rows of the manifest. It is compared
with the way of small runs, in which ClickHouse pulls each fact with its own request: that is measured with fewer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil

from storeside.aistore.buckets import Bucket
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.listing import Row, destination_rows
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.facts import PULLED
from storeside.speech.manifest import SpeechManifest, facts_prefix
from storeside.stack import authn, demo
from storeside.stack.settings import Stack
from storeside.stack.supervision.supervisor import Supervisor
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
    """Seconds of one staging, and CPU seconds of this process, AIStore and ClickHouse in it."""

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
        self.manifest = SpeechManifest(self.clickhouse, AUDIO, FACTS, stack.url("ais_proxy"), name)
        states = [state for state in Supervisor(stack).status() if state.pid]
        self._aistore = [psutil.Process(s.pid) for s in states if s.name.startswith("ais-") and s.pid]
        self._server = [psutil.Process(s.pid) for s in states if s.name == "clickhouse" and s.pid]

    def prepare(self) -> None:
        """Store the facts, and record the listings and the plan of their probe."""
        for bucket in (AUDIO, FACTS):
            bucket.handle(self.client).create(exist_ok=True)
        facts = FACTS.handle(self.client)

        def put(number: int) -> None:
            content = {**MEASURED, "samples": number, "checksum": f"{number:064x}"}
            name = f"{facts_prefix(self.scope.run_id, AUDIO)}{_name(number)}.json"
            facts.object(name).get_writer().put_content(json.dumps(content).encode())

        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(put, range(self.count)):
                pass
        ledger = Ledger(self.clickhouse)
        ledger.create()
        ledger.record_listing(self.scope, "source", self._sources())
        ledger.record_listing(self.scope, "before", ())
        ledger.plan(self.scope, retry_failed=False, keeps_result=False)
        found = list_aistore(self.client, FACTS, facts_prefix(self.scope.run_id, AUDIO))
        ledger.record_listing(self.scope, "after", destination_rows(found))

    def _sources(self) -> Iterator[Row]:
        prefix = facts_prefix(self.scope.run_id, AUDIO)
        for number in range(self.count):
            yield _name(number), f"{prefix}{_name(number)}.json", 395_084, f"1/{number:016x}", ""

    def stage(self, pulled: int) -> Cost:
        """Stage the facts, of which ClickHouse pulls up to `pulled` itself."""
        parts = ([psutil.Process()], self._aistore, self._server)
        before = [measure.cpu_seconds(part) for part in parts]
        began = time.monotonic()
        staged = self.manifest.stage(self.client, self.scope, pulled)
        seconds = time.monotonic() - began
        after = [measure.cpu_seconds(part) for part in parts]
        if staged.rows != self.count:
            sys.exit(f"error: {staged.rows} rows are staged instead of {self.count}")
        return Cost(seconds, *(b - a for a, b in zip(before, after, strict=True)))


def _name(number: int) -> str:
    return f"books/{number % 1000:03}/recording-{number:08}.wav"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000, help="recordings (default: %(default)s)")
    parser.add_argument("--single", type=int, default=10_000, help="recordings one by one (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    given = parser.parse_args()
    found: dict[str, list[Cost]] = {"in batches": [], "one by one": []}
    with stacks.running(("podrunner", "aistore", "clickhouse")) as stack:
        many, few = Run(stack, "many", given.count), Run(stack, "few", given.single)
        for one in (many, few):
            one.prepare()
        for number, (way, run) in itertools.product(range(given.rounds), zip(found, (many, few), strict=True)):
            found[way].append(run.stage(PULLED if run is many else given.single))
            print(f"round {number}: {way}: {found[way][-1]}", file=sys.stderr, flush=True)
    report(found, {"in batches": given.count, "one by one": given.single})
    return 0


def report(found: dict[str, list[Cost]], counts: dict[str, int]) -> None:
    """Print the table and the figures."""
    print(f"{len(found['in batches'])} interleaved rounds; {measure.machine()}\n")
    print("| facts | count | s | µs per recording | µs CPU in the task | in AIStore | in ClickHouse |")
    print("|---|---|---|---|---|---|---|")
    for way, costs in found.items():
        count = counts[way]
        cpu = [
            f"{statistics.median(getattr(cost, part) for cost in costs) / count * 1e6:.0f}"
            for part in ("task", "aistore", "clickhouse")
        ]
        seconds = [cost.seconds for cost in costs]
        each = statistics.median(seconds) / count * 1e6
        print(f"| {way} | {count:,} | {spread(seconds)} | {each:.0f} | " + " | ".join(cpu) + " |")
    print()
    of_million: dict[str, Any] = {
        way: statistics.median(cost.seconds for cost in costs) / counts[way] * MILLION for way, costs in found.items()
    }
    bench("manifest.seconds_per_million", of_million["in batches"], "s")
    bench("manifest.of_single_requests", of_million["one by one"] / of_million["in batches"], "x")


if __name__ == "__main__":
    sys.exit(main())
