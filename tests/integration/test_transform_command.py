"""`storeside transform` on a real cluster: its report, its exit codes, and its end by Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.commands.transform import follow
from storeside.ledger.objects import Ledger
from storeside.stack.clients import clients_environment
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transform.bucket_job import BucketJob
from tests.support import put, read, sizes, small_spec, unique, until
from tests.transfers import environment

pytestmark = pytest.mark.usefixtures("no_etl_is_left")


def test_a_transform_from_the_command_line(stack: Stack, aistore: Any, tmp_path: Any) -> None:
    source, destination = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {"2026/a.txt": b"one two", "2026/b.txt": b"three", "2025/c.txt": b"other"})
    command = [sys.executable, "-m", "storeside", "transform", f"{source}/2026/", str(destination)]
    command += ["--transformer", "text_facts", "--rename", "txt=json"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options], cwd=CHECKOUT, env=environment(stack) | clients_environment(stack),
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    planned = run("--plan-only")
    assert planned.returncode == 0, planned.stderr
    assert "pending  2" in planned.stdout
    done = run()
    assert done.returncode == 0, done.stderr
    assert f"{source} -> {destination}: 2 objects done; 12 B in, " in done.stdout
    assert json.loads(read(aistore, destination, "2026/a.json"))["words"] == 2
    put(aistore, source, {"2026/bad.txt": b"\xff\xfe\x00"})
    failed = run("--json")
    assert failed.returncode == 1
    told = json.loads(failed.stdout)
    assert (told["done"], told["failed"], told["skipped"]) == (0, 1, 2), failed.stderr
    again = run()
    assert again.returncode == 1
    assert "0 objects done, 1 failed for good before, 2 unchanged" in again.stdout
    assert "failed before: '2026/bad.txt': " in again.stderr
    assert "correct the cause and use --retry-failed" in again.stderr
    nothing = subprocess.run(
        [*command[:4], f"{source}/2027/", *command[5:], "--on-nothing", "skip"], cwd=CHECKOUT, check=False,
        env=environment(stack) | clients_environment(stack), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert nothing.returncode == 99
    assert f"no object of {source}/2027/ matches" in nothing.stderr


def test_an_interruption_ends_the_job_and_its_etl(aistore: Any, clickhouse: Any) -> None:
    source, destination = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {str(n): b"1" for n in range(40)})
    spec = small_spec("slow", environment={"SECONDS": "5"})
    job = BucketJob(aistore, Ledger(clickhouse), source, destination, run_id=unique("run"), spec=spec)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(job, interrupt)
    until(lambda: not jobs.running_between(aistore, source, destination), 30, "end of the job")
    assert len(sizes(aistore, destination)) < 40
