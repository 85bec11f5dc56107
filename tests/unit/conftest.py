"""Fixtures of unit tests that run ClickHouse's engine in the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.statements import Engine, Statements


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = Engine()
    yield found
    found.close()


@pytest.fixture
def reading(engine: Engine, tmp_path: Path) -> Iterator[Statements]:
    """A table, and objects that the statements of loads read into it."""
    found = Statements(engine, tmp_path)
    yield found
    found.drop()
