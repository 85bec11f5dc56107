"""Three pipelines under faults: python -m tests.chaos --seed N --faults 300 --objects 20000

Prints a table of the faults and BENCH lines at its end. The exit status is 1 if an object was lost, duplicated,
truncated or left behind, if a pipeline made no progress after a fault, or if no log shows a visible kind of fault.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence

from tests.chaos import report
from tests.chaos.driver import Chaos, Work
from tests.chaos.rig import FOLDER, rig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--gap", type=float, default=2.5, help="mean seconds between faults; default: %(default)s")
    parser.add_argument("--only", default="", help="kinds of faults whose names contain one of these, with commas")
    parser.add_argument("--minutes", type=float, default=120, help="no fault and no object after that")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the driver's own clients, which meet the faults as well
    began = time.time()
    with rig() as made:
        print(f"seed {options.seed}: {options.faults} faults, {options.objects} objects", flush=True)
        chaos = Chaos(made, options.seed, options.gap, options.only)
        chaos.prepare()
        chaos.work(Work(options.faults, options.objects, options.minutes))
        found = chaos.prove()
    found.seconds = time.time() - began
    print(report.table(chaos.done, chaos.pipelines))
    print(report.summary(found, chaos.pipelines))
    (FOLDER / "report.json").write_text(json.dumps(report.record(chaos.done, found), indent=1))
    print(report.bench(chaos.done, found))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
