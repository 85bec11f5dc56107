"""The soak's verdict: it contains each planted leak, and no growth that the work explains."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import soak
from tests.chaos.leaks import MEGABYTE, Counts, Process, Sample, judge
from tests.chaos.soak import Session

TRIGGERER = Process("triggerer", 7, started=0, memory=300 * MEGABYTE, handles=40)
COUNTS = Counts(
    things={"tables in storeside_staging": 0, "locks in AIStore": 0, "ETLs": 1},
    plans={"load_plan": 0},
    rows={"loads": 400, "runs": 90},
    parts={"loads": 4, "runs": 3},
    tasks=200,
    xcoms=600,
    failed_runs=0,
)
FIRST = Sample(600, 1_000, (TRIGGERER,), COUNTS)
# Two hours later: twelve times as many rows, but none of the things.
LATER = replace(COUNTS, rows={"loads": 4_800, "runs": 1_200}, parts={"loads": 9, "runs": 5}, tasks=2_400, xcoms=7_300)
LAST = Sample(7_200, 12_000, (replace(TRIGGERER, memory=380 * MEGABYTE, handles=60),), LATER)
CLEAN = Session("2026-01-01 00:00", "01234567", 120, 180, 12_000, (), (), ())


def samples(memory: int = 0, handles: int = 0, minutes: int = 110) -> list[Sample]:
    """Return a sample a minute of one process, which grows by these amounts a minute."""
    return [
        Sample(
            60.0 * n,
            100 * n,
            (replace(TRIGGERER, memory=TRIGGERER.memory + n * memory, handles=40 + n * handles),),
        )
        for n in range(1, minutes)
    ]


def test_growth_by_work_is_no_leak() -> None:
    assert judge(FIRST, LAST, samples(memory=MEGABYTE // 2), 10) == []
    fewer = replace(LATER, things={"tables in storeside_staging": 0, "ETLs": 0})
    assert judge(FIRST, replace(LAST, counts=fewer), [], 10) == []


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"things": {"tables in storeside_staging": 1}}, "tables in storeside_staging: 0, then 1"),
        ({"things": {"locks in AIStore": 2}}, "locks in AIStore: 0, then 2"),
        ({"things": {"ETLs": 2}}, "ETLs: 1, then 2"),
        ({"rows": {"loads": 7_000}}, "rows of loads: 0.40 for each object (400), then 0.58 (7000)"),
        ({"rows": {"new": 101}}, "rows of new: 0.00 for each object (0), then 0.01 (101)"),
        ({"parts": {"loads": 39}}, "parts of loads: 4, then 39"),
        ({"xcoms": 12_000}, "rows of XCom: 3.00 for each task (600), then 5.00 (12000)"),
        ({"plans": {"load_plan": 1}}, "partitions of load_plan: 0, then 1; 0 runs failed in between"),
        ({"plans": {"load_plan": 3}, "failed_runs": 2},
         "partitions of load_plan: 0, then 3; 2 runs failed in between"),
    ],
)  # fmt: skip
def test_a_leak_in_a_server_is_named_with_its_values(planted: dict[str, Any], expected: str) -> None:
    assert judge(FIRST, replace(LAST, counts=replace(LATER, **planted)), [], 10) == [expected]


def test_a_plan_of_a_run_that_failed_for_good_is_no_leak() -> None:
    counts = replace(LATER, plans={"load_plan": 2}, failed_runs=2)
    assert judge(FIRST, replace(LAST, counts=counts), [], 10) == []


def test_what_was_not_counted_is_a_finding() -> None:
    assert judge(FIRST, replace(LAST, counts=None), [], 10) == ["counts: not known"]


def test_a_component_that_grew_is_named_with_the_processes_below_it() -> None:
    children = tuple(Process("triggerer", pid, 0, 100 * MEGABYTE, 50) for pid in (8, 9, 10))
    assert judge(FIRST, replace(LAST, processes=(TRIGGERER, *children)), [], 10) == [
        "memory of triggerer: 300 MB, then 600 MB",
        "file handles of triggerer: 40, then 190",
    ]
    other = replace(TRIGGERER, component="worker", memory=9_000 * MEGABYTE)
    assert judge(FIRST, replace(LAST, processes=(other,)), [], 10) == [], "it has no former value"


def test_a_process_that_grows_is_found_although_another_one_has_replaced_it() -> None:
    assert judge(FIRST, LAST, samples(memory=4 * MEGABYTE), 10) == [
        "memory of triggerer, process 7: 338 MB after 10 minutes, 718 MB after 109"
    ]
    assert judge(FIRST, LAST, samples(handles=2), 10) == [
        "file handles of triggerer, process 7: 59 after 10 minutes, 249 after 109"
    ]
    assert judge(FIRST, LAST, samples(memory=40 * MEGABYTE, minutes=29), 10) == [], "it did not live long enough"


def test_hours_add_up_until_a_session_finds_something(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    assert soak.read(path) == []
    path.write_text(json.dumps([asdict(replace(CLEAN, leaks=("x: 0, then 1",))), asdict(CLEAN), asdict(CLEAN)]))
    sessions = soak.read(path)
    assert sessions[1:] == [CLEAN, CLEAN]
    assert soak.told(sessions) == "4.0 of 6 hours are done (commits 01234567)"
    assert soak.bench(sessions).splitlines() == [
        "BENCH soak.leaks 0 things",
        "BENCH soak.lost 0 objects",
        "BENCH soak.doubled 0 objects",
        "BENCH soak.minutes 240 minutes",
    ]
    found = [*sessions, replace(CLEAN, lost=("a", "b"))]
    assert not found[-1].clean
    assert soak.told(found) == "0.0 of 6 hours are done"
    assert soak.bench(found).splitlines()[1::2] == ["BENCH soak.lost 2 objects", "BENCH soak.minutes 0 minutes"]


def test_the_table_shows_both_rests() -> None:
    lines = soak.measured(FIRST, LAST).splitlines()
    assert "| memory of triggerer (MB) | 300 | 380 |" in lines
    assert "| ETLs | 1 | 1 |" in lines
    assert "| rows of loads | 400 | 4800 |" in lines
