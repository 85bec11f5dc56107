"""Counts the attacks: after a run of this folder the last lines state the numbers of tried and of successful attacks.

Each test is one attack by an attacker with only the right that its docstring states. It passes when
the attack fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
tried: set[str] = set()
succeeded: set[str] = set()
figures: set[str] = set()  # that tests recorded as the property "figure"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test of this folder; an attack succeeds unless its test passes in each phase."""
    if f"/{FOLDER.name}/" not in f"/{report.nodeid}":
        return
    is_expected = hasattr(report, "wasxfail")
    if report.skipped and not is_expected:
        return
    if report.when == "call":
        figures.update(str(value) for name, value in report.user_properties if name == "figure")
    if report.when == "call" or report.failed:
        tried.add(report.nodeid)
    if report.failed or is_expected:
        tried.add(report.nodeid)
        succeeded.add(report.nodeid)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the counts as the last lines, once: workers of pytest-xdist print nothing."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not tried:
        return
    for figure in sorted(figures):
        reporter.write_line(f"BENCH {figure}")
    reporter.write_line(f"BENCH attack.tried {len(tried)} attacks")
    reporter.write_line(f"BENCH attack.succeeded {len(succeeded)} attacks")
