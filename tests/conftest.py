"""The embedded stack for tests: one for the whole session, separate from the stack that `make up` keeps."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from storeside.aistore.pods import PodWatch
from storeside.ledger.objects import Ledger
from storeside.stack import authn, cli, demo, ports
from storeside.stack import settings as stacks
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.podrunner.component import NAMESPACE as POD_NAMESPACE
from storeside.stack.podrunner.component import kube_config
from storeside.stack.servers import redis, s3
from storeside.stack.settings import EXECUTORS, SOURCES, Stack, StackError, default_folder
from storeside.stack.supervision import proxies
from storeside.stack.supervision.supervisor import Supervisor
from tests.support import administrator, allow, allow_in_forms, until, uploaded_log
from tests.verify import CANNOT_RUN

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

    from storeside.transform.bucket_job import BucketJob
    from storeside.transform.state import Summary
    from tests.kubernetes.session import Session

pytest_plugins = ["tests.fixtures", "tests.in_memory", "tests.tiers"]
os.environ.update(proxies.direct(os.environ))
# Processes that tests start import the package from this checkout, too.
os.environ["PYTHONPATH"] = str(SOURCES)
# Each worker of pytest-xdist has its own stack.
FOLDER = default_folder() / "-".join(["test", *filter(None, [os.environ.get("PYTEST_XDIST_WORKER")])])
_free_ports = stacks.free_ports


def _ports_of_worker(count: int) -> list[int]:
    """Return free ports that no other worker of pytest-xdist chooses before a server has opened them."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    found: dict[int, None] = {}
    while len(found) < count:  # Linux prefers odd ports
        found |= dict.fromkeys(port for port in _free_ports(count) if port // 2 % workers == own)
    return [*found][:count]


stacks.free_ports = ports.free_ports = _ports_of_worker  # type: ignore[attr-defined]
# Tests that need Airflow.
WITH_AIRFLOW = ("tests/e2e/", "tests/attacks/test_forms.py")

# The same examples in every run, so that results are reproducible.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# Airflow creates its home when it is imported: keep it out of the user's home, and separate for each worker.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="storeside-tests-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"] = "True"  # as in the stack and in the image
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster", choices=["embedded", "kubernetes"], default="embedded",
        help="where AIStore and its ETLs run: `make k8s-test` chooses kubernetes",
    )  # fmt: skip
    parser.addoption(
        "--executor", choices=list(EXECUTORS), default="local",
        help="the executor of the stack's Airflow: `make celery-test` chooses celery",
    )  # fmt: skip
    parser.addoption("--tls", action="store_true", help="a stack with TLS: `make secure-test` chooses it")
    parser.addoption("--keep-stack", action="store_true", help="use the stack that runs already, and do not stop it")


