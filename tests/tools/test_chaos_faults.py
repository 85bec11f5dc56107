"""The chaos driver's pace, and the faults of ClickHouse that must not meet."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import faults
from tests.chaos.driver import Chaos, Work
from tests.chaos.rig import LINKS, Rig


def test_without_a_number_of_faults_objects_come_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    chaos: Any = object.__new__(Chaos)
    chaos.wanted, chaos.began, chaos.deadline = Work(0, 100, 2), 1_000.0, 1_120.0
    for now, share in ((1_000, 0), (1_060, 0.5), (1_120, 1), (1_121, 0)):
        monkeypatch.setattr("tests.chaos.driver.time.monotonic", lambda now=now: now)
        assert chaos.allowed() == share


def test_clickhouse_is_not_killed_while_another_fault_has_it() -> None:
    rig: Any = Rig(SimpleNamespace(), LINKS, {"ClickHouse": Path("none")})
    known = {kind.name: kind for kind in faults.kinds(rig)}
    with rig.alone:
        for name in ("kill -9 clickhouse", "disk full ClickHouse", "too many parts ClickHouse"):
            with pytest.raises(faults.NoVictim):
                known[name].act(rig, random.Random(1))  # noqa: S311


def test_empty_definitions_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "store" / "abc" / "abcdef"
    folder.mkdir(parents=True)
    (folder / "whole.sql").write_text("ATTACH TABLE _ …")
    (folder / "load_1.sql").touch()
    assert faults.empty_definitions(tmp_path) == [Path("store/abc/abcdef/load_1.sql")]
