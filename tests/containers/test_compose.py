"""The compose stack in containers: images, start, doctor, demo, kills, restart with data, and HSDS.

The tests run in the order of this file on one project, as they take minutes to start it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from storeside.stack import demo, s3, speech_corpus
from storeside.stack.airflow_api import AirflowApi
from storeside.stack.settings import CHECKOUT
from tests.containers import intruder
from tests.containers.conftest import Figures
from tests.containers.engine import Engine
from tests.containers.project import BUILD_SECONDS, Project
from tests.support import unique, until

pytestmark = pytest.mark.timeout(2400)

DAG = "speech_pipeline"
STEP = "transcode"
RUN_SECONDS = 600
RECORDINGS = 60
MB = 1_000_000
# Users of the images, which are not root.
USERS = {"postgres": "999", "clickhouse": "101", "transformers": "50001"}
OUR_USER = "50000"
KILLED = (
    "triggerer", "scheduler", "dag-processor", "api-server", "aistore", "transformers", "clickhouse", "s3",
    "postgres",
)  # fmt: skip


@pytest.fixture(scope="module")
def running(stack: Project, figures: Figures) -> Project:
    """The project, started on new volumes."""
    started = time.monotonic()
    stack.up()
    figures["compose.up_seconds"] = (time.monotonic() - started, "s")
    return stack


@pytest.fixture(scope="module")
def api(running: Project) -> AirflowApi:
    return AirflowApi(running.url("api-server"), "admin", running.secrets["AIRFLOW_ADMIN_PASSWORD"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    made = speech_corpus.make(demo.RECORDINGS, folder, RECORDINGS)
    return [made.folder / o.name for o in made.objects]


def clickhouse(project: Project) -> Any:
    import clickhouse_connect

    return clickhouse_connect.get_client(
        host="127.0.0.1", port=project.ports["clickhouse"], username="storeside",
        password=project.secrets["CLICKHOUSE_PASSWORD"], autogenerate_session_id=False,
    )  # fmt: skip


def rows_below(project: Project, prefix: str) -> tuple[int, int]:
    """Return the number of rows and of distinct objects of the manifest below a prefix."""
    found = clickhouse(project).query(
        "SELECT count(), uniqExact(object) FROM speech.manifest WHERE startsWith(source_object, {prefix:String})",
        parameters={"prefix": prefix},
    )
    rows, objects = found.first_row
    return rows, objects


def upload(project: Project, prefix: str, files: list[Path]) -> None:
    client = s3.client("s3", project.url("s3"), project.secrets["S3_ACCESS_KEY"], project.secrets["S3_SECRET_KEY"])
    for path in files:
        client.upload_file(str(path), s3.BUCKET, f"{prefix}{path.name}")


def test_images_have_a_reasonable_size(stack: Project, figures: Figures) -> None:
    engine = stack.engine
    engine.docker(
        "buildx", "build", "--load", "--target", "transformer", "--tag", "storeside/transformer-audio:0.1.0",
        str(Path(__file__).parents[2]), seconds=BUILD_SECONDS,
    )  # fmt: skip
    # The stand-in for Python's image has about 150 MB more than the official one.
    for name, most in (("airflow", 1500), ("aistore", 1350), ("transformer-audio", 1250), ("s3", 450), ("hsds", 650)):
        size = json.loads(engine.docker("image", "inspect", f"storeside/{name}:0.1.0").stdout)[0]["Size"] / MB
        figures[f"compose.{name.partition('-')[0]}_mb"] = (size, "MB")
        assert size < most, name


def test_services_run_without_rights(running: Project) -> None:
    for service, container in running.containers().items():
        pid = container["State"]["Pid"]
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        assert int(status["CapEff"], 16) == 0, service
        assert status["NoNewPrivs"].strip() == "1", service
        assert status["Uid"].split()[0] == USERS.get(service, OUR_USER), service
        for bindings in (container["NetworkSettings"]["Ports"] or {}).values():
            assert {binding["HostIp"] for binding in bindings or ()} <= {"127.0.0.1"}, service


def test_the_doctor_passes_and_replaces_no_container(running: Project) -> None:
    before = {service: one["Id"] for service, one in running.containers().items()}
    done = running.compose("run", "--rm", "doctor", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {service: one["Id"] for service, one in running.containers().items()} == before


def test_the_demo_runs(running: Project) -> None:
    done = running.compose("run", "--rm", "demo", check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{DAG}: success" in done.stdout


def test_the_pod_that_tries_a_cluster(running: Project, api: AirflowApi, corpus: list[Path]) -> None:
    """The command of ``docs/kubernetes/try.yaml`` passes in the same image, with the addresses of Compose."""
    job = yaml.safe_load((CHECKOUT / "docs" / "kubernetes" / "try.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    prefix = unique("try") + "/"
    settings = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    settings |= {"PREFIX": prefix, "AIRFLOW_VAR_STORESIDE_SPEECH_PIPELINE": "{}"}  # the image has its usual name
    variables = [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": True})  # so that S3's events start no run meanwhile
    try:
        upload(running, prefix, corpus)
        done = running.compose("run", "--rm", "--no-deps", *variables, "doctor", *container["command"], check=False)
    finally:
        api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert rows_below(running, prefix) == (len(corpus), len(corpus))


def addresses(project: Project, ports: dict[str, int]) -> dict[str, list[tuple[str, int]]]:
    """Return addresses that a transformer must not reach, and some that it may reach."""
    containers = project.containers()
    networks = {service: one["NetworkSettings"]["Networks"] for service, one in containers.items()}
    ((own, settings),) = networks.pop("transformers").items()
    listening = {"s3": [4566], "clickhouse": [8123, 9000], "postgres": [5432], "api-server": [8080]}
    nodes = [port for name, port in ports.items() if name.startswith("ais_") and name.endswith("_control")]
    listening["aistore"] = [51079, 51080, *nodes]
    refused = [
        (host, port)
        for service, open_ports in listening.items()
        for host in (net["IPAddress"] for name, net in networks[service].items() if name != own)
        for port in open_ports
    ]
    refused += [("aistore", port) for port in nodes]
    refused += [(settings["Gateway"], port) for port in project.ports.values() if settings["Gateway"]]
    refused += [("1.1.1.1", 53), ("169.254.169.254", 80)]
    return {"refused": refused, "open": [("aistore", 51080), ("aistore-data", ports["ais_target0_data"])]}


def test_a_taken_over_transformer_finds_no_keys_and_no_other_network(running: Project, corpus: list[Path]) -> None:
    prefix = unique("intruder") + "/"
    cat = ("exec", "-T", "aistore", "cat", "/var/lib/storeside/state/stack.json")
    record = json.loads(running.compose(*cat).stdout)
    found = addresses(running, record["ports"])
    task = {
        "secrets": record["secrets"] | dict(running.secrets) | {"control": "/opt/storeside/include"},
        "addresses": found["refused"] + found["open"],
        "names": ["example.org", "s3", "aistore"],
        "volume": running.compose("exec", "-T", "aistore", "find", "/var/lib/storeside").stdout.splitlines(),
        "read": f"http://aistore:51080/v1/objects/{s3.BUCKET}/{prefix}{corpus[0].name}?provider=aws",
    }
    code = Path(intruder.__file__).read_text()
    command = ("exec", "-T", "transformers", "python", "-c", code)
    with ThreadPoolExecutor(1) as pool:
        arguments = ("compose", *running.arguments, *command)
        looking = pool.submit(running.engine.docker, *arguments, stdin=json.dumps(task), seconds=RUN_SECONDS)
        upload(running, prefix, corpus)  # S3's events start a run
        finds = json.loads(looking.result().stdout)
    assert finds["user"] == [50001, 0]
    assert any(process.startswith(intruder.TRANSFORMER) for process in finds["processes"]), "no transformer runs"
    state = Path("/var/lib/storeside/state")
    places = {Path(path).relative_to(state).parts[:2] for path in finds["volume"]}
    assert {top for top, *_ in places} == {"aistore", "podrunner"}
    assert {place for place in places if place[0] == "aistore"} == {("aistore", "data")}, "the files of objects"
    assert [tuple(address) for address in finds["connected"]] == found["open"]
    assert finds["resolved"] == ["aistore"]
    assert set(finds["in environments"]) == {"control"}
    assert {name for name, _ in finds["in files"]} == {"control"}
    assert finds["writable"] == []
    assert finds["without token"] == 401
    assert finds["with token"] == 403, "the token of transformers is for putting objects"
    expected = (len(corpus), len(corpus))
    until(lambda: rows_below(running, prefix) == expected, RUN_SECONDS, f"{expected} rows and objects", interval=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="kills processes of containers, which root may do")
@pytest.mark.parametrize("service", KILLED)
def test_a_run_survives_the_kill_of_a_service(
    running: Project, api: AirflowApi, corpus: list[Path], service: str
) -> None:
    prefix = unique(service) + "/"
    ended = {run["dag_run_id"] for run in api.runs(DAG) if run["state"] != "running"}
    before = running.containers()[service]["State"]
    upload(running, prefix, corpus)  # S3's events start a run

    def transcodes() -> bool:
        runs = [run["dag_run_id"] for run in api.runs(DAG) if run["dag_run_id"] not in ended]
        states = [task["state"] for run in runs for task in api.task_instances(DAG, run) if task["task_id"] == STEP]
        return bool({"running", "deferred"} & set(states))

    until(transcodes, RUN_SECONDS, STEP, interval=0.5)
    os.kill(before["Pid"], signal.SIGKILL)

    def again() -> bool:
        state = running.containers().get(service, {}).get("State", {})
        return state.get("Pid") not in (None, 0, before["Pid"]) and state.get("Health", {}).get("Status") == "healthy"

    until(again, RUN_SECONDS, f"{service} after its kill", interval=1)
    expected = (len(corpus), len(corpus))
    until(lambda: rows_below(running, prefix) == expected, RUN_SECONDS, f"{expected} rows and objects", interval=2)
    assert not [run for run in api.runs(DAG) if run["dag_run_id"] not in ended and run["state"] == "failed"]


def test_down_and_up_keep_the_data(running: Project, api: AirflowApi) -> None:
    before = clickhouse(running).query("SELECT count() FROM speech.manifest").first_row[0]
    runs = {run["dag_run_id"] for run in api.runs(DAG)}
    assert before
    assert runs
    running.compose("down", "--timeout", "30")
    assert not running.containers()
    running.up()
    assert clickhouse(running).query("SELECT count() FROM speech.manifest").first_row[0] == before
    assert {run["dag_run_id"] for run in api.runs(DAG)} >= runs
    done = running.compose("run", "--rm", "demo", check=False)  # AIStore's buckets and S3's objects are there
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


WRITES = """
import h5pyd, numpy
with h5pyd.File("/home/storeside/array.h5", "w") as file:
    file["numbers"] = numpy.arange(1_000_000).reshape(1000, 1000)
"""
READS = """
import h5pyd, numpy
with h5pyd.File("/home/storeside/array.h5") as file:
    assert (file["numbers"][...] == numpy.arange(1_000_000).reshape(1000, 1000)).all()
"""
INTRUDES = """
import h5pyd
try:
    h5pyd.File("/home/storeside/array.h5", password="wrong", retries=1)
except OSError as error:
    assert error.args[0] == 401, error.args
else:
    raise SystemExit("a wrong password was accepted")
"""


@pytest.fixture(scope="module")
def with_hsds(running: Project) -> Project:
    running.up("hsds")
    return running


@pytest.mark.parametrize("code", [WRITES, READS, INTRUDES], ids=["write", "read back", "wrong password"])
def test_hsds(with_hsds: Project, code: str) -> None:
    done = with_hsds.compose(
        "--profile", "hsds", "run", "--rm", "--no-deps", "hsds-init", "python", "-c", code, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_nothing_is_left(container_engine: Engine, stack: Project) -> None:
    """The last test: it ends the project."""
    stack.compose(
        "--profile", "hsds", "--profile", "demo", "--profile", "doctor", "down", "--volumes", "--timeout", "20"
    )
    assert not stack.left()
