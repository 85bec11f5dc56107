from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.io import attach
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureTransientError
from storeside.measure.throughput import tables
from storeside.measure.throughput.bounds import node_bound
from storeside.measure.throughput.chart import draw
from storeside.measure.throughput.cluster import Comparison, Measurement, Report
from storeside.measure.throughput.group import LoaderGroup, LocalLoaders, merged
from storeside.measure.throughput.load import Load, Loader, Outcome, environment, find, size
from storeside.measure.throughput.nodes import Counters, Differences
from storeside.measure.throughput.tables import Figures, Second, Verdict, judge
from storeside.operators.operators import throughput
from storeside.operators.operators.throughput import AISMeasureThroughputOperator
from storeside.stack.settings import CHECKOUT
from tests.support import until

BUCKET = Bucket("ais", "bench")
READ = Load(BUCKET, "read", 10 << 20, 16, 60, dataset_bytes=1 << 30)
CONTEXT: Any = {
    "dag_run": SimpleNamespace(dag_id="dag", run_id="run"),
    "ti": SimpleNamespace(dag_id="dag", task_id="measure", try_number=1, map_index=-1),
}


# ---- the load


@pytest.mark.parametrize(("text", "expected"), [("1KiB", 1024), ("10 MiB", 10 << 20), ("2GiB", 2 << 30)])
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "10", "10MB", "-1MiB", "1.5MiB", "10MiB; rm", "MiB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a number and one of KiB, MiB"):
        size(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "append"}, "use one of read, write, mixed"),
        ({"object_bytes": 1023}, "object size 1023: use 1024 to 5368709120"),
        ({"object_bytes": (5 << 30) + 1}, "object size"),
        ({"concurrency": 0}, "concurrency 0: use 1 to 4096"),
        ({"seconds": 4}, "seconds 4: use 5 to 86400"),
        ({"dataset_bytes": 10 << 20}, "needs at least two objects"),
        ({"prefix": "in/"}, "use one of the two"),
        ({"workload": "mixed", "dataset_bytes": 0}, "needs a dataset"),
        ({"workload": "write", "dataset_bytes": 0, "prefix": "in/"}, "only reads"),
        ({"write_bytes": 1}, "less than one object"),
        ({"loaders": 0}, "loaders 0: use 1 to 64"),
        ({"loaders": 65}, "loaders 65"),
        (
            {"loaders": 2, "write_bytes": 19 << 20},
            r"less than one object of 10485760 bytes for each of 2 loaders: set write_limit to at least 20MiB",
        ),
        (
            {"object_bytes": 1500, "write_bytes": 1},
            "set write_limit to at least 2KiB, or use smaller objects or fewer",
        ),
    ],
)
def test_loads_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(READ, **change)


def test_the_bucket_is_never_cleaned_up_by_the_loader() -> None:
    """With -cleanup=true the loader destroys the bucket, including foreign objects."""
    for workload in ("read", "write", "mixed"):
        load = replace(READ, workload=workload)
        for arguments in (load.arguments("own"), load.fill_arguments("own")):
            assert "-cleanup=false" in arguments
            assert "-subdir=own" in arguments


def test_existing_objects_are_read_below_their_prefix() -> None:
    load = replace(READ, dataset_bytes=0, prefix="in/")
    assert not load.writes
    assert {"-subdir=in/", "-pctput=0"} <= set(load.arguments("own"))


def test_writing_has_an_end() -> None:
    assert f"-totalputsize={10 << 30}" in replace(READ, workload="write").arguments("own")
    assert not any("totalputsize" in a for a in READ.arguments("own"))
    assert f"-totalputsize={5 << 30}" in replace(READ, workload="write", loaders=2).arguments("own")


def test_a_token_is_in_the_environment_and_no_foreign_endpoint_is() -> None:
    cluster = Cluster("https://ais:51080", token="secret", ca_cert="/ca.pem", verify=False)
    found = environment(cluster, {"PATH": "/bin", "S3_ENDPOINT": "http://elsewhere", "AIS_AUTHN_URL": "x"})
    assert found == {
        "PATH": "/bin", "AIS_ENDPOINT": "https://ais:51080", "AIS_AUTHN_TOKEN": "secret",
        "AIS_CLIENT_CA": "/ca.pem", "AIS_SKIP_VERIFY_CRT": "true",
    }  # fmt: skip
    assert not any("secret" in a for a in READ.arguments("own"))