def pytest_sessionstart(session: pytest.Session) -> None:
    """End at once if the machine lacks what the chosen stack needs."""
    if session.config.getoption("executor") == "celery":
        try:
            redis.program()
        except StackError as e:
            pytest.exit(f"celery-test: cannot run: {e}", returncode=CANNOT_RUN)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run a file's tests in one worker of pytest-xdist, and all tests that need Airflow in one: it starts once."""
    from xdist.scheduler import LoadFileScheduling

    class ByStack(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "airflow" if nodeid.startswith(WITH_AIRFLOW) else super()._split_scope(nodeid)

    return ByStack(config, log)


@pytest.fixture(scope="session")
def kubernetes(pytestconfig: pytest.Config) -> Iterator[Session | None]:
    """The Kubernetes cluster on which AIStore runs; None where the embedded stack runs it."""
    if pytestconfig.getoption("cluster") == "embedded":
        yield None
        return
    from tests.kubernetes.session import session

    with session() as found:
        yield found


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """Storage, ClickHouse, S3 + SQS and pod runner, without Airflow; only ClickHouse beside a Kubernetes cluster."""
    kept = pytestconfig.getoption("keep_stack")
    if not (kept and FOLDER.exists()):
        _make_folder()
    embedded = pytestconfig.getoption("cluster") == "embedded"
    parts = ("s3", "clickhouse", "podrunner", "aistore") if embedded else ("clickhouse",)
    found = cli.up(FOLDER, only=parts, executor=pytestconfig.getoption("executor"), tls=pytestconfig.getoption("tls"))
    yield found
    if not kept:
        Supervisor(found).stop()


def _make_folder() -> None:
    """Stop the stack of an earlier session, and make the folder of a new one."""
    if (old := Stack.load(FOLDER)) is not None:
        Supervisor(old).stop()
    from tests import in_memory  # a plugin, which pytest imports

    in_memory.empty(FOLDER)
    (FOLDER / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
    (default_folder() / "cache").mkdir(exist_ok=True)
    allow(FOLDER)


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[Stack]:
    """The same stack with Airflow's processes. Its forms may name what tests make: names with a hyphen."""
    with pytest.MonkeyPatch.context() as patched:
        # Tests that change a DAG's settings request a parse. Without this line, a quarter of a core parses all DAGs.
        patched.setattr("storeside.stack.airflow.airflow.PARSE_SECONDS", 3600)
        found = cli.up(FOLDER)
        allow_in_forms(
            administrator(found),
            buckets=["s3://*-*", "ais://*-*", "ais://ingested", "s3://recordings", "s3://tables", "s3://arrays"],
            connections=["marked_*", "*_default"],
            queues=["recordings-events", "tables-events"],
            domains=["/home/storeside/*"],
        )
        if found.executor == "celery":
            patched.setattr(AirflowApi, "log", uploaded_log(found))
        yield found


@pytest.fixture(scope="session")
def clickhouse(stack: Stack) -> Iterator[Any]:
    """A clickhouse-connect client of the stack's server.

    ClickHouse merges nothing in the manifest meanwhile: tests count its rows without FINAL, to detect a row that was
    loaded twice, and a merge of its ReplacingMergeTree would remove that row, or the older version of an object.
    """
    client = demo.clickhouse_client(stack)
    Ledger(client).create()
    client.command("SYSTEM STOP MERGES speech.manifest")
    yield client
    client.command("SYSTEM START MERGES speech.manifest")


@pytest.fixture(scope="session")
def aistore(request: pytest.FixtureRequest, kubernetes: Session | None) -> Any:
    """An `aistore` SDK client of the cluster under test."""
    if kubernetes is not None:
        return kubernetes.aistore
    stack: Stack = request.getfixturevalue("stack")
    return authn.cluster(stack).client()


@pytest.fixture(scope="session")
def pod_watch(request: pytest.FixtureRequest, kubernetes: Session | None) -> PodWatch:
    """A watcher of the pods of ETLs on the cluster under test."""
    if kubernetes is not None:
        return kubernetes.pods()
    stack: Stack = request.getfixturevalue("stack")
    return PodWatch(str(kube_config(stack)), POD_NAMESPACE, interval=0.2)


@pytest.fixture
def pod_folder(tmp_path: Path, kubernetes: Session | None) -> str:
    """A folder in which the pods of ETLs may write."""
    return "/tmp" if kubernetes else str(tmp_path)  # noqa: S108 - in a container


@pytest.fixture
def embedded_only(pytestconfig: pytest.Config) -> None:
    """Skip a test that needs the embedded stack's disks or its S3 behind AIStore."""
    if pytestconfig.getoption("cluster") != "embedded":
        pytest.skip("it uses the embedded stack's S3 or disks, which a cluster does not reach")


@pytest.fixture(scope="session")
def s3_client(stack: Stack) -> S3Client:
    """A boto3 S3 client of the stack's server."""
    return s3.of_stack("s3", stack)


@pytest.fixture(scope="session")
def sqs_client(stack: Stack) -> SQSClient:
    """A boto3 SQS client of the stack's server."""
    return s3.of_stack("sqs", stack)


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Callable[[BucketJob], Summary]:
    """Run a `BucketJob` to its end, as an operator does between its deferrals, but with shorter timeouts."""
    monkeypatch.setattr("storeside.transform.bucket_job.RETRY_DELAY", 1.0)

    def run(job: BucketJob) -> Summary:
        state = job.begin()
        while state.phase != "done":
            time.sleep(max(state.not_before - time.time(), 0))  # as the operator, before a retry
            state = job.submit(state)
            if state.job_id:
                follower = job.follower(state, stall_seconds=60)
                until(lambda: follower.poll().finished, 600, "end of the job")  # noqa: B023
            state = job.advance(state)
        return job.finish(state)

    return run


@pytest.fixture
def recordings(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Make some distinct recordings."""
    from storeside.stack import speech_corpus

    def make(count: int) -> list[Path]:
        corpus = speech_corpus.make(demo.RECORDINGS, tmp_path / "corpus", count)
        return [corpus.folder / o.name for o in corpus.objects]

    return make


@pytest.fixture(params=["pull", "push", "arrow"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A loader; "arrow" is the worker's way of loading large objects of Parquet, ORC and Arrow."""
    from storeside.transfer.staging import push

    if request.param == "arrow":
        monkeypatch.setattr(push, "WHOLE_PARQUET", 0)
    return "pull" if request.param == "pull" else "push"
