"""The recorded seconds of each test file, from those of each test that ``--durations-file`` has written."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).with_suffix(".json")
# For all files, before anything has been recorded.
UNKNOWN_SECONDS = 60.0


def by_file(seconds: dict[str, float]) -> dict[str, float]:
    """Return the sums per file of the seconds per test."""
    sums: Counter[str] = Counter()
    for test, duration in seconds.items():
        sums[test.partition("::")[0]] += duration  # type: ignore[assignment] # Counter of floats
    return {file: round(total, 1) for file, total in sorted(sums.items())}


def recorded() -> dict[str, float]:
    """Return the recorded seconds of each file."""
    found: dict[str, float] = json.loads(RECORD.read_text())
    return found


def expected(file: str) -> float:
    """Return the seconds that a file took when durations were recorded last; the median for an unknown file."""
    known = recorded()
    return known.get(file, statistics.median(known.values() or [UNKNOWN_SECONDS]))


def main(path: str) -> int:
    """Write the sums of the tests in `path`."""
    sums = by_file(json.loads(Path(path).read_text()))
    RECORD.write_text(json.dumps(sums, indent=1) + "\n")
    print(f"{len(sums)} files, {sum(sums.values()):.0f} s: {RECORD}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
