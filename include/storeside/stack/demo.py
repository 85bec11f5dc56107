"""``make demo``: real speech through the whole pipeline on the embedded stack, with a table of results."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row, whole_answers
from storeside.sql.inserts import lean_inserts
from storeside.stack import authn, speech_corpus
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.building import audio
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse import passwords
from storeside.stack.servers.clickhouse_users import USER
from storeside.stack.settings import CHECKOUT, HOST, Stack, StackError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

DAG = "speech_pipeline"
RECORDINGS = CHECKOUT / "tests" / "data" / "speech"
RUN_SECONDS = 600


@dataclass(frozen=True)
class Upload:
    """The demo's upload into S3; `broken` is the number of objects that are broken on purpose."""

    prefix: str
    objects: int
    bytes: int
    broken: int


def run(stack: Stack, own: Path | None, count: int) -> list[tuple[str, str]]:
    """Upload speech, run the pipeline on it twice, and return the rows of the result table.

    Raises:
        StackError: `own` has no audio, or a run failed; the message ends with the log of the failed task.
    """
    api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
    clickhouse = clickhouse_client(stack)
    prefix = time.strftime("demo/%Y%m%d-%H%M%S/", time.gmtime())
    _tell("creating recordings" if own is None else f"reading recordings from {own}")
    upload = _upload(stack, prefix, own, count)
    _tell(f"{upload.objects} recordings ({upload.bytes / 1e6:.1f} MB) are in s3://{s3.BUCKET}/{prefix}")
    _wait_for_dag(api)
    read_before = bytes_sent_to_clients(stack)
    started = first_row(clickhouse.query("SELECT now64(3)"))[0]
    seconds = _run_pipeline(api, prefix)
    read = bytes_sent_to_clients(stack) - read_before
    before = _rows(clickhouse)
    _run_again(api, prefix)
    again = _rows(clickhouse) - before
    return _table(stack, clickhouse, upload, Measured(started, seconds, read, again))


@dataclass(frozen=True)
class Measured:
    """Start and seconds of the first run, object bytes sent to clients during it, and rows that the second added."""

    started: datetime
    seconds: float
    read: int
    again: int


def clickhouse_client(stack: Stack, user: str = USER) -> Any:
    """Return a clickhouse-connect client of the stack's server, which threads may share."""
    import clickhouse_connect

    password = {USER: stack.secrets["clickhouse"], **passwords(stack)}[user]
    client = clickhouse_connect.get_client(
        host=HOST, port=stack.ports["clickhouse_http"], username=user, password=password,
        autogenerate_session_id=False, secure=stack.tls, ca_cert=str(stack.authority) if stack.tls else None,
    )  # fmt: skip
    return lean_inserts(whole_answers(client))


def bytes_sent_to_clients(stack: Stack) -> int:
    """Return the number of object bytes that the targets have sent to clients outside the cluster (GET counter)."""
    performance: Mapping[str, Any] = authn.cluster(stack).client().cluster().get_performance()
    return sum(int(node["tracker"].get("get.size", 0)) for node in performance.values())


def _upload(stack: Stack, prefix: str, own: Path | None, count: int) -> Upload:
    folder = stack.state / "demo"
    try:
        return _uploaded(stack, prefix, own, count, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # S3 has the files now; also deletes those of earlier demos


def _uploaded(stack: Stack, prefix: str, own: Path | None, count: int, folder: Path) -> Upload:
    broken: Mapping[str, str] = {}
    if own is None:
        speech_corpus.make(RECORDINGS, folder / prefix, count, seed=int(time.time()))
        broken = speech_corpus.make_bad(folder / prefix)
        files = {prefix + str(p.relative_to(folder / prefix)): p for p in (folder / prefix).rglob("*") if p.is_file()}
    else:
        files = {prefix + str(p.relative_to(own)): p for p in speech_corpus.own_audio(own)}
    client: S3Client = s3.of_stack("s3", stack)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: client.upload_file(str(item[1]), s3.BUCKET, item[0]), files.items()))
    return Upload(prefix, len(files), sum(p.stat().st_size for p in files.values()), len(broken))


def _wait_for_dag(api: AirflowApi) -> None:
    """Wait until the DAG processor has parsed the DAG, and unpause it."""
    import requests

    deadline = time.monotonic() + 90
    while True:
        try:
            api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
            return
        except requests.HTTPError as e:
            errors = api.get("importErrors")["import_errors"]
            if errors:
                raise StackError(
                    f"the DAG cannot be imported: {errors[0]['stack_trace'].strip().splitlines()[-1]}"
                ) from e
            if time.monotonic() > deadline:
                raise StackError(f"Airflow has not parsed {DAG} after 90 s: see 'make logs'") from e
            time.sleep(0.5)


def _run_pipeline(api: AirflowApi, prefix: str) -> float:
    """Run the DAG and return its seconds. Raises StackError with the last log lines of a failed task."""
    started = time.monotonic()
    # recordings of users often differ only in their extensions
    run = api.trigger(DAG, {"source": f"s3://{s3.BUCKET}", "prefix": prefix, "keep_extension": True})
    _tell(f"run {run} of {DAG}")
    seen: dict[str, str] = {}
    while (state := api.run(DAG, run)["state"]) not in ("success", "failed"):
        _tell_tasks(api, run, seen, started)
        if time.monotonic() - started > RUN_SECONDS:
            raise StackError(f"run {run} is still {state} after {RUN_SECONDS} s: see the run in Airflow")
        time.sleep(0.5)
    _tell_tasks(api, run, seen, started)
    if state == "failed":
        task = next(t for t in api.task_instances(DAG, run) if t["state"] == "failed")
        last = api.log(DAG, run, task["task_id"], task["try_number"]).strip().splitlines()[-12:]
        raise StackError(f"task {task['task_id']} of run {run} failed:\n" + "\n".join(last))
    return time.monotonic() - started


