"""Tests of several workers, triggerers and schedulers; figures after the last test."""

from __future__ import annotations

import time

import pytest

from storeside.stack.settings import Stack

_STARTED = time.monotonic()


@pytest.fixture(scope="module")
def several(airflow: Stack) -> Stack:
    """The stack with CeleryExecutor."""
    if airflow.executor != "celery":
        pytest.skip("make celery-test runs it")
    return airflow


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("executor") != "celery":
        return
    passed, failed = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed"))
    failed += len(terminalreporter.stats.get("error", ()))
    terminalreporter.write_line(f"BENCH celery.seconds {time.monotonic() - _STARTED:.0f} s")
    terminalreporter.write_line(f"BENCH celery.passed {passed} tests")
    terminalreporter.write_line(f"BENCH celery.failed {failed} tests")
