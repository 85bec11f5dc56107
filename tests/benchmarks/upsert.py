"""Changes of rows that arrive out of order and twice, while loads are killed: ``make bench-upsert``.

A tenth of the changes deletes its key. The objects are shuffled changes, and each is uploaded again under another
name. Workers are killed at random times with SIGKILL, and ClickHouse too. Then the view of current rows is compared
with the result of all changes in the order of their versions.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from storeside.stack import demo
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.cli import quiet_logging
from tests.benchmarks import measure, stacks
from tests.transfers import environment, kill_clickhouse, parquet

PARTS = ("s3", "clickhouse")
BUCKET, TABLE = "upsert", "data.upsert"
_BEGINS = re.compile(r"listed, \d+ to load")
Change = tuple[int, int, str, str]  # key, version, operation, value


def changes(number: int, seed: int = 7) -> list[Change]:
    """Return changes of a quarter as many keys, in the order of their versions; a tenth are deletions."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    made = []
    for version in range(number):
        op = "D" if chance.random() < 0.1 else chance.choice("IU")
        made.append((chance.randrange(max(1, number // 4)), version, op, f"{chance.getrandbits(40):x}"))
    return made


def expected(made: Sequence[Change]) -> dict[int, tuple[int, str]]:
    """Return version and value of each key that exists after all changes."""
    found: dict[int, tuple[int, str]] = {}
    for key, version, op, value in made:
        if op == "D":
            found.pop(key, None)
        else:
            found[key] = (version, value)
    return found


def objects(made: Sequence[Change], count: int, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """Yield Parquet objects with the shuffled changes, each twice under different names."""
    shuffled = [*made]
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - not for secrets
    for number in range(count):
        ids, versions, ops, values = zip(*shuffled[number::count], strict=True)
        content = parquet({"id": ids, "version": versions, "op": ops, "value": values})
        yield f"{number:04}.parquet", content
        yield f"again/{number:04}.parquet", content


def difference(found: Mapping[int, tuple[int, str]], wanted: Mapping[int, tuple[int, str]]) -> int:
    """Return the number of keys that are missing, too many, or have another row."""
    return sum(found.get(key) != wanted.get(key) for key in {*found, *wanted})


def load_with_kills(
    command: Sequence[str], variables: Mapping[str, str], kills: int, seconds: float,
    kill_engine: Callable[[], None],
) -> int:  # fmt: skip
    """Run a load until it succeeds, after up to `kills` kills of the worker or the engine; return the failed loads.

    The first kill comes when the load begins to read, each other one up to `seconds` later.
    """
    chance, failed = random.Random(7), 0  # noqa: S311 - not for secrets
    for left in range(kills, -1, -1):
        worker = subprocess.Popen(command, cwd=CHECKOUT, env=variables, stderr=subprocess.PIPE, text=True)
        assert worker.stderr is not None
        for line in worker.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if left and _BEGINS.search(line):
                time.sleep(0 if left == kills else chance.uniform(0, seconds))  # a random time is what is tested
                (kill_engine if left % 3 == 0 else worker.kill)()
        worker.stderr.close()
        if worker.wait():
            failed += 1
        elif not left:
            return failed
    sys.exit("error: a load failed that was not killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000, help="changes (default: %(default)s)")
    parser.add_argument("--objects", type=int, default=200, help="objects, each twice (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=9, help="kills (default: %(default)s)")
    options = parser.parse_args()
    with stacks.running(PARTS) as stack:
        run(stack, options.changes, options.objects, options.kills)


def run(stack: Stack, number: int, count: int, kills: int) -> None:
    """Upload the objects, load them with kills, and compare."""
    quiet_logging()
    print(f"{number} changes in {count} objects, each twice; {measure.machine()}")
    client = s3.of_stack("s3", stack)
    client.create_bucket(Bucket=BUCKET)
    made = changes(number)
    for key, content in objects(made, count):
        client.put_object(Bucket=BUCKET, Key=key, Body=content)
    command = [
        *(sys.executable, "-m", "storeside.transfer", f"s3://{BUCKET}/", TABLE, "--collection", "storeside_s3"),
        *("--format", "parquet", "--set", "batches.objects=10", "--run-id", "upsert"),
        *("--set", "upsert.key=id", "--set", "upsert.version=version", "--set", "upsert.deleted=op"),
    ]
    began = time.monotonic()
    failed = load_with_kills(command, environment(stack), kills, 8, lambda: kill_clickhouse(stack))
    print(f"loaded in {time.monotonic() - began:.0f} s, with {failed} interrupted loads")
    rows: Any = demo.clickhouse_client(stack).query(f"SELECT id, version, value FROM {TABLE}_current").result_rows
    different = difference({key: (version, value) for key, version, value in rows}, expected(made))
    print(f"BENCH upsert.difference {different} rows", flush=True)
    if different:
        sys.exit(f"error: {different} of {number // 4} keys differ")


if __name__ == "__main__":
    main()
