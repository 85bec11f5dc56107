"""The arguments of ``python -m storeside.transfer``."""

from __future__ import annotations

import json

import pytest

from storeside.transfer.__main__ import main
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


def test_the_sample_is_chosen() -> None:
    found = made("--sample-objects", "50", "--sample-bytes", "4096")
    assert (found.read.sample_objects, found.read.sample_bytes) == (50, 4096)
    with pytest.raises(TransferInputError, match="sample_bytes 0: needs to be 1 or more"):
        made("--sample-bytes", "0")