def test_a_missing_loader_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.*extra 'aisloader'.*building.aisloader"):
        find(str(tmp_path / "absent"))


TOTALS = """[
{"get": {"start_time": "2026-11-21T10:00:00.123456789Z", "count": "3", "bytes": "300", "errors": 0,
  "latency": 2000000, "duration": 5000000000, "min_latency": 1, "max_latency": 2, "throughput": "60"},
 "put": {"start_time": "2026-11-21T10:00:00.123456789Z", "count": "1", "bytes": "100", "errors": 0,
  "latency": 6000000, "duration": 5000000000, "min_latency": 3, "max_latency": 4, "throughput": "20"},
 "get_batch": null}
]"""

FAILED = TOTALS.replace('"errors": 0', '"errors": 7')


def test_totals_are_of_reads_and_writes_together() -> None:
    outcome = Outcome.parse(TOTALS)
    began = pytest.approx(1795255200.123456)
    together = (began, pytest.approx(1795255205.123456))
    assert outcome == Outcome(began, 5.0, 4, 0, 400, pytest.approx(0.003), 1e-9, 4e-9, together)


def test_latencies_are_those_of_requests_that_were_made() -> None:
    """`aisloader` writes 0 where there were no requests, which would be the smallest latency."""
    no_writes = TOTALS.replace('"count": "1"', '"count": "0"').replace('"min_latency": 3', '"min_latency": 0')
    assert Outcome.parse(no_writes).latency_min_seconds == 1e-9


