"""Shared by tests of the engine against the real stack: their buckets, transforms, and processes to kill."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import requests

from storeside.aistore import lock
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.aistore.stored_objects import list_aistore
from storeside.operators.restrictions import USES, VARIABLE
from storeside.stack import authn
from storeside.stack.airflow import airflow
from storeside.stack.airflow.api import FINAL, AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, HOST, SOURCES, Stack
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transformers.audio.formats import AudioFormat

# Commands that the tests' ETLs need besides Storeside's transforms, in the owner's list of their stacks.
_SERVE = "python -m storeside.transformers.serve --transform {} --host 0.0.0.0 --port 8000"
_SDK_SERVE = f"{_SERVE.replace('.serve ', '.sdk_servers ')} --server *"
ALLOWED = f"""\
storeside/transformer-* SUFFIX= LEAST= WITHOUT= SECONDS= MARKS= SHARD_*= {_SERVE.format("tests.transformers:*")}
storeside/transformer-* PYTHONPATH= WIDTH= {_SERVE.format("my_package.*")}
storeside/transformer-* {_SERVE.format("tests.streams:*")}
storeside/transformer-* {_SERVE.format("tests.unit.transforms_for_tests:*")}
storeside/transformer-* {_SDK_SERVE.format("tests.unit.transforms_for_tests:*")}
storeside/transformer-* ECHO_BYTES= {_SERVE.format("tests.benchmarks.peers:Echo")}
storeside/transformer-* AR= AC= python -m tests.benchmarks.peers --server fastapi --host 0.0.0.0 --port 8000
storeside/transformer-* ECHO_BYTES= python -m tests.benchmarks.peers --server returns --host 0.0.0.0 --port 8000
storeside/transformer-* python -c 'import os; os.kill(os.getpid(), 9); raise SystemExit(137)'
aistorage/runtime_python ETL_CLASS_PAYLOAD=
"""

# The image of the tests' ETLs; on a user's Kubernetes it comes from another registry.
IMAGE = os.environ.get("STORESIDE_TEST_IMAGE", TRANSFORMER_IMAGE)
# AIStore's and the pod runner's polling intervals depend on it: a short one starts an ETL sooner. On Kubernetes it
# includes the pull of the image.
INIT_SECONDS = int(os.environ.get("STORESIDE_TEST_INIT_SECONDS", "30"))
# The factor by which a wait of a test is longer on a busy machine.
PATIENCE = 5


def files_of_page(pattern: str) -> dict[str, str]:
    """Return the files of docs/transforms by path: Python blocks whose first line is a path that matches."""
    pages = "\n".join(path.read_text() for path in sorted((CHECKOUT / "docs" / "transforms").glob("*.md")))
    files = dict(re.findall(rf"^```python\n# ({pattern})\n(.*?)^```", pages, re.MULTILINE | re.DOTALL))
    assert files, f"docs/transforms has no file {pattern}"
    return files


def airflow_in(folder: Path, stack: Stack) -> dict[str, str]:
    """Prepare a folder with DAGs as Airflow's home, and return the environment of its commands, which use the stack.

    Connections of the environment replace those of the stack.
    """
    (folder / "plugins").mkdir()
    shutil.copy(airflow.template(stack.cache), folder / airflow.DATABASE_FILE)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")},
        **airflow.environment(stack),
        **{name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_CONN_")},
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / airflow.DATABASE_FILE}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder / "plugins"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
        "PYTHONPATH": str(SOURCES),
    }


def allow(folder: Path) -> None:
    """Let the pod runner of the stack below `folder` start the transformers of the tests and benchmarks."""
    path = folder / "allowed.txt"
    path.touch(mode=0o600)
    path.write_text(ALLOWED)


def unique(label: str) -> str:
    """Return a name that no other test uses."""
    return f"{label}-{uuid.uuid4().hex[:8]}"


def task_context(task_id: str = "t", run: Any = None, map_index: int = -1) -> Any:
    """Return the context with which a test executes an operator: in a new run, or in the `run` of another context."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    return {
        "dag_run": run or SimpleNamespace(dag_id="dag", run_id=unique("run")),
        "ti": SimpleNamespace(dag_id="dag", task_id=task_id, map_index=map_index, try_number=1),
        "triggering_asset_events": {},
        "outlet_events": OutletEventAccessors(),
    }


