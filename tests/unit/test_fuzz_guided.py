"""The targets of the coverage-guided fuzzing without their engine, and the parser of the engine's output."""

from __future__ import annotations

import random

import pytest

from tests import audit
from tests.fuzz import guided, recordings

ENDED = """\
INFO: Loaded 1 modules   (512 inline 8-bit counters)
#7\tINITED cov: 40 ft: 90 corp: 6/2kb exec/s: 0 rss: 180Mb
#20000\tDONE   cov: 101 ft: 301 corp: 55/9kb lim: 4096 exec/s: 2500 rss: 240Mb
stat::number_of_executed_units: 20000
stat::slowest_unit_time_sec:    1
stat::peak_rss_mb:              240
"""
FOUND = """\
#7\tINITED cov: 11 ft: 12 corp: 6/2kb exec/s: 0 rss: 180Mb

 === Uncaught Python exception: ===
KeyError: 'Records'
==1== ERROR: libFuzzer: fuzz target exited
artifact_prefix='/x/read_event-'; Test unit written to /x/read_event-crash-1
stat::number_of_executed_units: 3000
"""


@pytest.mark.parametrize("name", guided.TARGETS)
def test_targets_take_good_and_damaged_inputs(name: str) -> None:
    take, rng = guided.target(name), random.Random(3)  # noqa: S311
    assert len(guided.seeds(name)) >= 6
    for content in (*guided.seeds(name), b"", *(recordings.mutated(rng, guided.seeds(name)) for _ in range(50))):
        take(content)


def test_a_target_lets_errors_out_that_are_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import tables

    monkeypatch.setattr(tables, "parse", lambda text: [][len(text)])
    with pytest.raises(IndexError):
        guided.target("read_event")(b"{}")


def test_figures_and_findings_are_read() -> None:
    assert guided.read(ENDED, 0) == guided.Result(20_000, 101, 301, 1, 240)
    found = guided.read(FOUND, 77)
    assert (found.inputs, found.edges) == (3_000, 11)
    assert found.wrong.startswith("/x/read_event-crash-1: Uncaught Python exception: ===\nKeyError: 'Records'")
    assert guided.read(ENDED, 71).wrong, "an end that nobody explains is no success"


def test_an_engine_that_does_not_begin_is_no_success() -> None:
    with pytest.raises(ValueError, match=r"atheris ended with 1: .*No module"):
        guided.read("ModuleNotFoundError: No module named 'atheris'", 1)


def test_the_engine_is_installed_by_hash_and_audited() -> None:
    assert guided.LOCK in audit.LOCKS
