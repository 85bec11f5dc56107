"""Tests of a Kubernetes cluster; figures after the last test."""

from __future__ import annotations

import os
import time

import pytest

from tests.kubernetes import session
from tests.kubernetes.session import Session

_SESSION = pytest.StashKey[Session]()


@pytest.fixture(scope="session")
def cluster(kubernetes: Session | None) -> Session:
    """The cluster under test."""
    if kubernetes is None:
        pytest.skip("make k8s-test runs it")
    return kubernetes


@pytest.fixture(scope="session", autouse=True)
def remembered(request: pytest.FixtureRequest, kubernetes: Session | None) -> None:
    """Keep the figures of the cluster for the summary."""
    if kubernetes is not None:
        request.config.stash[_SESSION] = kubernetes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("cluster") != "kubernetes":
        return
    for name, seconds in config.stash[_SESSION].times.items() if _SESSION in config.stash else ():
        terminalreporter.write_line(f"BENCH {name} {seconds:.0f} s")
    passed, failed = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed"))
    failed += len(terminalreporter.stats.get("error", ()))
    started = float(os.environ[session.STARTED])
    terminalreporter.write_line(f"BENCH k8s.seconds {time.time() - started:.0f} s")
    terminalreporter.write_line(f"BENCH k8s.passed {passed} tests")
    terminalreporter.write_line(f"BENCH k8s.failed {failed} tests")
