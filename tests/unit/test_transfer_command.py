"""The arguments of ``python -m storeside.transfer``."""

from __future__ import annotations

import json

import pytest

from storeside.transfer.__main__ import main, say_what_is_missing
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.cli import request, transfer_arguments
from storeside.transfer.printing import report_text
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Report


@pytest.fixture(autouse=True)
def _region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")


def made(*arguments: str) -> Request:
    return request(transfer_arguments("storeside.transfer", "").parse_args(["s3://trips/2026/", "d.t", *arguments]))


def test_defaults_are_the_engines() -> None:
    default = Request(Source("trips", "2026/", endpoint="http://minio:9000"), "d.t")
    assert made() == default


def test_reports_are_tables_for_people_and_json_for_programs() -> None:
    report = Report(3, 1, 1, 1, 1_234_567, 0, 44_400_000, 1.26, (("a.csv", "it is empty"),))
    lines = dict(line.split(maxsplit=1) for line in report_text(report, as_json=False).splitlines())
    assert lines == {
        "listed": "3", "skipped": "1", "loaded": "1", "failed": "1", "rows": "1,234,567", "rejected": "0",
        "bytes": "44,400,000 (44.4 MB)", "seconds": "1.3", "filtered": "0",
        "handled": "0", "left": "0", "removed": "0", "known": "bad  0",
    }  # fmt: skip
    found = json.loads(report_text(report, as_json=True))
    assert found["rows"] == 1_234_567
    assert found["failures"] == [["a.csv", "it is empty"]]


@pytest.mark.parametrize("who", ["", " "])
def test_nobody_accepts_failures_without_a_name(capsys: pytest.CaptureFixture[str], who: str) -> None:
    """An empty variable of a shell must not start a load instead."""
    with pytest.raises(SystemExit, match="2"):
        main(["s3://trips/2026/", "d.t", "--accept-failed", who])
    assert "argument --accept-failed: it is empty: state who accepts the failures" in capsys.readouterr().err


def test_two_buckets_are_no_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ais://a", "ais://b"]) == 2
    said = capsys.readouterr().err
    assert "'ais://b' is a bucket, and this command loads objects into a table: write database.table" in said
    assert "with --accept-failed WHO, this command accepts the failures of such a transform" in said


def test_the_number_of_objects_that_are_not_named_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    named = (("a.csv", "it is empty"),)
    say_what_is_missing(Report(9, 0, 0, 1, 0, 0, 0, 0.0, named, known_bad=3, known_failures=named, left=2))
    assert capsys.readouterr().err.splitlines()[:4] == [
        "failed: 'a.csv': it is empty",
        "left in the source: 2 more objects",
        "failed before: 'a.csv': it is empty",
        "failed before: 2 more objects",
    ]


def test_the_sample_is_chosen() -> None:
    found = made("--sample-objects", "50", "--sample-bytes", "4096")
    assert (found.read.sample_objects, found.read.sample_bytes) == (50, 4096)
    with pytest.raises(TransferInputError, match="sample_bytes 0: needs to be 1 or more"):
        made("--sample-bytes", "0")
