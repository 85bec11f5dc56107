"""The last line of the browser tests: how much the accessibility checker found."""

from __future__ import annotations

import pytest

from tests.benchmarks.measure import bench

FINDINGS = pytest.StashKey[int]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if FINDINGS in config.stash:
        bench("pages.axe_violations", config.stash[FINDINGS], "findings")