def transcode_spec(audio: AudioFormat | None = None, communication: str = "ws") -> EtlSpec:
    """Return the ETL of the DAG's `transcode` task."""
    return EtlSpec(
        "test-transcode",
        IMAGE,
        transformer_command("audio_transcode"),
        (audio or AudioFormat()).environment(),
        tuning={"NUM_WORKERS": "1"},
        communication=communication,
        init_timeout=INIT_SECONDS,
    )


def small_spec(transform: str, **options: Any) -> EtlSpec:
    """Return an ETL of one of the transformers of `tests.transformers`."""
    command = transformer_command(f"tests.transformers:{transform}")
    options = {"tuning": {"NUM_WORKERS": "1"}, "init_timeout": INIT_SECONDS, **options}
    return EtlSpec(f"test-{transform}", IMAGE, command, **options)


def probe_spec() -> EtlSpec:
    """Return the ETL of the DAG's `probe` task."""
    return EtlSpec("test-probe", IMAGE, transformer_command("audio_probe"), init_timeout=INIT_SECONDS)


def shared_etls() -> set[str]:
    """Return the names of the ETLs that many tests use; they stay running, because starts and ends take seconds."""
    upper = small_spec("upper")
    return {spec.name for spec in (transcode_spec(), probe_spec(), upper, upper.over("hpush"))}


def put(aistore: Any, bucket: Bucket, objects: Mapping[str, bytes]) -> None:
    """Put objects into an AIStore bucket; create the bucket if it is missing."""
    handle = bucket.handle(aistore)
    handle.create(exist_ok=True)
    for name, content in objects.items():
        handle.object(name).get_writer().put_content(content)


def read(aistore: Any, bucket: Bucket, name: str) -> bytes:
    """Return the content of an object."""
    return bytes(bucket.handle(aistore).object(name).get_reader().read_all())


def versions(aistore: Any, bucket: Bucket) -> dict[str, str]:
    """Return name and version of the objects in a bucket; see `list_aistore`."""
    return {o.name: o.version for o in list_aistore(aistore, bucket)}


def sizes(aistore: Any, bucket: Bucket) -> dict[str, int]:
    """Return name and bytes of the objects in a bucket."""
    return {o.name: o.size for o in list_aistore(aistore, bucket)}