def script(folder: Path, *lines: str) -> str:
    """Write a loader with a test's script; `$out` is the file for the totals."""
    path = folder / "aisloader"
    head = ["#!/bin/sh", 'for a; do case "$a" in -stats-output=*) out="${a#*=}";; esac; done']
    path.write_text("\n".join([*head, *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


def end(loader: str) -> Outcome:
    with Loader(loader, [], dict(os.environ)) as running:
        assert running.wait(60)
        return running.outcome()


def test_a_loader_that_ends_well(tmp_path: Path) -> None:
    assert end(script(tmp_path, f"cat > $out <<'E'\n{TOTALS}\nE")).requests == 4


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["echo 'ERROR: bucket on fire' >&2; exit 3"], "exited with 3: ERROR: bucket on fire"),
        (["echo hello"], r"left no totals \(.*: hello"),
        (["echo '[' > $out"], "left no totals"),
        (["echo 'GET failed: x'", f"cat > $out <<'E'\n{FAILED}\nE"], "14 requests .* failed and 4 .*GET failed: x"),
    ],
)  # fmt: skip
def test_a_loader_that_does_not(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(MeasureTransientError, match=message):
        end(script(tmp_path, *lines))


def test_a_loader_ends_with_its_block(tmp_path: Path) -> None:
    with Loader(script(tmp_path, "exec sleep 60"), [], dict(os.environ)) as running:
        assert not running.wait(0.2)
        process = psutil.Process(running.pid)
    assert not process.is_running()


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_loaders_do_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, time; from storeside.measure.throughput.group import LoaderGroup;"
        f"group = LoaderGroup([[{script(tmp_path, 'exec sleep 60')!r}]] * 3, dict(os.environ)); group.begin();"
        "print(*group.pids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        loaders = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(loaders) == 3
        until(lambda: all(loader.name() == "sleep" for loader in loaders), 60, "loaders")
        parent.send_signal(signal.SIGKILL)
    until(lambda: all(map(gone, loaders)), 60, "end of the loaders")


# ---- several loaders


def outcome(began: float, seconds: float, requests: int, **other: Any) -> Outcome:
    """Return the outcome of one loader, whose requests of 10 bytes took `mean` seconds each."""
    mean, low, high = (other.get(name, 0.0) for name in ("mean", "low", "high"))
    return Outcome(began, seconds, requests, 0, 10 * requests, mean, low, high, (began, began + seconds))


def test_outcomes_of_several_loaders_are_merged() -> None:
    slow, fast = outcome(100, 10, 10, mean=4.0, low=2.0, high=9.0), outcome(102, 10, 30, mean=1.0, low=0.5, high=3.0)
    assert merged([slow, fast]) == Outcome(100, 12, 40, 0, 400, 1.75, 0.5, 9.0, (102, 110))
    assert merged([slow]) == slow


def test_a_loader_without_requests_has_no_latency() -> None:
    assert merged([outcome(0, 9, 0), outcome(0, 9, 3, mean=2.0, low=1.0, high=3.0)]).latency_min_seconds == 1.0


def test_loaders_that_did_not_run_together_are_no_measurement() -> None:
    with pytest.raises(MeasureTransientError, match=r"2 loaders did not run at the same time.*6\.0 s after"):
        merged([outcome(0, 5, 1), outcome(6, 5, 1)])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["echo 'ERROR: bucket on fire' >&2; exit 3"], "^loader 2 of 3: aisloader exited with 3: ERROR: bucket"),
        (["echo 'GET failed: x'", f"cat > $out <<'E'\n{FAILED}\nE"], "^loader 2 of 3: 14 requests .*GET failed: x"),
    ],
)  # fmt: skip
def test_one_failed_loader_ends_the_others_with_its_own_reason(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    (tmp_path / "well").mkdir()
    well = script(tmp_path / "well", "exec sleep 60")
    with LoaderGroup([[well], [script(tmp_path, *lines)], [well]], dict(os.environ)) as group:
        group.begin()
        processes = [psutil.Process(pid) for pid in (group.pids[0], group.pids[2])]
        until(lambda: group.wait(0.1), 60, "end of all loaders")
        assert all(map(gone, processes))
        with pytest.raises(MeasureTransientError, match=message):
            group.outcome()


def test_the_totals_of_all_loaders_count(tmp_path: Path) -> None:
    well = script(tmp_path, f"cat > $out <<'E'\n{TOTALS}\nE")
    with LoaderGroup([[well]] * 3, dict(os.environ)) as group:
        group.begin()
        until(lambda: group.wait(1), 60, "end of all loaders")
        assert (group.outcome().requests, group.outcome().bytes) == (12, 1200)


def test_loaders_end_if_another_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)  # setpriv would start, and fail later
    well = script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    group = LoaderGroup([[well], [str(tmp_path / "absent")]], dict(os.environ))
    before = set(psutil.Process().children())  # such as servers of other tests of this process
    with pytest.raises(FileNotFoundError), group:
        group.begin()
    assert not [p for p in set(psutil.Process().children()) - before if not gone(p)]


# ---- the targets


