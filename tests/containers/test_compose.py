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

from storeside import __version__
from storeside.aistore.spec import TRANSFORMER_IMAGE
from storeside.stack import demo, speech_corpus
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
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

    authority = project.trusted()
    return clickhouse_connect.get_client(
        host="127.0.0.1", port=project.ports["clickhouse"], username="storeside", secure=bool(authority),
        ca_cert=str(authority or ""), password=project.secrets["CLICKHOUSE_PASSWORD"], autogenerate_session_id=False,
    )  # fmt: skip


def s3_of(project: Project, service: str = "s3") -> Any:
    keys = (project.secrets["S3_ACCESS_KEY"], project.secrets["S3_SECRET_KEY"])
    return s3.client(service, project.url("s3"), *keys, authority=project.trusted())


def run_of(api: AirflowApi, dag: str, conf: dict[str, Any]) -> str:
    """Run a DAG and return the id of the run, as it is in Storeside's tables."""
    known = lambda: dag in {found["dag_id"] for found in api.get("dags", limit=100)["dags"]}  # noqa: E731
    until(known, RUN_SECONDS, f"the DAG {dag}", interval=2)
    api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
    run = api.trigger(dag, conf)
    assert api.wait(dag, run, RUN_SECONDS)["state"] == "success", run
    return f"{dag}/{run}"


def rows_below(project: Project, prefix: str) -> tuple[int, int]:
    """Return the number of rows and of distinct objects of the manifest below a prefix."""
    found = clickhouse(project).query(
        "SELECT count(), uniqExact(object) FROM speech.manifest WHERE startsWith(source_object, {prefix:String})",
        parameters={"prefix": prefix},
    )
    rows, objects = found.first_row
    return rows, objects


def upload(project: Project, prefix: str, files: list[Path]) -> None:
    client = s3_of(project)
    for path in files:
        client.upload_file(str(path), s3.BUCKET, f"{prefix}{path.name}")


@pytest.fixture(scope="module")
def transformer(stack: Project) -> str:
    """Build the image for ETLs on Kubernetes, and return its name."""
    name = TRANSFORMER_IMAGE
    stack.engine.docker(
        "buildx", "build", "--load", "--target", "transformer", "--tag", name, str(CHECKOUT), seconds=BUILD_SECONDS
    )
    return name


@pytest.mark.usefixtures("transformer")
def test_images_have_a_reasonable_size(stack: Project, figures: Figures) -> None:
    engine = stack.engine
    for name, most in (("airflow", 900), ("aistore", 900), ("transformer-audio", 900), ("s3", 300), ("hsds", 400)):
        size = json.loads(engine.docker("image", "inspect", f"storeside/{name}:{__version__}").stdout)[0]["Size"] / MB
        figures[f"compose.{name.partition('-')[0]}_mb"] = (size, "MB")
        assert size < most, name


# Imports all extension modules, and packages that DAGs import late: slim.py could have removed a part of them.
IMPORTS = """
import importlib, pathlib, sys
(packages,) = pathlib.Path(sys.prefix).glob("lib/python3*/site-packages")
late = sys.argv[1:]
for name in late:
    importlib.import_module(name)
failed, count = [], 0
for path in sorted(packages.rglob("*.so")):
    parts = path.relative_to(packages).parts
    # The libraries in bitshuffle/plugin are plugins of HDF5, not modules.
    if parts[-2:-1] != ("plugin",) and not parts[0].endswith(".libs") and (
        ".cpython-" in path.name or ".abi3." in path.name
    ):
        count += 1
        module = ".".join((*parts[:-1], path.name.partition(".")[0]))
        try:
            if module != "scipy.linalg._matfuncs_sqrtm_triu":  # imports itself, also in the wheel
                importlib.import_module(module)
        except ImportError as error:
            failed.append(f"{path}: {error}")
print(count)
sys.exit("\\n".join(failed) or None)
"""
SDK_SERVERS = (
    "storeside.transformers.sdk_servers",
    "gunicorn.app.wsgiapp",
    "aistore.sdk.etl.webserver.fastapi_server",
    "aistore.sdk.etl.webserver.flask_server",
    "aistore.sdk.etl.webserver.http_multi_threaded_server",
)
LATE = {
    "airflow": (
        "psycopg", "scipy.linalg", "great_expectations", "kubernetes.client", "kubernetes_asyncio.client", "pandas",
        "pyarrow.parquet", "pyarrow.dataset", "pyarrow.fs", "h5pyd", "flask_appbuilder", "s3fs",
        "airflow.providers.cncf.kubernetes.executors.kubernetes_executor",
    ),
    "transformer-audio": ("av", "storeside.transformers.serve", *SDK_SERVERS),
    "aistore": ("av", *SDK_SERVERS, "trustme", "storeside.stack.containers.aistore"),
    "s3": ("storeside.stack.servers.s3_server", "ministack.app"),
    "hsds": ("hsds.node_runner",),
}  # fmt: skip


@pytest.mark.parametrize("image", LATE)
def test_everything_in_an_image_can_be_imported(stack: Project, transformer: str, image: str) -> None:
    name = transformer if image == "transformer-audio" else f"storeside/{image}:{__version__}"
    done = stack.engine.docker(
        "run", "--rm", "--network", "none", "--entrypoint", "python", name, "-c", IMPORTS, *LATE[image],
        seconds=RUN_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1])


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


