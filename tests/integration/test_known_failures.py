"""Reports of loads count each listed object once, and name those that failed for good before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from storeside.transfer.run.engine import Report
from tests.transfers import Loading


def parts(report: Report) -> tuple[int, int, int, int]:
    found = report.loaded, report.failed, report.known_bad, report.skipped
    assert sum(found) == report.listed
    return found


def test_a_failure_is_stated_until_it_is_accepted_or_its_cause_is_corrected(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n,zone\n2,x\n"})
    assert parts(loading.load()) == (1, 1, 0, 0)
    again = loading.load()
    assert parts(again) == (0, 0, 1, 1)
    assert again.known_failures[0][0] == "b.csv"

    def command(*more: str) -> subprocess.CompletedProcess[str]:
        source = [f"s3://{loading.bucket}", loading.table, "--collection", "storeside_s3", *more]
        return subprocess.run(
            [sys.executable, "-m", "storeside.transfer", *source],
            env={**os.environ, **loading.variables()}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    failed = command()
    assert failed.returncode == 1
    assert "failed before: 'b.csv'" in failed.stderr
    assert "1 failed object accepted by ada" in command("--accept-failed", "ada").stdout
    accepted = command("--json")
    assert accepted.returncode == 0, accepted.stderr
    assert json.loads(accepted.stdout.splitlines()[-1])["skipped"] == 2
    assert parts(loading.load(on_drift="add")) == (1, 0, 0, 1)
    assert loading.rows("n, zone") == [(1, None), (2, "x")]


def test_what_another_run_loads_meanwhile_is_counted(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\nx\n", "c.csv": b"n\n3\n"})
    others: list[Report] = []
    report = loading.load(between=lambda _: others.append(loading.load("a")))
    assert parts(others[0]) == (1, 0, 0, 0)
    assert parts(report) == (1, 1, 0, 1)


def test_markers_decide_no_columns_and_fail_no_run(loading: Loading) -> None:
    loading.put({"_SUCCESS": b"", "_committed_1": b'{"added":[]}', "dt=1/.a.csv.crc": b"crc\0\1"})
    loading.put({"dt=1/a.csv": b"n\n1\n"})
    report = loading.load()
    assert parts(report) == (1, 0, 0, 0)
    assert report.ignored == {"_*": 2, ".*": 1}
    assert loading.rows() == [(1,)]
