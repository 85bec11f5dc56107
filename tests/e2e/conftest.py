"""The last line of the browser tests: how much the accessibility checker found."""

from __future__ import annotations

import pytest

from tests import accessibility

FINDINGS = pytest.StashKey[int]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if FINDINGS in config.stash:
        print(accessibility.figure(config.stash[FINDINGS]), flush=True)