# Tries a client of the network: without the authority, with another host name, and without TLS.
HANDSHAKES = """
import json, socket, ssl
authority, found = ssl.create_default_context(cafile="/etc/storeside/tls/ca.pem"), {}
def answer(context, port, address, name):
    try:
        with socket.create_connection((address, port), 5) as plain:
            with context.wrap_socket(plain, server_hostname=name) as secure:
                return secure.version()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:
        return type(error).__name__
for name, port in (("aistore", 51080), ("aistore", 51079), ("clickhouse", 8443), ("s3", 4566)):
    with socket.create_connection((name, port), 5) as plain:
        plain.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        try:
            first = plain.recv(100)
        except ConnectionResetError:
            first = b""
    found[f"{name}:{port}"] = {
        "trusted": answer(authority, port, name, name),
        "unknown authority": answer(ssl.create_default_context(), port, name, name),
        "other name": answer(authority, port, name, "postgres"),
        "plain": first.partition(b"\\r\\n")[0].decode(errors="replace"),
    }
found["clickhouse:8123"] = answer(authority, 8123, "clickhouse", "clickhouse")
print(json.dumps(found))
"""


def test_clients_accept_the_servers_by_the_private_authority_only(running: Project) -> None:
    seen = json.loads(running.compose("exec", "-T", "scheduler", "python", "-c", HANDSHAKES).stdout)
    assert seen.pop("clickhouse:8123") == "ConnectionRefusedError", "ClickHouse serves HTTP as well"
    assert len(seen) == 4
    for server, found in seen.items():
        assert found["trusted"].startswith("TLSv1."), server
        assert found["unknown authority"] == "unable to get local issuer certificate", server
        assert "Hostname mismatch" in found["other name"], server
        assert not found["plain"].startswith("HTTP/1.1 2"), f"{server} answers without TLS"


# Lists every file with a private key. The transformers may open that of the pod runner, but not list its folder.
KEYS = """
import json, os
found = {}
for top in ("/etc/storeside", "/var/lib/certificates", "/opt/airflow", "/var/lib/storeside"):
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                text = open(os.path.join(folder, name), "rb").read(100_000)
            except OSError:
                continue
            if b"PRIVATE KEY-----" in text:
                found[os.path.join(folder, name)] = text.decode()
print(json.dumps(found))
"""
SERVER_KEYS = {
    "aistore": {"/etc/storeside/tls/server.key", "/var/lib/storeside/state/podrunner/server.key"},
    "clickhouse": {"/etc/clickhouse-server/tls/server.key"},
    "s3": {"/etc/storeside/tls/server.key"},
}


def test_each_key_is_in_the_container_of_its_server_only(running: Project) -> None:
    keys: dict[str, str] = {}
    for service in sorted(set(running.containers()) - {"postgres"}):
        if service == "clickhouse":  # the official image has no Python
            path = "/etc/clickhouse-server/tls/server.key"
            found = {path: running.compose("exec", "-T", service, "cat", path).stdout}
        else:
            found = json.loads(running.compose("exec", "-T", service, "python", "-c", KEYS).stdout)
        assert set(found) == SERVER_KEYS.get(service, set()), service
        keys |= {f"{service}:{path}": text for path, text in found.items()}
    own = {keys[f"{service}:{path}"] for service, paths in SERVER_KEYS.items() for path in paths if "tls" in path}
    assert len(own) == 3, "each server has its own key"


def test_the_doctor_passes_and_replaces_no_container(running: Project) -> None:
    before = {service: one["Id"] for service, one in running.containers().items()}
    done = running.compose("run", "--rm", "doctor", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {service: one["Id"] for service, one in running.containers().items()} == before


def test_the_demo_runs(running: Project) -> None:
    done = running.compose("run", "--rm", "demo", check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{DAG}: success" in done.stdout
    assert "demo/" in done.stdout.partition("success")[2], "the manifest's rows are shown"


def test_clickhouse_reads_objects_of_a_load_from_aistore(running: Project, api: AirflowApi) -> None:
    """With its own token and the right to read AIStore's URLs; the load fails if ClickHouse cannot read."""
    dag, source, table, texts = "transform_to_clickhouse", "texts", "data.pulled_facts", 3
    client = s3_of(running)
    client.create_bucket(Bucket=source)
    for n in range(texts):
        client.put_object(Bucket=source, Key=f"pull/{n}.txt", Body=b"It was a dark and stormy night. " * (n + 1))
    fields = {"source": f"s3://{source}", "destination": "ais://text-facts", "prefix": "pull/", "table": table}
    run = run_of(api, dag, {**fields, "options": {"loader": "pull"}}).removeprefix(f"{dag}/")
    assert "by pull" in api.log(dag, run, "load")
    assert clickhouse(running).query(f"SELECT count() FROM {table}").first_row == (texts,)


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
    listening = {"s3": [4566], "clickhouse": [8443, 9000], "postgres": [5432], "api-server": [8080]}
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
        "read": f"https://aistore:51080/v1/objects/{s3.BUCKET}/{prefix}{corpus[0].name}?provider=aws",
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
    authority = running.trusted()
    assert authority
    shown = authority.read_text()
    running.compose("down", "--timeout", "30")
    assert not running.containers()
    running.up()
    authority.unlink()
    assert running.trusted() == authority
    assert authority.read_text() == shown, "clients would have to fetch the authority again"
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