def counters(at: float, read: int, written: int = 0) -> Counters:
    return Counters(at, read, read // 10, 5 * read, written, written // 10, 0, 0, (50.0,))


def test_differences_of_counters() -> None:
    differences = Differences({"a": counters(0, 100), "b": counters(0, 0)})
    first = differences.take({"a": counters(2, 300, 50), "b": counters(2, 10)})
    assert [(s.tick, s.node, s.read_bytes, s.written_bytes, s.rate) for s in first] == [
        (0, "a", 200, 50, 125.0),
        (0, "b", 10, 0, 5.0),
    ]


def test_a_target_that_does_not_answer_is_counted_when_it_does() -> None:
    differences = Differences({"a": counters(0, 0), "b": counters(0, 0)})
    assert [s.node for s in differences.take({"a": counters(1, 10)})] == ["a"]
    late = differences.take({"a": counters(2, 20), "b": counters(2, 60)})
    assert [(s.tick, s.node, s.began, s.read_bytes) for s in late] == [(1, "a", 1, 10), (1, "b", 0, 60)]


def test_a_target_that_restarted_has_no_negative_speed() -> None:
    differences = Differences({"a": counters(0, 1000)})
    assert differences.take({"a": counters(1, 10)}) == []
    assert [s.read_bytes for s in differences.take({"a": counters(2, 30)})] == [20]


# ---- verdict, model, chart


@pytest.mark.parametrize(
    ("mean", "baseline", "runs", "expected"),
    [
        (100, None, 0, "first"),
        (90, 100.0, 3, "held"),
        (89.9, 100.0, 3, "regression"),
        (200, 100.0, 3, "held"),
    ],
)
def test_verdict(mean: float, baseline: float | None, runs: int, expected: str) -> None:
    assert judge(mean, baseline, runs, 10).name == expected


@pytest.mark.parametrize(("last", "tolerance"), [(-1, 10), (5, 0), (5, 100)])
def test_comparisons_that_are_refused(last: int, tolerance: float) -> None:
    with pytest.raises(ValueError, match="comparison"):
        Comparison(last, tolerance)


def test_bound_of_a_node() -> None:
    assert node_bound(0, 0) is None
    assert node_bound(100, 0) == 12.5e9
    assert node_bound(100, 3) == 3e9
    with pytest.raises(ValueError, match="use 0"):
        node_bound(-1, 0)


def test_chart_is_xml_with_a_line_per_target_whatever_they_are_called() -> None:
    rates = {f"<t{n}&": [(s, 1e6 * n + s) for s in range(10)] for n in range(20)}
    root = ET.fromstring(draw("a < b", rates, bound=3e7))  # noqa: S314 - our own
    lines = root.findall("{*}polyline")
    assert len(lines) == 20
    points = [tuple(map(float, p.split(","))) for line in lines for p in line.attrib["points"].split()]
    assert all(0 <= x <= 860 and 0 <= y <= 360 for x, y in points)
    assert ET.fromstring(draw("nothing", {}))  # noqa: S314


@pytest.mark.parametrize("disks", [False, True])
def test_a_chart_shows_the_cluster_its_targets_and_its_disks(disks: bool) -> None:
    rates = {f"t{n}": [(s, 1e6 * n) for s in range(10)] for n in range(1, 4)}
    seconds = [Second(s, 6e6, (1.0, 2.0, 50.0) if disks and s else None) for s in range(10)]
    root = ET.fromstring(draw("three targets", rates, 4e6, seconds))  # noqa: S314
    lines = [[float(p.split(",")[1]) for p in line.attrib["points"].split()] for line in root.findall("{*}polyline")]
    cluster, one, two, three, *use = lines
    assert [len(line) for line in use] == ([9, 9, 9] if disks else [])
    assert max(cluster) < min(three) < min(two) < min(one)
    texts = [text.text for text in root.findall("{*}text")]
    assert texts.count("limit") == 2
    assert ("% use of a disk" in texts) == disks


# ---- the operator


class Measured:
    """A measurement that has ended."""

    name = "dag/run/measure/-1/1"

    def __init__(self, verdict: Verdict, load: Load = READ) -> None:
        self.load = load
        figures = Figures(58, 80e6, 90e6, 2.0, 3.0, None, None, None)
        outcome = Outcome(0.0, 60.0, 480, 0, 4_800_000_000, 0.01, 0.002, 0.2, (0.0, 60.0))
        self.report = Report(self.name, 2, figures, outcome, verdict, 100e6, 80.0, 8 << 30)
        rates, seconds = {"t1": [(0.0, 1e6), (1.0, 2e6)]}, [Second(0.0, 1e6, None)]
        self.tables = SimpleNamespace(rates=lambda name: rates, seconds=lambda name: seconds)

    def run(self) -> Report:
        return self.report


def run(monkeypatch: pytest.MonkeyPatch, verdict: Verdict, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    recorded: dict[str, Any] = {}
    tables = SimpleNamespace(create=lambda: None, record_run=recorded.update)
    monkeypatch.setattr(throughput, "ledger", lambda conn_id: tables)
    operator = AISMeasureThroughputOperator(task_id="measure", bucket="ais://bench", **arguments)
    monkeypatch.setattr(operator, "measurement", lambda context: Measured(verdict, operator.load()))
    return operator.execute(CONTEXT), recorded


def test_a_regression_fails_the_task_once_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        AirflowFailException, match=r"80\.0 MB/s is 20\.0 % less than the 100\.0 MB/s of 4.*compare_runs 0"
    ):
        run(monkeypatch, Verdict("regression", 100e6, 4))


def test_a_regression_is_reported_if_so_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    report, recorded = run(monkeypatch, Verdict("regression", 100e6, 4), on_regression="report")
    assert report["verdict"]["name"] == recorded["state"] == "regression"
    json.dumps(report)  # as XCom does


def test_a_chart_goes_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    attach("s3", "disk", fs=DirFileSystem(str(tmp_path), LocalFileSystem()))
    _, recorded = run(monkeypatch, Verdict("first"), chart="s3://disk@reports/chart.svg", loaders=3)
    chart = (tmp_path / "reports" / "chart.svg").read_text()
    assert "<polyline" in chart
    assert "3 loaders with 16 workers each" in chart
    assert json.loads(recorded["detail"])["loaders"] == 3


def test_lines_say_what_was_measured() -> None:
    text = "\n".join(Measured(Verdict("held", 79e6, 3)).report.lines(replace(READ, loaders=3)))
    for part in (
        "3 loaders with 16 workers each",
        "10.0 ms per request (2.0 to 200.0)",
        "mean 80.0 MB/s, peak 90.0 MB/s over 58 s",
        "80.0 % of the limit",
        "no disks",
        "not of disks",
        "+1.3 %",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"object_size": "10"}, "size '10'"),
        ({"object_size": "6GiB"}, "object size"),
        ({"concurrency": "many"}, "concurrency 'many' is not a whole number"),
        ({"loaders": "two"}, "loaders 'two' is not a whole number"),
        ({"loaders": "0"}, "loaders 0: use 1 to 64"),
        ({"seconds": "1.5"}, "seconds '1.5' is not a whole number"),
        ({"nic_gbit": "fast"}, "nic_gbit 'fast' is not a number"),
        ({"disk_gb_per_second": ""}, "disk_gb_per_second '' is not a number"),
        ({"compare_runs": "all"}, "compare_runs 'all' is not a whole number"),
        ({"tolerance": "10%"}, "tolerance '10%' is not a number"),
        ({"bucket": "bench"}, "write it as one of"),
        ({"workload": "append"}, "use one of read"),
        ({"on_regression": "ignore"}, "use 'fail' or 'report'"),
        ({"dataset_size": "1GiB"}, "building.aisloader"),
    ],
)
def test_bad_input_fails_at_once(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str) -> None:
    monkeypatch.setattr(throughput, "clickhouse", lambda conn_id: None)
    connection = {"conn_type": "aistore", "host": "127.0.0.1", "port": 9, "extra": {"aisloader": "/absent/aisloader"}}
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(connection))
    operator = AISMeasureThroughputOperator(task_id="measure", **{"bucket": "ais://bench", **arguments})
    with pytest.raises(AirflowFailException, match=message):
        operator.execute(CONTEXT)


