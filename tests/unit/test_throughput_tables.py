"""The figures of a measurement, in ClickHouse's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from storeside import sql
from tests.unit.test_sql import PARAMETERS, Engine, every_statement

START = 1_767_225_600  # `since` of the parameters


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    for statement in every_statement():
        engine.run(statement)
    engine.run("TRUNCATE TABLE storeside.throughput")
    yield engine
    engine.session.close()


def add(engine: Engine, node: str, tick: int, megabytes: float, **other: Any) -> None:
    began = START + other.pop("at", tick)
    ended = began + other.pop("seconds", 1)
    row = {
        "m": "dag/run/task/1", "t": tick, "n": node, "b": f"{began:.3f}", "e": f"{ended:.3f}",
        "r": int(megabytes * 1e6), "d": other.pop("disks", []),
    }  # fmt: skip
    engine.run(
        "INSERT INTO storeside.throughput (measurement, tick, node, began, ended, read_bytes, disk_use) VALUES"
        " ({m:String}, {t:UInt32}, {n:String}, {b:String}, {e:String}, {r:UInt64}, {d:Array(Float32)})",
        row,
    )


def figures(engine: Engine, **parameters: Any) -> list[Any]:
    (row,) = engine.run(sql.query("throughput_figures"), {**PARAMETERS, **parameters})
    return row


def test_figures(engine: Engine) -> None:
    for tick, (a, b) in enumerate([(90, 110), (100, 120), (80, 100)]):
        add(engine, "a", tick, a, disks=[50, 60])
        add(engine, "b", tick, b, disks=[40])
    ticks, mean, peak, time, nodes, low, average, high = figures(engine)
    assert (ticks, mean, peak) == (3, 200e6, 220e6)
    assert time == pytest.approx(8.165, abs=1e-3)  # sqrt(800 / 3) / 200
    assert nodes == pytest.approx(20.0)  # 90 and 110
    assert (low, average, high) == (40, 50, 60)


def test_the_same_samples_twice_count_once(engine: Engine) -> None:
    for _ in range(2):
        add(engine, "a", 0, 100)
        add(engine, "b", 0, 100)
    assert figures(engine)[:3] == [1, 200e6, 200e6]


def test_only_the_steady_part_and_full_seconds_count(engine: Engine) -> None:
    add(engine, "a", 0, 1, at=-0.5)  # begins before
    add(engine, "b", 0, 1, at=-0.5)
    add(engine, "a", 1, 100)
    add(engine, "b", 1, 100)
    add(engine, "a", 2, 1)  # b did not answer
    add(engine, "a", 60, 1)  # ends after
    add(engine, "b", 60, 1)
    assert figures(engine)[:3] == [1, 200e6, 200e6]


def test_a_longer_interval_is_no_higher_speed(engine: Engine) -> None:
    add(engine, "a", 1, 100)
    add(engine, "b", 1, 400, seconds=4)
    assert figures(engine)[1] == 200e6