def _run_again(api: AirflowApi, prefix: str) -> None:
    """Wait for the runs that the uploads' events started; start a run if there is none."""
    waiting = [r for r in api.runs(DAG) if r["state"] in ("queued", "running")]
    if not waiting:
        _run_pipeline(api, prefix)
    for found in waiting:
        _tell(f"run {found['dag_run_id']} of {DAG}, started by the uploads' S3 events")
        api.wait(DAG, found["dag_run_id"], RUN_SECONDS)


def _rows(clickhouse: Client) -> int:
    return int(first_row(clickhouse.query("SELECT count() FROM speech.manifest"))[0])


def _tell_tasks(api: AirflowApi, run: str, seen: dict[str, str], started: float) -> None:
    """Print each task once, after it has ended."""
    for task in api.task_instances(DAG, run):
        name, state = task["task_id"], task["state"] or ""
        if state in ("success", "failed") and seen.get(name) != state:
            seen[name] = state
            _tell(f"  {name:20} {state:8} {time.monotonic() - started:6.1f} s")


def _table(stack: Stack, clickhouse: Client, upload: Upload, measured: Measured) -> list[tuple[str, str]]:
    """Return the result table: the outcomes of the uploaded recordings in all runs, read from ClickHouse."""
    bound = {"prefix": upload.prefix, "started": measured.started}
    done, failed, size_in, size_out = first_row(
        clickhouse.query(
            "SELECT countIf(status = 'done'), countIf(status = 'failed'),"
            " sumIf(bytes_in, status = 'done'), sum(bytes_out)"
            " FROM storeside.objects FINAL"
            " WHERE destination = 'ais://speech' AND startsWith(object, {prefix:String})",
            parameters=bound,
        )
    )
    failures = clickhouse.query(
        "SELECT substring(object, length({prefix:String}) + 1), reason FROM storeside.objects FINAL"
        " WHERE startsWith(object, {prefix:String}) AND status = 'failed'"
        " ORDER BY object LIMIT 10",
        parameters=bound,
    ).result_rows
    rows, audio = first_row(
        clickhouse.query(
            "SELECT count(), sum(duration_seconds) FROM speech.manifest"
            " WHERE startsWith(source_object, {prefix:String})",
            parameters=bound,
        )
    )
    transcoding, working, facts, rows_of_facts, checked, invalid = first_row(
        clickhouse.query(
            "SELECT sumIf(seconds, task_id = 'transcode' AND done > 0),"
            " sumIf(job_seconds, task_id = 'transcode' AND done > 0), sumIf(bytes_out, task_id = 'probe'),"
            " sumIf(bytes_in, kind = 'load'),"
            " sumIf(JSONExtractUInt(detail, 'verdict', 'rows'), kind = 'load'),"
            " sumIf(JSONExtractUInt(detail, 'verdict', 'invalid'), kind = 'load')"
            " FROM storeside.runs FINAL WHERE recorded_at >= {started:DateTime64(3)}",
            parameters=bound,
        )
    )
    broken = f", {upload.broken} of them broken on purpose" if upload.broken else ""
    verdict = f"passed, {checked} rows" if checked and not invalid else f"{invalid} of {checked} rows are not valid"
    return [
        ("recordings in S3", f"{upload.objects} objects, {upload.bytes / 1e6:.1f} MB{broken}"),
        ("transcoded in the cluster", f"{done} objects, {size_in / 1e6:.1f} MB in, {size_out / 1e6:.1f} MB out"),
        ("", f"{working:.1f} s of work in the cluster, {done / max(working, 0.001):.1f} objects/s"),
        ("", f"{transcoding:.1f} s with planning, starting the ETL, reconciling and retrying"),
        ("not transcoded", f"{failed} objects" + (":" if failures else "")),
        *(("", f"{name}: {reason}") for name, reason in failures),
        (
            "audio read by Airflow workers",
            f"{max(measured.read - facts - rows_of_facts, 0)} bytes of {size_in / 1e6:.1f} MB transformed",
        ),
        ("", f"ClickHouse received {rows_of_facts / 1e3:.0f} kB of facts from the cluster"),
        ("validation", verdict),
        ("rows loaded", f"{rows}, {audio / 60:.1f} minutes of speech"),
        ("rows loaded by a second run", str(measured.again)),
        ("whole run", f"{measured.seconds:.1f} s"),
        ("machine", machine()),
        ("see the results", f"make up, then {stack.url('airflow')}/dags/{DAG}"),
        ("", "SELECT object, duration_seconds, rms_dbfs FROM speech.manifest FINAL LIMIT 5"),
    ]


def machine() -> str:
    """Return what the speed depends on: the number of cores, and what transcodes audio."""
    cores = len(os.sched_getaffinity(0))
    library = "PyAV, without the native audio library" if audio.slow_because() else "the native audio library"
    return f"{cores} core{'s' * (cores > 1)}; {library}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