def contents(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Read files below a folder, by their names there."""
    return {name: (folder / name).read_bytes() for name in names}


def ask_aistore(stack: Stack, method: str, path: str, seconds: float = 20, **request: Any) -> requests.Response:
    """Send a request with a token to AIStore's own API, for what its SDK cannot do; `path` is below ``/v1``."""
    headers = {"Authorization": f"Bearer {authn.current_token(stack)}", **request.pop("headers", {})}
    url, verify = f"{stack.url('ais_proxy')}/v1/{path}", str(stack.authority) if stack.tls else True
    return requests.request(method, url, headers=headers, timeout=seconds, verify=verify, **request)


def set_properties(stack: Stack, bucket: str, **properties: Any) -> None:
    """Change properties of one of AIStore's own buckets."""
    body = {"action": "set-bprops", "value": properties}
    ask_aistore(stack, "PATCH", f"buckets/{bucket}", params={"provider": "ais"}, json=body).raise_for_status()


def s3_of_aistore(stack: Stack, host: str = HOST) -> Any:
    """Return a boto3 client of AIStore's S3 API, which takes a session token for its own and checks no keys."""
    url = f"http://{host}:{stack.ports['ais_proxy']}/s3"
    return s3.client("s3", url, "any", "any", session_token=authn.current_token(stack))


def failures(clickhouse: Any, run: str, destination: Any) -> dict[str, str]:
    """Return the objects that failed in a run on the way to a bucket according to the ledger, with their reasons."""
    found = clickhouse.query(
        "SELECT object, reason FROM storeside.objects FINAL"
        " WHERE status = 'failed' AND run_id = {run:String} AND destination = {destination:String}",
        parameters={"run": run, "destination": str(destination)},
    )
    return dict(found.result_rows)


def left_of_benchmarks(aistore: Any) -> list[str]:
    """Return the ETLs, buckets and locks that measurements of transforms have in the cluster."""
    listed = [etl["id"] for etl in aistore.cluster().client.request("get", path="etl").json() or ()]
    buckets = [bucket.name for bucket in aistore.cluster().list_buckets()]
    return [name for name in (*listed, *buckets) if name.startswith(("bench-", "storeside-bench-", lock.PREFIX))]


def allow_in_forms(api: AirflowApi, *, buckets: Sequence[str] = (), **lists: Sequence[str]) -> None:
    """Set the Variable with the names that forms accept; missing lists keep their defaults.

    Forms may read, write and delete in `buckets`.
    """
    set_variable(api, VARIABLE, {**({use: buckets for use in USES} if buckets else {}), **lists})


def set_variable(api: AirflowApi, name: str, content: object) -> None:
    """Create or replace an Airflow Variable."""
    value = {"key": name, "value": json.dumps(content)}
    try:
        api.request("POST", "variables", json=value)
    except requests.HTTPError as e:
        if e.response.status_code != requests.codes.conflict:
            raise
        api.request("PATCH", f"variables/{name}", json=value)


def administrator(stack: Stack) -> AirflowApi:
    """Return Airflow's API for its administrator."""
    return AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])


def unpause(api: AirflowApi, *dags: str) -> AirflowApi:
    """Unpause DAGs, each once Airflow knows it; return the API."""
    for dag in dags:
        until_known(api, dag)
        api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
    return api


@contextlib.contextmanager
def also_in_forms(api: AirflowApi, **lists: list[str]) -> Iterator[None]:
    """Let forms accept these names as well, for a while."""
    before = json.loads(api.get("variables/storeside_forms")["value"])
    allow_in_forms(api, **{**before, **{name: [*before.get(name, ()), *more] for name, more in lists.items()}})
    try:
        yield
    finally:
        allow_in_forms(api, **before)


def until_known(api: AirflowApi, dag: str) -> None:
    """Wait until Airflow has parsed a DAG's file for the first time."""
    until(lambda: any(found["dag_id"] == dag for found in api.get("dags")["dags"]), 90, dag)


def parse_until(api: AirflowApi, dag: str, condition: Callable[[], Any], what: str) -> None:
    """Have Airflow parse a DAG's file, as a user does in the UI, until a condition holds.

    In tests, Airflow parses only on request. It ignores a DAG's change within 30 s after another one
    (``[core] min_serialized_dag_update_interval``), so this asks again every 10 s.
    """
    asked = -math.inf

    def parsed() -> Any:
        nonlocal asked
        if time.monotonic() > asked + 10:
            asked = time.monotonic()
            _request_parse(api, dag)
        return condition()

    until(parsed, 120, what, interval=1)


def _request_parse(api: AirflowApi, dag: str) -> None:
    try:
        api.request("PUT", f"parseDagFile/{api.get(f'dags/{dag}')['file_token']}")
    except requests.HTTPError as e:
        if e.response.status_code != requests.codes.conflict:  # an earlier request still waits
            raise


def switch_on(api: AirflowApi, dag: str) -> None:
    """Unpause a DAG that events start: Airflow starts and ends watchers when it parses the DAG's file."""
    api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
    before = api.get(f"dags/{dag}")["last_parsed_time"]
    parse_until(api, dag, lambda: api.get(f"dags/{dag}")["last_parsed_time"] != before, f"parse of {dag}")


