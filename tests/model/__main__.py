"""``make model``: TLC examines the protocol of publication, and the protocol without each of its guards.

Prints a line per case, and BENCH lines at the end. Exit status 1: the protocol violates a property, or a protocol
without one of its guards does not. Without Java, one line states that and the status is 2.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from storeside.stack.settings import StackError
from tests.model.cases import MUTANTS, PROTOCOL, Case
from tests.model.tlc import Found, TlcError, examine, java
from tests.verify import CANNOT_RUN


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine all cases, or those whose names contain a text; return the exit status."""
    parser = argparse.ArgumentParser(prog="make model", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--trace", action="store_true", help="print the path to each violation")
    parser.add_argument("--workers", type=int, default=2, help="threads of TLC; default: %(default)s")
    given = parser.parse_args(arguments)
    if java() is None:
        print("make model: cannot run: TLC needs Java, and this machine has none (Debian: default-jre-headless)")
        return CANNOT_RUN
    try:
        return _examine([case for case in (*PROTOCOL, *MUTANTS) if given.only in case.name], given)
    except (TlcError, StackError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


def _examine(cases: Sequence[Case], given: argparse.Namespace) -> int:
    found: dict[Case, Found] = {}
    print(f"{'case':14} {'states':>9} {'seconds':>7}  {'violated':14} content of the case, or guard that is left out")
    for case in cases:
        began = time.monotonic()
        found[case] = examine(case, workers=given.workers)
        seconds = time.monotonic() - began
        line = f"{case.name:14} {found[case].states:9} {seconds:7.1f}  {found[case].violated or '-':14} {case.why}"
        print(line, flush=True)
        if given.trace and found[case].violated:
            print(found[case].trace, flush=True)
    protocol = [result for case, result in found.items() if not case.removed]
    mutants = [result for case, result in found.items() if case.removed]
    violations = sum(bool(result.violated) for result in protocol)
    caught = sum(bool(result.violated) for result in mutants)
    print(f"BENCH model.states {sum(result.states for result in protocol)} states")
    print(f"BENCH model.violations {violations} violations")
    print(f"BENCH model.mutants_found {caught} of {len(mutants)}")
    return 1 if violations or caught < len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
