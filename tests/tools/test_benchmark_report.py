"""The page of benchmarks: printed figures become sections, and benchmarks that did not run keep theirs."""

from __future__ import annotations

import re

from tests.benchmarks import report

PRINTED = """\
machine

| case | s |
|---|---|
| a | 1 |

BENCH events.lost 0.00 objects
BENCH transform.vs_client 9.50 x
"""


def test_what_is_printed_becomes_a_section() -> None:
    text = report.section("events", "make bench-events", PRINTED, 90)
    assert text.startswith("## S3 events into ClickHouse")
    assert re.search(
        r"`make bench-events`, \d{4}-\d\d-\d\d, commit ([0-9a-f]{7,}(-dirty)?|unknown), 2 minutes\.", text
    )
    assert "\n| `events.lost` | 0.00 | objects |\n" in text
    assert "\n| case | s |\n|---|---|\n| a | 1 |" in text
    assert "```text\nmachine\n```" in text
    assert "BENCH" not in text
    assert "missed" not in text
    assert "It missed an aim (exit status 1)" in report.section("hsds", "make bench-hsds", PRINTED, 1, 1)


def test_sections_are_kept_and_stand_beside_what_was_published() -> None:
    page = report.page({name: report.section(name, "make", PRINTED, 1) for name in ("events", "transform")})
    assert report.page(report.sections(page)) == page
    assert set(report.sections(page)) == {"events", "transform"}
    assert "| 9.50 x (`transform.vs_client`) |" in page
    assert "| not measured |" in page
