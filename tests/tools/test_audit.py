"""`make audit`'s judgement of advisories and of their written reasons."""

from __future__ import annotations

import json
import re

import pytest

from tests import audit

REPORT = json.dumps(
    {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {
                "name": "bad",
                "version": "2",
                "vulns": [
                    {"id": "PYSEC-1", "aliases": ["CVE-1", "GHSA-a"], "fix_versions": ["3"]},
                    {"id": "GHSA-b", "aliases": [], "fix_versions": []},
                ],
            },
        ],
        "fixes": [],
    }
)


def test_an_advisory_passes_with_a_reason_only() -> None:
    found = audit.advisories(REPORT)
    assert list(map(str, found)) == [
        "bad 2: PYSEC-1 CVE-1 GHSA-a: mended in 3",
        "bad 2: GHSA-b: not mended yet",
    ]
    given = audit.reasons("# why\n\nGHSA-a bad: nobody can reach the function that is concerned\n")
    left, outdated = audit.judge(found, {**given, "CVE-9": "of a package that has gone"})
    assert [advisory.names for advisory in left] == [("GHSA-b",)]
    assert outdated == {"CVE-9"}


@pytest.mark.parametrize(
    "line", ["GHSA-a", "GHSA-a bad", "GHSA-a bad: no", "bad: a reason that is long enough to count"]
)
def test_a_line_without_a_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="write an advisory"):
        audit.reasons(line)


@pytest.mark.parametrize(
    "report",
    [
        "",
        "Traceback",
        "{}",
        "[]",
        '{"dependencies": []}',
        '{"dependencies": [{"name": "x", "skip_reason": "not found"}]}',
    ],
)
def test_no_answer_is_not_a_clean_one(report: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        audit.advisories(report)


def test_every_written_reason_is_of_a_pinned_package_and_all_pins_have_hashes() -> None:
    text = "".join(lock.read_text() for lock in audit.LOCKS)
    pins = re.findall(r"^([a-z0-9._-]+)==\S+[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    accepted = audit.reasons(audit.REASONS.read_text())
    packages = re.findall(r"^(?:GHSA|CVE|PYSEC|OSV)-\S+ (\S+):", audit.REASONS.read_text(), re.MULTILINE)
    assert len(packages) == len(accepted)
    assert set(packages) <= set(pins)
