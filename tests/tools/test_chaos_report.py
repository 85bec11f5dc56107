"""The chaos driver's reading of faults and logs: when it fails, and that its patterns match nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import faults, report
from tests.chaos.answers import AWS_ANSWERS, GATEWAY_ANSWERS
from tests.chaos.faults import Fault
from tests.chaos.report import Findings
from tests.chaos.rig import DISKS, LINKS

GOOD = Findings(9, [], [], [], [], [], {"loads": {"success": 3}}, {"kill -9 s3": 2, "clock step S3, SQS": 0}, [])
KINDS = [kind.name for kind in faults.kinds(SimpleNamespace(links=LINKS, disks=DISKS))]  # type: ignore[arg-type]
# Lines of a run without faults.
QUIET = (
    "2026-11-22T00:29:00.850503Z [info] request finished duration_us=15039 status_code=200",
    'etl init {"OBJECT_TIMEOUT":"300"}], timeout=(1m0s, 6m0s)',
    "path=/execution/task-instances/01a200b8-3995-7b63-a0f6-2e1777e50500/heartbeat query= status_code=204",
    "INFO stopped: clickhouse (terminated by SIGTERM)",
    "Process exited exit_code=<Negsignal.SIGKILL: -9> loc=supervisor.py:1119 pid=5597 signal_sent=SIGKILL",
    "",
)
# Lines of runs of the driver.
SHOWN = {
    "kill -9 worker": "Workload finished duration=19.7 exit_code=<Negsignal.SIGKILL: -9> final_state=failed",
    "kill -9 ETL server": 'container: transcode-1, state: Terminated, reason: Error, message: , exitCode: 137"]',
    "kill -9 ais-target": "00:36:48,307 WARN exited: ais-target-1 (terminated by SIGKILL; not expected)",
    "reset AIStore > S3": "read tcp 127.0.0.1:42432->127.0.0.1:45049: read: connection reset by peer(0)",
    "reset workers > ClickHouse": "Error ('Connection aborted.', RemoteDisconnected('Remote end closed connection",
    "slow workers > AIStore": "httpx.ReadTimeout: timed out",
    "truncated workers > S3, SQS": "ChunkedEncodingError: ('Connection broken: IncompleteRead(9 bytes read, 9 more",
    "expired credentials AIStore > S3": "aws-error[ExpiredToken: The provided token has expired.]",
    "clock ClickHouse > S3": "s3://chaos-loads/jsonl/: RequestTimeTooSkewed",
    "500 ClickHouse > S3": "S3 exception: `InternalError`, message: 'We encountered an internal error.",
    "503 AIStore > S3": "aws-error[SlowDown: s3://recordings/chaos/003505.wav] (and 2 more errors) 3 ]",
    "too many parts ClickHouse": "batch 1: Too many parts (1 with average size of 350.00 B) (TOO_MANY_PARTS)",
    "disk full ClickHouse": "batch 1: Cannot reserve 1.00 MiB, not enough space (NOT_ENOUGH_SPACE): once more",
    "disk full mountpath": "cap(used 1.4GiB, avail 0B [min=100%, avg=100%, max=100], OOS): out of space: used 100%",
}  # fmt: skip


def seen(folder: Path, lines: tuple[str, ...] | list[str]) -> dict[str, int]:
    (folder / "logs").mkdir()
    (folder / "logs" / "any.log").write_text("".join(f"{line}\n" for line in lines))
    rig: Any = SimpleNamespace(stack=SimpleNamespace(state=folder))
    return report.seen(rig, KINDS)


def test_a_quiet_log_shows_no_fault(tmp_path: Path) -> None:
    assert len(KINDS) > 40
    assert {kind for kind, count in seen(tmp_path, QUIET).items() if count} == set()


def test_logs_show_faults(tmp_path: Path) -> None:
    found = seen(tmp_path, list(SHOWN.values()))
    assert {kind for kind in SHOWN if not found[kind]} == set()
    assert not found["kill -9 clickhouse"], "somebody else was killed"
    assert not found["clock step S3, SQS"]


@pytest.mark.parametrize("kind", [*AWS_ANSWERS, *GATEWAY_ANSWERS])
def test_what_a_link_answers_is_what_is_looked_for(kind: str) -> None:
    answers = [group[kind](b"GET /") for group in (AWS_ANSWERS, GATEWAY_ANSWERS) if kind in group]
    assert all(re.search(report._sign(f"{kind} workers"), answer.decode()) for answer in answers)


def test_a_run_fails_by_what_did_not_recover_and_by_what_no_log_shows() -> None:
    assert not GOOD.wrong
    assert replace(GOOD, unrecovered=["kill -9 s3 at 00:00:00 UTC"]).wrong
    unseen = replace(GOOD, seen={**GOOD.seen, "500 ClickHouse > S3": 0}, unseen=["500 ClickHouse > S3"])
    assert unseen.wrong
    pipelines: list[Any] = [SimpleNamespace(name="loads", put=9, trouble=[])]
    told = report.summary(unseen, pipelines)
    assert "not visible in any log: 1\n  500 ClickHouse > S3" in told
    assert "as may be: clock step S3, SQS\n" in told
    assert "BENCH chaos.unseen 1 kinds" in report.bench([], unseen)


def test_kinds_that_were_done_often_enough_have_to_show() -> None:
    done = [Fault(kind, ()) for kind in ("clock step S3, SQS", "500 ClickHouse > S3", "kill -9 s3") for _ in range(4)]
    lines = {"clock step S3, SQS": 0, "500 ClickHouse > S3": 0, "kill -9 s3": 1, "503 AIStore > S3": 0}
    assert report.unseen(lines, [*done, Fault("503 AIStore > S3", ())]) == ["500 ClickHouse > S3"]


def test_a_fault_that_ends_a_pipeline_is_not_recovered_from() -> None:
    def pipeline(dag: str, *progress: tuple[float, int]) -> Any:
        return SimpleNamespace(dag=dag, put=10, progress=list(progress))

    fault = Fault("kill -9 s3", ("a", "b"), began=100, ended=101, met=1)
    done, stuck, other = pipeline("a", (50.0, 4), (130.0, 10)), pipeline("b", (50.0, 4)), pipeline("c", (50.0, 4))
    assert report.unrecovered([fault], [done, other, pipeline("b", (60.0, 10))]) == []
    assert report.unrecovered([fault], [done, stuck]) == ["kill -9 s3 at 00:01:40 UTC"]
    assert report.unrecovered([fault], [pipeline("b")]), "nothing was ever finished"
    assert report.rows_of([fault], [done, stuck]) == [("kill -9 s3", 1, 0, 30.0)]
