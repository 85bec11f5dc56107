"""The check of sleeps finds those without a reason, and no others."""

from __future__ import annotations

import pytest

from tests.structure import sleeps


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "    sleep(0.1)",
        "await asyncio.sleep(seconds)",
        "time.sleep(1)  # noqa: S311",
        "time.sleep(1)  # type: ignore[arg-type]",
        "late = lambda: time.sleep(0.1) or {}",
    ],
)
def test_a_sleep_needs_a_reason(line: str) -> None:
    source = f"async def test():\n    x = '# text'\n    {line.strip()}\n"
    assert list(sleeps(source)) == [3]


@pytest.mark.parametrize(
    "lines",
    [
        "time.sleep(1)  # S3's times are whole seconds",
        "time.sleep(random())  # noqa: S311 - at random times",
        "# as long as the lock's age\n    time.sleep(1)",
        "await asyncio.sleep(0)",
        "code = 'import time; time.sleep(60)'",
        "patch('time.sleep', slept.append)",
    ],
)
def test_other_lines_are_left_alone(lines: str) -> None:
    assert list(sleeps(f"async def test():\n    {lines}\n")) == []