@contextlib.contextmanager
def started_by_events(api: AirflowApi, dag: str, tasks: set[str], **settings: object) -> Iterator[None]:
    """Give a DAG settings with which it has these tasks and is started by events; then take them away again."""

    def parsed(wanted: set[str]) -> None:
        parse_until(api, dag, lambda: task_ids(api, dag) == wanted, f"tasks {', '.join(sorted(wanted))} of {dag}")

    before = task_ids(api, dag)
    set_variable(api, f"storeside_{dag}", settings)
    try:
        parsed(tasks)
        yield
    finally:
        api.request("DELETE", f"variables/storeside_{dag}")
        parsed(before)


def task_ids(api: AirflowApi, dag: str) -> set[str]:
    """Return the tasks that a DAG has, as Airflow has parsed it."""
    return {task["task_id"] for task in api.get(f"dags/{dag}/tasks")["tasks"]}


def configure(api: AirflowApi, dag: str, **settings: object) -> None:
    """Set the Variable with a DAG's settings, and wait until Airflow has parsed the DAG with them."""
    set_variable(api, f"storeside_{dag}", settings)
    until_known(api, dag)
    wanted = settings.get("table") or settings.get("source")

    def has_settings() -> bool:
        try:
            params = api.get(f"dags/{dag}/details")["params"]
        except requests.HTTPError:  # not parsed at all
            return False
        return wanted in [(params.get(name) or {}).get("value") for name in ("table", "source")]

    parse_until(api, dag, has_settings, f"{dag} with its settings")


def uploaded_log(stack: Stack) -> Callable[..., str]:
    """Return `AirflowApi.log` that waits until the log of a finished task is in object storage.

    Airflow uploads it after it has reported the end of the task, and then empties the file on the worker.
    """
    read = AirflowApi.log

    def log(api: AirflowApi, dag: str, run: str, task: str, attempt: int = 1, map_index: int = -1) -> str:
        mapped = f"/map_index={map_index}" if map_index >= 0 else ""
        path = f"dag_id={dag}/run_id={run}/task_id={task}{mapped}/attempt={attempt}.log"

        def uploaded() -> bool:
            found = api.task_instances(dag, run)
            states = {one["state"] for one in found if (one["task_id"], one["map_index"]) == (task, map_index)}
            files = (stack.state / "airflow").glob(f"*/logs/{glob.escape(path)}*")
            return not states & set(FINAL) or not any(file.stat().st_size for file in files)

        with contextlib.suppress(TimeoutError):  # a worker that was lost never uploads its part
            until(uploaded, 20, "upload of the log")
        return read(api, dag, run, task, attempt, map_index)

    return log


def until(condition: Callable[[], Any], seconds: float, what: str, interval: float = 0.1) -> Any:
    """Wait for `condition` and return its value; raises TimeoutError that names `what`.

    `seconds` suffice on an idle machine. A busy one gets `PATIENCE` times as many, so that only a fault fails a test.
    """
    deadline = time.monotonic() + PATIENCE * seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {PATIENCE * seconds:g} s")
        time.sleep(interval)  # between two looks
    return found


def next_second() -> None:
    """Wait until servers whose times are whole seconds, such as S3, state a later time."""
    time.sleep(1.01 - time.time() % 1)  # the servers' clock is that of this machine


def process(stack: Stack, component: str) -> psutil.Process:
    """Return the running process of a component of the stack."""
    pid = next(entry.pid for entry in Supervisor(stack).status() if entry.name == component)
    assert pid, f"{component} does not run"
    return psutil.Process(pid)


def kill(stack: Stack, component: str, answers: Callable[[], bool]) -> None:
    """Kill a component, and wait until its replacement, which the supervisor starts, answers."""
    old = process(stack, component)
    old.kill()

    def again() -> bool:
        try:
            return process(stack, component).pid != old.pid and answers()
        except Exception:
            return False

    until(again, 60, f"new {component}")


def etl_servers(stack: Stack, etl_name: str = "") -> list[psutil.Process]:
    """Return the processes that serve transforms beside the targets; with a name only those of that ETL."""
    found = []
    for child in process(stack, "podrunner").children(recursive=True):
        try:
            pod = child.environ().get("HOSTNAME", "")
            if "storeside.transformers.serve" in child.cmdline() and pod.startswith(etl_name):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
