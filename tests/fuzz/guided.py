"""Coverage-guided fuzzing of what reads events and text: ``python -m tests.fuzz.guided --inputs 100000``.

atheris mutates the good inputs of `tests.fuzz.tables` and keeps what reaches new branches of our own code. Parsers
may refuse what they are given by their own errors, in bounded time and memory, and do nothing else; the first input
that says otherwise ends a target, and is kept. A seed gives the same inputs as long as the code is the same.

Parquet is not among the targets: pyarrow reads it in C++, of which this sees nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.settings import CHECKOUT, SOURCES, default_folder
from tests.benchmarks.measure import bench, machine

LOCK = Path(__file__).with_name("atheris.lock")
# By the functions of `tests.fuzz.tables` that read them.
TARGETS = ("read_event", "read_text", "read_csv")
# Seconds that one input may take on a busy machine, and megabytes that the process may have.
SLOW, MEMORY = 60, 2048


@dataclass(frozen=True)
class Result:
    """The results of a target: the reached `edges` and `features` of the product's code, as libFuzzer counts them."""

    inputs: int
    edges: int
    features: int
    slowest: int
    peak: int
    wrong: str = ""


def target(name: str) -> Callable[[bytes], None]:
    """Return what takes an input; what it chooses depends on the input alone."""
    from tests.fuzz import tables

    reader = getattr(tables, name)
    return lambda content: reader(content, random.Random(content))  # noqa: S311


def seeds(name: str) -> list[bytes]:
    """Return the good inputs of a target."""
    from tests.fuzz import tables

    return tables.corpora()[getattr(tables, name)]


def installed() -> Path:
    """Return the folder of atheris, which is no part of the environment: it has wheels for few systems."""
    folder = default_folder() / "cache" / f"atheris-{sys.implementation.cache_tag}"
    stamp = folder / LOCK.name
    if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
        own = default_folder() / "uv" / "bin" / "uv"
        command = [own if own.exists() else "uv", "pip", "install", "--quiet", "--python", sys.executable]
        subprocess.run([*command, "--target", folder, "--require-hashes", "-r", LOCK], check=True)
        stamp.write_bytes(LOCK.read_bytes())
    return folder


def run_here(name: str, options: Sequence[str]) -> None:
    """Fuzz a target in this process, and end it."""
    import atheris

    # atheris does not instrument modules that are imported earlier: this module must not import a parser.
    with atheris.instrument_imports(include=["storeside.events", "storeside.transfer"]):
        take = target(name)
    atheris.Setup([name, *options], take)
    atheris.Fuzz()


def fuzz(name: str, inputs: int, seed: int = 1, seconds: int = 0) -> Result:
    """Fuzz a target in a new process, for at most the given seconds."""
    engine = installed()
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{CHECKOUT}:{engine}"}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for n, content in enumerate(seeds(name)):
            (Path(folder) / f"seed-{n}").write_bytes(content)
        options = {
            "runs": inputs, "seed": seed, "max_total_time": seconds, "timeout": SLOW, "rss_limit_mb": MEMORY,
            "artifact_prefix": engine / f"{name}-", "print_final_stats": 1,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", "--here", name, *(f"-{k}={v}" for k, v in options.items()),
             folder],
            env=environment, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    return read(done.stdout + done.stderr, done.returncode)


def read(said: str, status: int) -> Result:
    """Read what libFuzzer says at its end. Raises ValueError where it has not begun."""
    figures = dict(re.findall(r"^stat::(\w+): +(\d+)", said, re.MULTILINE))
    reached = re.findall(r"^#\d+\s.*\bcov: (\d+) ft: (\d+)", said, re.MULTILINE)
    if not reached:
        raise ValueError(f"atheris ended with {status}: {said[-2000:]}")
    wrong = ""
    if status:
        at = re.search(r"Uncaught Python exception.*|ERROR: libFuzzer.*", said, re.DOTALL)
        path = re.search(r"Test unit written to (\S+)", said)
        wrong = f"{path[1] if path else f'status {status}'}: {at[0][:1500] if at else said[-1500:]}"
    edges, features = map(int, reached[-1])
    count, slowest, peak = (
        int(figures.get(key, 0)) for key in ("number_of_executed_units", "slowest_unit_time_sec", "peak_rss_mb")
    )
    return Result(count, edges, features, slowest, peak, wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz all targets, one after the other, and report; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=0, help="end each target earlier")
    parser.add_argument("--only", choices=TARGETS, action="append", help="this target alone")
    given = parser.parse_args(arguments)
    print(machine())
    wrong = 0
    for name in given.only or TARGETS:
        found = fuzz(name, given.inputs, given.seed, given.seconds)
        print(f"{found.inputs:8} {name}: {found.edges} edges, {found.features} features", flush=True)
        if found.wrong:
            wrong += 1
            print(f"WRONG {name}: {found.wrong}")
        bench(f"fuzz_guided.{name}.inputs", found.inputs, "inputs")
        bench(f"fuzz_guided.{name}.edges", found.edges, "edges")
        bench(f"fuzz_guided.{name}.slowest", found.slowest, "s")
        bench(f"fuzz_guided.{name}.peak", found.peak, "MB")
    bench("fuzz_guided.wrong", wrong, "findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        run_here(sys.argv[2], sys.argv[3:])
    sys.exit(main())
