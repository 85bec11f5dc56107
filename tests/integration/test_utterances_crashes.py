"""SIGKILL of workers and of ETL servers while recordings become shards, and shards become rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from storeside.stack.settings import CHECKOUT, Stack
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.utterance_options import UtteranceOptions, utterance_format
from storeside.transformers.audio.utterances import Detector, shard
from tests.integration.test_utterances import Cutting, cutting, talk  # noqa: F401 (fixture)
from tests.support import IMAGE, etl_servers, put, read, sizes, unique, until

pytestmark = pytest.mark.usefixtures("no_etl_is_left", "connections")

MANY = 24
# The tasks of the DAG `speech_utterances`, as a worker executes them: each attempt is of the same run.
WORKER = """
import json, sys
from types import SimpleNamespace
from storeside.operators import (
    UTTERANCE_COLUMNS, AISCutUtterancesOperator, AISTransformBucketOperator, S3ToClickHouseOperator, TableOptions,
    transformer_command,
)
from tests.support import task_context
given = json.load(sys.stdin)
how = {"image": given["image"], "deferrable": False, "processes": 1, "outlets": []}
tasks = (
    AISCutUtterancesOperator(task_id="cut", source=given["recordings"], destination=given["shards"], **how),
    AISTransformBucketOperator(
        task_id="facts", source=given["shards"], destination=given["facts"], command=transformer_command("text_json"),
        members="*.json", extensions={"tar": "jsonl"}, **how,
    ),
    S3ToClickHouseOperator(
        task_id="load", source=given["facts"] + "/", table=given["table"], format="jsonl", on_overwrite="replace",
        table_options=TableOptions(columns=UTTERANCE_COLUMNS, order_by="(recording, utterance)"), deferrable=False,
        outlets=[],
    ),
)
for task in tasks:
    print(task.task_id, flush=True)
    task.execute(task_context(task.task_id, SimpleNamespace(dag_id="dag", run_id=given["run"])))
"""


class Worker:
    """A process that executes the three tasks from the first one."""

    def __init__(self, given: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        self._process.stdin.write(json.dumps(given))
        self._process.stdin.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def reaches(self, task: str) -> None:
        """Wait until a task begins."""
        assert self._process.stdout
        assert any(line.strip() == task for line in self._process.stdout), f"the worker ended before {task}"

    def runs(self) -> bool:
        return self._process.poll() is None

    def succeeds(self) -> bool:
        assert self._process.stdout
        self._process.stdout.read()
        return self._process.wait() == 0


def servers(stack: Stack) -> list[psutil.Process]:
    """Return the processes that cut recordings."""
    return [server for server in etl_servers(stack) if "audio_utterances" in server.cmdline()]


@pytest.mark.chaos  # minutes
def test_each_recording_has_one_shard_and_each_utterance_one_row(stack: Stack, cutting: Cutting) -> None:  # noqa: F811
    recordings = {f"{n:02}/talk.wav": talk(n % 5, (n + 1) % 5, (n + 2) % 5, n % 3) for n in range(MANY)}
    put(cutting.aistore, cutting.recordings, recordings)
    given = {
        "recordings": str(cutting.recordings), "shards": str(cutting.shards), "facts": str(cutting.place),
        "table": cutting.table, "run": unique("run"), "image": IMAGE,
    }  # fmt: skip
    cutting.shards.handle(cutting.aistore).create()

    def cut(count: int) -> Callable[[], bool]:
        return lambda: len(sizes(cutting.aistore, cutting.shards)) >= count

    with Worker(given) as worker:  # dies while it follows the job that cuts, which AIStore continues
        until(cut(3), 60, "first shards", 0.02)
        assert worker.runs()
    assert not cut(MANY)()

    with Worker(given) as worker:  # lives on, but a server of the ETL dies with the recordings that it cuts
        worker.reaches("cut")
        until(lambda: servers(stack), 60, "ETL", 0.02)[0].kill()
        worker.reaches("facts")
        until(lambda: sizes(cutting.aistore, cutting.place), 60, "first facts", 0.02)
        assert worker.runs()

    with Worker(given) as worker:  # dies while it loads
        worker.reaches("load")
        loads = "SELECT count() FROM system.processes WHERE query_id LIKE 'storeside-load_%'"
        until(lambda: cutting.query(loads) != [(0,)], 60, "statement of the load", 0.01)

    def attempt() -> bool:
        with Worker(given) as worker:
            return worker.succeeds()

    until(attempt, 200, "attempt that is not killed", 5)

    options = UtteranceOptions()
    audio, limits, detector = utterance_format({}), Limits(), Detector()
    expected = {
        name.replace(".wav", ".tar"): bytes(shard(content, name, audio, options, limits, detector))
        for name, content in recordings.items()
    }
    assert {name: read(cutting.aistore, cutting.shards, name) for name in sizes(cutting.aistore, cutting.shards)} == (
        expected
    )
    facts = [json.loads(sample["json"]) for sample in cutting.samples(*expected)]
    columns = ("shard", "member", "recording", "utterance", "start_seconds")
    assert cutting.rows(", ".join(columns)) == sorted(tuple(fact[name] for name in columns) for fact in facts)
