"""The arguments of ``python -m storeside.transfer``."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import replace
from unittest.mock import Mock

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.operators.bases.selecting import POLICIES
from storeside.transfer.__main__ import main, say_what_is_missing, status
from storeside.transfer.base.errors import TransferInputError, is_without_collection
from storeside.transfer.base.queries import being_read
from storeside.transfer.cli import add_on_nothing, end_without, request, transfer_arguments
from storeside.transfer.printing import report_text
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.batch_threads import describe
from storeside.transfer.run.engine import Report
from storeside.transfer.run.preparation import Prepared
from storeside.transfer.run.pulling import clickhouse_reads
from storeside.transfer.state.loads import Totals
from tests.statements import Engine
from tests.transfers import request_of


@pytest.fixture(autouse=True)
def _region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")


def made(*arguments: str) -> Request:
    return request(transfer_arguments("storeside.transfer", "").parse_args(["s3://trips/2026/", "d.t", *arguments]))


def test_defaults_are_the_engines() -> None:
    default = Request(Source("trips", "2026/", endpoint="http://minio:9000"), "d.t")
    assert made() == default


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--all-or-nothing"], "--set all_or_nothing=VALUE"),
        (["--skip-rows", "3", "--sample-bytes=9"], "--set csv.skip_rows=VALUE --set read.sample_bytes=VALUE"),
        (["--nonsense"], ""),
    ],
)
def test_an_unknown_argument_is_told_the_option_that_it_means(
    capsys: pytest.CaptureFixture[str], arguments: list[str], remedy: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["s3://trips/", "data.trips", *arguments])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f": write {remedy}" if remedy else f"unrecognized arguments: {arguments[0]}"), last


def test_reports_are_tables_for_people_and_json_for_programs() -> None:
    """A table has no line for a number that is zero, and bytes have the unit that fits."""
    report = Report(3, 1, 1, 1, 1_234_567, 0, 44_400_000, 1.26, (("a.csv", "it is empty"),), known_bad=1)
    lines = [line.rsplit("  ", maxsplit=1) for line in report_text(report, as_json=False).splitlines()]
    assert {name.strip(): number for name, number in lines} == {
        "listed": "3", "skipped": "1", "loaded": "1", "failed": "1", "rows": "1,234,567", "bytes": "44.4 MB",
        "seconds": "1.3", "failed before": "1",
    }  # fmt: skip
    assert lines[-1][0].strip() == "failed before"
    assert "listed         0" in report_text(Report(0, 0, 0, 0, 0, 0, 0, 0.0), as_json=False)
    found = json.loads(report_text(report, as_json=True))
    assert (found["rows"], found["rejected"]) == (1_234_567, 0)
    assert found["failures"] == [["a.csv", "it is empty"]]


@pytest.mark.parametrize(
    ("on_nothing", "code", "said"),
    [
        ("succeed", 0, "no object matches s3://trips/2026/; 2 markers _* ignored\n"),
        ("skip", 99, "no object matches s3://trips/2026/; 2 markers _* ignored\n"),
        ("fail", 1, "error: no object matches s3://trips/2026/; 2 markers _* ignored\n"),
    ],
)
def test_a_prefix_without_objects_says_so(
    capsys: pytest.CaptureFixture[str], on_nothing: str, code: int, said: str
) -> None:
    given = argparse.Namespace(source="s3://trips/2026/", on_nothing=on_nothing)
    nothing = Report(0, 0, 0, 0, 0, 0, 0, 0.1, ignored={"_*": 2})
    assert status(nothing, given) == code
    assert capsys.readouterr().err == said
    assert status(replace(nothing, listed=1, skipped=1), given) == 0
    assert status(replace(nothing, listed=1, failed=1), given) == 1
    assert capsys.readouterr().err == ""


def test_operator_and_command_have_the_same_choices() -> None:
    parser = argparse.ArgumentParser()
    add_on_nothing(parser)
    for policy in POLICIES:
        assert parser.parse_args(["--on-nothing", policy]).on_nothing == policy
        end_without("nothing", policy)
    assert parser.parse_args([]).on_nothing == "succeed"


@pytest.mark.parametrize("loader", ["auto", "pull"])
@pytest.mark.parametrize(
    "source", [Source("trips", "2026/", "nosuch"), Source("ais://a", "", "nosuch", "http://p/s3")]
)
def test_a_collection_that_does_not_exist_turns_no_pull_into_a_push(source: Source, loader: str) -> None:
    """ClickHouse's own error, from the engine in this process."""
    wanted = request_of(source, "data.t", "csv", loader=loader)
    with pytest.raises(TransferInputError, match="collection 'nosuch': ClickHouse has no named collection of this"):
        clickhouse_reads(Engine(), wanted)


def test_a_collection_without_a_right_is_refused_too() -> None:
    said = "x: Not enough privileges. To execute this query, it's necessary to have the grant NAMED COLLECTION ON c"
    assert is_without_collection(coded(497, said))
    assert not is_without_collection(coded(497, "necessary to have the grant SELECT(a) ON data.t"))
    assert not is_without_collection(coded(499, "There is no named collection"))


@pytest.mark.parametrize(
    ("collection", "way"), [("", " (a named collection may give ClickHouse the endpoint and the keys)"), ("c", "")]
)
def test_a_push_for_want_of_access_states_what_gives_it(
    caplog: pytest.LogCaptureFixture, collection: str, way: str
) -> None:
    client = Mock()
    client.query.side_effect = coded(499, "Access Denied")
    with caplog.at_level(logging.INFO):
        assert not clickhouse_reads(client, request_of(Source("trips", "2026/", collection), "data.t", "csv"))
    assert f"ClickHouse cannot read the bucket, so the worker pushes{way}: Access Denied" in caplog.text


def coded(code: int, text: str) -> DatabaseError:
    error = DatabaseError(text)
    error.code = code
    return error


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
        "left in the source: 2 objects more",
        "failed before: 'a.csv': it is empty",
        "failed before: 2 objects more",
    ]


def test_the_sample_is_chosen() -> None:
    found = made("--set=read.sample_objects=50", "--set=read.sample_bytes=4096")
    assert (found.read.sample_objects, found.read.sample_bytes) == (50, 4096)
    with pytest.raises(TransferInputError, match="sample_bytes 0: needs to be 1 or more"):
        made("--set=read.sample_bytes=0")


def test_a_line_of_progress_has_rate_and_remaining_time() -> None:
    """Bytes of unpublished objects count, too: a load of one large object progresses."""
    plan = Prepared("csv", False, listed=4, planned=4, bytes=100_000_000)
    done = Totals(2, 1, rows=1_000, rejected=0, bytes=20_000_000)
    assert describe(done, (500, 5_000_000), plan, 10.0) == (
        "3 of 4 objects, 1 failed, 25.0 MB of 100.0 MB, 2.5 MB/s, 30 s to go; 1,500 rows"
    )
    assert describe(Totals(0, 0, 0, 0, 0), (0, 0), plan, 0.5) == "0 of 4 objects, 0 B of 100.0 MB; 0 rows"


def test_statements_that_fill_no_table_of_the_load_are_not_its_progress() -> None:
    """The statement runs in ClickHouse's engine in this process."""
    assert being_read(Engine(), "load_0") == (0, 0)
