"""Differential fuzzing: ``python -m tests.fuzz.differential --inputs 20000 --only parquet,csv``.

Each family generates valid and slightly invalid files and compares what the product reads with what an independent
reader reads: pyarrow for Parquet, ORC and Arrow, the standard library for CSV and JSON, the ffmpeg command for audio.
File n of a seed is always the same. The families csv, tsv and jsonl have columns that the load infers; delimited and
jsonlines are loaded into tables that exist.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence

from tests.benchmarks.measure import bench, machine
from tests.fuzz.differential.outcome import Outcome

# Functions of modules of this package, each `(files: int, seed: int) -> Outcome`, by family.
FAMILIES = {
    **{name: (name, "compare") for name in ("parquet", "columnar", "delimited", "jsonlines", "audio")},
    **{name: ("inferred", f"compare_{name}") for name in ("csv", "tsv", "jsonl")},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the families and report; returns 1 when a difference is silent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="files of each family; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, separated by commas")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"--only {', '.join(sorted(unknown))}: choose from {', '.join(FAMILIES)}")
    print(machine())
    outcomes: list[Outcome] = []
    for name in names:
        started = time.monotonic()
        module, function = FAMILIES[name]
        compare = getattr(importlib.import_module(f"tests.fuzz.differential.{module}"), function)
        outcome: Outcome = compare(given.inputs, given.seed)
        outcomes.append(outcome)
        print(*outcome.lines(), f"  {time.monotonic() - started:.0f} s", sep="\n", flush=True)
    silent = sum(len(outcome.silent) for outcome in outcomes)
    disordered = sum(len(outcome.order_dependent) for outcome in outcomes)
    bench("fuzz.differential_files", sum(outcome.files for outcome in outcomes), "files")
    bench("fuzz.silent_differences", silent, "files")
    bench("fuzz.order_dependent", disordered, "files")
    for outcome in outcomes:
        if outcome.refused_though_valid is not None:
            bench(f"fuzz.refused_though_valid.{outcome.family}", outcome.refused_though_valid, "files")
            bench(f"fuzz.files.{outcome.family}", outcome.files, "files")
    return 1 if silent or disordered else 0


if __name__ == "__main__":
    sys.exit(main())
