"""The benchmark of transfers' report on figures that miss their targets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storeside.stack.settings import CHECKOUT
from tests.benchmarks import transfer
from tests.benchmarks.transfer import Figures, Load
from tests.benchmarks.transfer_peers import Run


def of(seconds: float) -> Figures:
    return Figures([Load(Run(seconds, 0, 1000, 0), size=1000)])


def test_what_was_not_measured_misses_nothing() -> None:
    assert transfer.missed({}) == []


def test_aims_are_missed_from_below_and_limits_from_above() -> None:
    assert transfer.missed({"vs_dlt": 8, "small_objects_cost": 1.5}) == []
    assert transfer.missed({"vs_dlt": 7.994, "small_objects_cost": 7.47, "pull_of_engine": 1.0}) == [
        "missed: transfer.vs_dlt 7.99, aim: at least 8",
        "missed: transfer.small_objects_cost 7.47, aim: at most 1.5",
    ]


def test_every_aim_is_of_a_figure() -> None:
    loaders = ("engine", "pull", "push", "push_changed")
    measured = {f"{case}, {loader}": of(1) for case in ("parquet", "five", "small parquet") for loader in loaders}
    measured |= {f"{form}, {loader}": of(1) for form in ("csv", "csv.gz", "jsonl", "jsonl.gz") for loader in loaders}
    measured |= {f"{peer}, reading {form}": of(1) for peer, (form, _) in transfer.PEERS.items()}
    assert {*transfer.AIMS, *transfer.LIMITS} <= set(transfer.ratios({**measured, "plan": of(1), "inventory": of(1)}))


def test_the_cost_of_small_objects_is_relative_to_the_statement_for_the_same_objects() -> None:
    found = {"small parquet, engine": of(2), "small parquet, pull": of(3), "parquet, pull": of(100)}
    assert transfer.ratios(found)["small_objects_cost"] == (pytest.approx(1.5), "x")


def test_the_exit_status_tells_of_a_missed_aim(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: of(1) for name in ("csv, engine", "csv, pull", "csv.gz, engine", "csv.gz, pull")}
    assert not transfer.report(found, 1)
    assert "missed" not in capsys.readouterr().out
    assert transfer.report({**found, "csv, pull": of(2)}, 1)
    assert "missed: transfer.csv_of_engine 0.50, aim: at least 0.9" in capsys.readouterr().out


def test_the_measured_process_does_not_load_airflow() -> None:
    code = "import sys, tests.benchmarks.transfer_ours; sys.exit('airflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)