def test_a_cluster_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(throughput, "clickhouse", lambda conn_id: SimpleNamespace())
    monkeypatch.setattr(tables, "migrate", lambda client: [])
    connection = {"conn_type": "aistore", "host": "127.0.0.1", "port": 9}
    extra = {"aisloader": str(script(tmp_path, "exit 0"))}
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps({**connection, "extra": extra}))
    operator = AISMeasureThroughputOperator(task_id="measure", bucket="ais://bench", dataset_size="1GiB")
    with pytest.raises(
        AirflowException, match=r"AIStore at http://127\.0\.0\.1:9 does not answer.*check that it runs"
    ) as caught:
        operator.execute(CONTEXT)
    assert not isinstance(caught.value, AirflowFailException)


def test_the_objects_of_a_run_have_the_same_prefix_in_every_try(tmp_path: Path) -> None:
    loader = script(tmp_path, "exit 0")

    def prefix(scope: str, number: int) -> str:
        cluster = Cluster("http://127.0.0.1:9")
        loaders = LocalLoaders(cluster, loader)
        return Measurement(cluster, None, READ, loaders=loaders, name=f"{scope}/{number}", scope=scope).prefix

    assert prefix("dag/run/measure/-1", 1) == prefix("dag/run/measure/-1", 2) != prefix("dag/run2/measure/-1", 1)


def test_template_fields_are_attributes() -> None:
    operator = AISMeasureThroughputOperator(task_id="measure", bucket="ais://bench")
    assert all(hasattr(operator, name) for name in operator.template_fields)
