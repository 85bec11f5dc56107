"""The tiers of the tests, their selection by marker, and what each test costs: a plugin of pytest.

A test is of the first tier (marker ``first``; `make test` runs these) if it

- is in a folder of `CHEAP` and needs no server, or
- proves a row of the guarantees: ``guarantee("row")``, or
- is marked ``essential``: a run of each pipeline, a load of each format, a page in the browser,

and is not marked ``exhaustive``: a further case of a table, of which the first tier runs the smallest.

`make test-all` runs all tests that are not marked ``chaos``.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import pairwise

CHEAP = ("tests/unit/", "tests/attacks/")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("storeside")
    group.addoption("--guarantee", action="append", default=[], help="run only the tests that prove this row")
    group.addoption(
        "--durations-file", type=Path,
        help="write the seconds of each test into this JSON file, and print the seconds of the run under its name",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("durations_file")
    if path is not None and not hasattr(config, "workerinput"):  # workers of pytest-xdist report to the controller
        config.pluginmanager.register(Durations(path), "storeside-durations")


def in_first_tier(item: pytest.Item) -> bool:
    """Return whether `make test` runs a test."""
    if item.get_closest_marker("chaos") or item.get_closest_marker("exhaustive"):
        return False
    if item.get_closest_marker("guarantee") or item.get_closest_marker("essential"):
        return True
    if "stack" in getattr(item, "fixturenames", ()):
        return False
    return item.nodeid.startswith(CHEAP)


def rows_of(item: pytest.Item) -> set[str]:
    """Return the rows of the guarantees that a test proves."""
    return {row for marker in item.iter_markers("guarantee") for row in marker.args}


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the first tier; with ``--guarantee``, leave out the tests of other rows."""
    pairwise.mark(items)
    for item in items:
        if in_first_tier(item):
            item.add_marker("first")
    if wanted := set(config.getoption("guarantee")):
        others = [item for item in items if not wanted & rows_of(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if wanted & rows_of(item)]


def pytest_collection_finish() -> None:
    """Leave imported modules and collected tests out of garbage collections, which took 5 % of the CPU time."""
    gc.collect()
    gc.freeze()


class Durations:
    """Adds up the seconds of each test, set-up and end included, and writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = time.monotonic()
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment] # Counter of floats

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rounded = {test: round(seconds, 2) for test, seconds in sorted(self.seconds.items())}
        self.path.write_text(json.dumps(rounded, indent=0) + "\n")
        took = time.monotonic() - self.started
        terminalreporter.write_line(f"BENCH tests.{self.path.stem}_seconds {took:.0f} s")
        terminalreporter.write_line(f"BENCH tests.{self.path.stem}_cases {len(self.seconds)} tests")
