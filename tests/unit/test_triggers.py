from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.following import describe
from storeside.aistore.jobs import Follower, Progress, end_idle, newest_snapshots, running_between
from storeside.events.errors import TriedOutError
from storeside.operators.bases.following import FollowingOperator
from storeside.operators.errors import OperatorInputError, is_final
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.triggers import aistore as triggers
from storeside.operators.triggers import engine
from storeside.operators.triggers.aistore import AISJobTrigger
from storeside.operators.triggers.clickhouse import S3ToClickHouseTrigger
from storeside.operators.triggers.s3_events import S3EventsToClickHouseTrigger, S3EventsTrigger
from storeside.stack.settings import free_ports
from storeside.transfer.base.errors import TransferInputError, TransferTransientError

STARTED = "2026-01-02T03:04:05.123456789Z"
ENDED = "2026-01-02T03:04:07.623456789Z"
ZERO = "0001-01-01T00:00:00Z"


def snap(
    kind: str = "etl-bck",
    objects: int = 0,
    size: int = 0,
    *,
    job: str = "etl-1",
    start: str = STARTED,
    end: str = ZERO,
    pair: tuple[str, str] = ("recordings", "speech"),
    **more: Any,
) -> dict[str, Any]:
    """One target's snapshot of a job, as AIStore 5.0 sends it (core/xaction.go, Snap)."""
    source, destination = ({"name": name, "provider": "ais", "namespace": {"uuid": "", "name": ""}} for name in pair)
    return {
        "id": job,
        "kind": kind,
        "start-time": start,
        "end-time": end,
        "src-bck": source,
        "dst-bck": destination,
        "stats": {"loc-objs": str(objects), "loc-bytes": str(size), "out-objs": "0", "out-bytes": "0"},
        "aborted": False,
        "is_idle": False,
        "abort-err": "",
        "glob.id": "0",
        **more,
    }


class Cluster:
    """The endpoints of an AIStore proxy that are used to follow a job."""

    def __init__(self, port: int = 0) -> None:
        cluster = self
        self.targets: dict[str, list[dict[str, Any]]] = {}
        self.running: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.failure: tuple[int, str] | None = None
        self.on_abort: Callable[[], None] = lambda: None

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def body(self) -> dict[str, Any]:
                return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

            def do_GET(self) -> None:
                asked, body = parse_qs(urlsplit(self.path).query), self.body()
                if cluster.failure:
                    status, message = cluster.failure
                    self.answer(status, {"status": status, "message": message})
                elif self.path.startswith("/v1/cluster?") and asked.get("what") == ["qryxstats"]:
                    job = body["ID"]
                    found = {t: [s for s in snaps if s["id"] == job] for t, snaps in cluster.targets.items()}
                    self.answer(200, found)
                elif self.path.startswith("/v1/cluster?") and asked.get("what") == ["running_all"]:
                    self.answer(200, cluster.running)
                else:
                    self.answer(400, {"status": 400, "message": f"unexpected {self.path} {body}"})

            def do_PUT(self) -> None:
                cluster.actions.append(self.body())
                if cluster.failure:
                    self.answer(cluster.failure[0], {"status": cluster.failure[0], "message": cluster.failure[1]})
                else:
                    cluster.on_abort()
                    self.answer(200, "")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def aborted(self) -> list[str]:
        return [a["value"]["ID"] for a in self.actions if a["action"] == "stop"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def impatient(url: str) -> Any:
    """The SDK's client without its own retries, so that a test sees each answer."""
    from aistore.sdk import Client
    from aistore.sdk.retry_config import RetryConfig
    from tenacity import Retrying, stop_after_attempt
    from urllib3 import Retry

    config = RetryConfig(Retry(0), Retrying(stop=stop_after_attempt(1), reraise=True))
    return Client(url, retry_config=config, timeout=(1, 5))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def follower(cluster: Cluster) -> Follower:
    return Follower(impatient(cluster.url), "etl-1", stall_seconds=60)


# --- following a job


def test_finished_job(cluster: Cluster, follower: Follower) -> None:
    cluster.targets = {"t1": [snap(objects=3, size=30)], "t2": [snap(objects=4, size=40, end=ENDED)]}
    assert follower.poll() == Progress(7, 70)
    cluster.targets["t1"] = [snap(objects=5, size=50, start="2026-01-02T03:04:04Z", end=ENDED)]
    assert follower.poll() == Progress(9, 90, pytest.approx(3.623456), finished=True)
    assert cluster.actions == []


def test_seconds_are_the_same_in_any_zone(cluster: Cluster, follower: Follower) -> None:
    cluster.targets = {"t1": [snap(end="2026-01-02T05:04:07.623456789+02:00")], "t2": [snap(end=ENDED)]}
    assert follower.poll().seconds == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"aborted": True}, "aborted"),
        ({"aborted": True, "abort-err": "user requested"}, "user requested"),
        ({"abort-err": "bucket destroyed"}, "bucket destroyed"),
    ],
)
def test_aborted_on_one_target_is_over(
    cluster: Cluster, follower: Follower, more: dict[str, Any], error: str
) -> None:
    cluster.targets = {"t1": [snap(objects=2, size=20)], "t2": [snap(objects=1, size=10, end=ENDED, **more)]}
    assert follower.poll() == Progress(3, 30, pytest.approx(2.5), finished=True, error=error)
    assert cluster.actions == []


@pytest.mark.parametrize("kind", ["etl-listrange", "copy-listrange"])
def test_multi_object_job_is_over_when_idle_twice(cluster: Cluster, follower: Follower, kind: str) -> None:
    idle, busy = snap(kind, 5, 50, is_idle=True), snap(kind, 5, 50)
    seen = []
    for first, second in [(idle, idle), (idle, busy), (idle, idle), (idle, idle)]:
        cluster.targets = {"t1": [first], "t2": [second]}
        seen.append(follower.poll())
    assert [p.finished for p in seen] == [False, False, False, True]
    assert (seen[-1].objects, seen[-1].bytes, seen[-1].error) == (10, 100, "")
    assert cluster.actions == []


def test_multi_object_job_lasts_from_its_submission_to_its_last_progress(cluster: Cluster) -> None:
    start = time.time()
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=60, submitted=start - 30)
    cluster.targets = {"t1": [snap("copy-listrange", 5, 50, is_idle=True)]}
    assert not follower.poll().finished
    last = time.time()
    found = follower.poll()
    assert found.finished
    assert 30 <= found.seconds <= 30 + last - start


def test_bucket_job_is_not_over_when_idle(cluster: Cluster, follower: Follower) -> None:
    cluster.targets = {"t1": [snap("etl-bck", 5, 50, is_idle=True)]}
    assert not any(follower.poll().finished for _ in range(4))


@dataclass
class Clock:
    """The follower's clock."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(jobs, "time", found)
    return found


def test_stalled_job_is_aborted(cluster: Cluster, clock: Clock) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=300)
    cluster.targets = {"t1": [snap(objects=5, size=50)], "t2": [snap(job="etl-2", objects=1)]}
    assert not follower.poll().finished
    clock.now += 200
    cluster.targets["t1"] = [snap(objects=6, size=60)]
    assert not follower.poll().finished
    clock.now += 200
    assert not follower.poll().finished, "progress did not start the time anew"
    assert cluster.actions == []
    clock.now += 150
    progress = follower.poll()
    assert (progress.objects, progress.bytes, progress.finished) == (6, 60, True)
    assert progress.error.startswith("no progress for 350 s: aborted")
    assert cluster.aborted() == ["etl-1"]


def test_a_stalled_job_of_another_task_is_not_aborted(cluster: Cluster, clock: Clock) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=300, own=False)
    cluster.targets = {"t1": [snap(objects=5, size=50)]}
    assert not follower.poll().finished
    clock.now += 350
    progress = follower.poll()
    assert progress.finished
    assert progress.error.startswith("no progress for 350 s: another task's job is not aborted")
    cluster.targets = {"t1": []}
    clock.now += 350
    assert follower.poll().finished
    assert cluster.actions == []


def test_a_token_that_cannot_be_renewed_counts_as_no_answer(
    cluster: Cluster, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.targets = {"t1": [snap(objects=3, size=30)]}
    assert follower.poll() == Progress(3, 30)

    def without_authn(*_: Any) -> Any:
        raise AIStoreTransientError("AuthN does not answer, and the token has expired")

    with monkeypatch.context() as away:
        away.setattr(jobs, "newest_snapshots", without_authn)
        assert follower.poll() == Progress(3, 30)
    cluster.targets["t1"] = [snap(objects=4, size=40)]
    assert follower.poll() == Progress(4, 40)


def test_larger_objects_are_progress_too(cluster: Cluster, clock: Clock) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=200)
    for size in (10, 20, 30, 40):
        cluster.targets = {"t1": [snap(objects=1, size=size)]}
        assert not follower.poll().finished
        clock.now += 120


@pytest.mark.parametrize("stall_seconds", [20, 300])
@pytest.mark.parametrize("answers_404", [True, False])
def test_a_job_that_no_target_knows_is_over_after_a_while(
    cluster: Cluster, clock: Clock, stall_seconds: float, answers_404: bool
) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds)
    cluster.targets = {"t1": [snap(objects=5, size=50)], "t2": []}
    assert follower.poll() == Progress(5, 50)
    cluster.targets = {"t1": [], "t2": []}
    cluster.failure = (404, "xaction etl-1 not found") if answers_404 else None
    clock.now += 15
    assert follower.poll() == Progress(5, 50)
    clock.now += 16
    progress = follower.poll()
    assert (progress.objects, progress.bytes, progress.finished) == (5, 50, True)
    assert progress.error.startswith("no target knows it, as after a restart of all, for 31 s")
    assert cluster.aborted() == ["etl-1"]


def test_a_job_that_was_unknown_for_a_moment_goes_on(cluster: Cluster, clock: Clock) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=300)
    for targets in ({"t1": []}, {"t1": [snap(objects=5, size=50)]}, {"t1": []}, {"t1": [snap(objects=6, size=60)]}):
        cluster.targets = targets
        assert not follower.poll().finished
        clock.now += 20


def test_a_cluster_that_is_away_knows_its_jobs_afterwards(cluster: Cluster, clock: Clock) -> None:
    follower = Follower(impatient(cluster.url), "etl-1", stall_seconds=300)
    cluster.targets = {"t1": [snap(objects=5, size=50)]}
    assert not follower.poll().finished
    cluster.failure = (503, "not ready")
    for _ in range(3):
        clock.now += 40
        assert not follower.poll().finished
    cluster.failure, cluster.targets = None, {"t1": []}
    clock.now += 20
    assert not follower.poll().finished


def test_newest_snapshot_of_a_target_counts(cluster: Cluster, follower: Follower) -> None:
    older = snap(objects=1, size=1, start="2026-01-02T03:00:00Z", end=ENDED, aborted=True, **{"abort-err": "old"})
    for snaps in ([older, snap(objects=5, size=50)], [snap(objects=5, size=50), older]):
        cluster.targets = {"t1": snaps}
        assert follower.poll() == Progress(5, 50)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        # Go omits zeros at the end of a fraction, and writes the node's own zone.
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5Z"),
        ("2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.12Z"),
        ("2026-10-25T02:59:00+02:00", "2026-10-25T02:01:00+01:00"),
        ("", "2026-01-02T03:04:05Z"),
    ],
)
def test_newest_is_by_instant(cluster: Cluster, older: str, newer: str) -> None:
    first, second = snap(objects=1, start=older), snap(objects=2, start=newer)
    for snaps in ([first, second], [second, first]):
        cluster.targets = {"t1": snaps}
        assert [s.stats.objects for s in newest_snapshots(impatient(cluster.url), "etl-1")] == [2]


def test_cluster_that_does_not_answer_is_no_progress() -> None:
    (port,) = free_ports(1)
    follower = Follower(impatient(f"http://127.0.0.1:{port}"), "etl-1", stall_seconds=60)
    assert follower.poll() == Progress()
    cluster = Cluster(port)
    try:
        cluster.targets = {"t1": [snap(objects=5, size=50)]}
        assert follower.poll() == Progress(5, 50)
    finally:
        cluster.close()
    assert follower.poll() == Progress(5, 50), "what was done is forgotten while the cluster is away"
    cluster = Cluster(port)
    try:
        cluster.targets = {"t1": [snap(objects=9, size=90, end=ENDED)]}
        assert follower.poll() == Progress(9, 90, pytest.approx(2.5), finished=True)
    finally:
        cluster.close()


def test_cluster_that_never_answers_ends_the_wait(clock: Clock) -> None:
    follower = Follower(impatient(f"http://127.0.0.1:{free_ports(1)[0]}"), "etl-1", stall_seconds=100)
    assert not follower.poll().finished
    clock.now += 150
    progress = follower.poll()
    assert progress.finished
    assert "no answer" in progress.error


# --- counters of multi-object jobs


def message(
    done: int = 1, begun: int = 1, pending: int = 0, sent: int = 0, received: int = 0, more: str = "", errors: int = 0
) -> str:
    """A target's control message, as AIStore 5.0 writes it (xact/xs/tcobjs.go, CtlMsg)."""
    return (
        f"cp s3://a=>ais://b; t[one]: job:[ xid:tco-x txns:{done}/{begun} pending:{pending} sent:{sent}"
        f" received:{received} err:{errors} chan-full:0 pruned:0]{more}"
    )


@pytest.mark.parametrize(
    ("messages", "is_done"),
    [
        ([message(sent=3, received=2), message(sent=2, received=3)], True),
        ([message(done=2, begun=2, sent=9, received=9, errors=4)], True),
        ([message()], True),
        ([message(sent=3, received=2), message(sent=2, received=2)], False),  # one object is on its way
        ([message(done=0), message()], False),
        ([message(done=0, begun=0), message()], False),  # a target that knows of no request
        ([message(pending=1), message()], False),
        ([message(more=" [list(3 names):[o, ...], pending:1, flags:]"), message()], False),
        ([message(done=0, more=f" [list(2 names):[{message()}], flags:]")], False),  # a name like a message
        ([message(), ""], False),
        ([message(), "another version of AIStore writes this"], False),
    ],
)
def test_multi_object_copy_is_done_when_its_counters_prove_it(
    cluster: Cluster, messages: list[str], is_done: bool
) -> None:
    snaps = [snap("copy-listrange", 5, 50, ctlmsg=text) for text in messages]
    cluster.targets = {f"t{number}": [one] for number, one in enumerate(snaps)}
    cluster.running = ["copy-listrange[etl-1]"]
    client = impatient(cluster.url)
    assert Follower(client, "etl-1", stall_seconds=60).poll().finished == is_done
    assert (running_between(client, *PAIR) is None) == is_done


def test_counters_of_a_transform_prove_something_on_one_target_only(cluster: Cluster) -> None:
    """Results of a transform reach other targets in ways that the counters leave out."""
    one = snap("etl-listrange", 5, 50, ctlmsg=message())
    for targets, finished in ((1, True), (2, False)):
        cluster.targets = {f"t{number}": [one] for number in range(targets)}
        assert Follower(impatient(cluster.url), "etl-1", stall_seconds=60).poll().finished == finished


# --- jobs between two buckets

PAIR = (Bucket.parse("ais://recordings"), Bucket.parse("ais://speech"))


def test_running_between(cluster: Cluster) -> None:
    client = impatient(cluster.url)
    cluster.targets = {
        "t1": [snap(job="other", pair=("a", "b")), snap(job="etl-1"), snap("etl-listrange", job="idle")]
    }
    cluster.targets["t1"][2]["is_idle"] = True
    cluster.running = ["rebalance[g1]", "etl-bck[other]", "etl-listrange[idle]"]
    assert running_between(client, *PAIR) is None
    cluster.running.append("etl-bck[etl-1]")
    assert running_between(client, *PAIR) == "etl-1"
    assert running_between(client, PAIR[1], PAIR[0]) is None
    assert running_between(client, Bucket.parse("s3://recordings"), PAIR[1]) is None
    cluster.targets["t1"][1]["aborted"] = True
    assert running_between(client, *PAIR) is None


def test_idle_jobs_are_ended(cluster: Cluster) -> None:
    cluster.targets = {"t1": [snap("etl-listrange", job="idle", is_idle=True), snap("etl-listrange", job="busy")]}
    cluster.running = ["etl-listrange[idle]", "etl-listrange[busy]"]
    cluster.on_abort = lambda: cluster.running.remove("etl-listrange[idle]")
    end_idle(impatient(cluster.url), *PAIR)
    assert cluster.aborted() == ["idle"]


def test_idle_job_that_stays_is_transient(cluster: Cluster) -> None:
    cluster.targets = {"t1": [snap("etl-listrange", job="idle", is_idle=True)]}
    cluster.running = ["etl-listrange[idle]"]
    with pytest.raises(AIStoreTransientError, match="idle job idle does not end"):
        end_idle(impatient(cluster.url), *PAIR, seconds=0.3)


@pytest.mark.parametrize("job", ["rebalance[g1]", "resilver[r1]"])
def test_rebalance_is_waited_for(cluster: Cluster, job: str) -> None:
    cluster.running = [job]
    with pytest.raises(AIStoreTransientError, match="still rebalances after 0 s"):
        jobs.wait_for_rebalance(impatient(cluster.url), seconds=0)
    cluster.running = ["etl-bck[x]"]
    jobs.wait_for_rebalance(impatient(cluster.url), seconds=0)
    cluster.failure = (502, "t1 is down")
    with pytest.raises(AIStoreTransientError, match="does not answer as a whole"):
        jobs.wait_for_rebalance(impatient(cluster.url), seconds=0)


# --- the triggers

TRIGGERS: list[BaseTrigger] = [
    AISJobTrigger(
        "aistore_other", "etl-1", 1_700_000_000.5, 10, poll_interval=0.5, stall_seconds=7, own=False, etl_names=["e"]
    ),
    S3EventsTrigger("events", 7, 8.0, 9, 0.5, "aws_other", "ch_other"),
    S3EventsToClickHouseTrigger("url", {"table": "d.t"}, {"messages": 3}, ["b"], "dag/run", "aws_other", "ch_other"),
    S3ToClickHouseTrigger(
        {"table": "d.t"}, {"planned": 3}, "dag/run", 1_700_000_000.5, "aws_other", "ch_other", "ais_other"
    ),
]


def test_a_watcher_needs_a_lease_and_a_batch() -> None:
    with pytest.raises(OperatorInputError, match="lease_seconds 0: needs to be from 3 to 43200"):
        S3EventsTrigger("events", lease_seconds=0)
    with pytest.raises(OperatorInputError, match="batch_messages 0: needs to be 1 or more"):
        S3EventsTrigger("events", batch_messages=0)


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda t: type(t).__name__)
def test_serialize_makes_the_same_trigger_again(trigger: Any) -> None:
    path, kwargs = trigger.serialize()
    again = import_string(path)(**json.loads(json.dumps(kwargs)))
    assert type(again) is type(trigger)
    assert again.serialize() == (path, kwargs)
    parameters = inspect.signature(type(trigger).__init__).parameters
    assert set(kwargs) == set(parameters) - {"self"}
    assert all(kwargs[p.name] != p.default for p in parameters.values() if p.name != "self"), (
        "a default proves nothing"
    )


@pytest.mark.parametrize(
    "uri", ["aistore://someone:hunter2@proxy:51080", "aistore://someone:hunter2@proxy:51080/https"]
)
def test_triggers_carry_no_secret(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", uri)
    endpoint = AIStoreHook().endpoint
    assert endpoint == ("https" if uri.endswith("https") else "http") + "://proxy:51080"
    assert AIStoreHook().cluster.token == "hunter2"
    assert "hunter2" not in repr(AIStoreHook().cluster)
    for trigger in (AISJobTrigger("aistore_default", "etl-1", 0), S3EventsTrigger("events")):
        assert not {"hunter2", "someone"} & set(json.dumps(trigger.serialize()).replace("/", '"').split('"'))


@pytest.mark.parametrize(
    ("connection", "endpoint", "clickhouse"),
    [
        ({"host": "proxy"}, "http://proxy:51080", "http://proxy:51080"),
        ({"host": "proxy", "port": 80, "schema": "https"}, "https://proxy:80", "https://proxy:80"),
        ({"host": "https://proxy", "port": 443}, "https://proxy:443", "https://proxy:443"),
        ({"host": "https://proxy"}, "https://proxy", "https://proxy"),
        ({"host": "p", "extra": {"clickhouse_endpoint": "http://inside:1"}}, "http://p:51080", "http://inside:1"),
    ],
)
def test_hook_reads_its_connection(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], endpoint: str, clickhouse: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_THE_CLUSTER", json.dumps({"conn_type": "generic", **connection}))
    hook = AIStoreHook("the_cluster")
    assert (hook.endpoint, hook.clickhouse_endpoint) == (endpoint, clickhouse)


def test_connection_without_host_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_THE_CLUSTER", '{"conn_type": "generic"}')
    with pytest.raises(ValueError, match="connection the_cluster: needs the host of an AIStore proxy"):
        _ = AIStoreHook("the_cluster").endpoint


def leads_to(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> str:
    """Return the id of a connection to the cluster."""
    host, port = cluster.url.removeprefix("http://").split(":")
    connection = {"conn_type": "generic", "host": host, "port": int(port)}
    monkeypatch.setenv("AIRFLOW_CONN_THE_CLUSTER", json.dumps(connection))
    return "the_cluster"


async def events(trigger: BaseTrigger) -> list[dict[str, Any]]:
    return [event.payload async for event in trigger.run()]


def test_trigger_fires_once_when_the_job_is_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    cluster.targets = {"t1": [snap(objects=5, size=5_000_000)]}

    def finish() -> None:
        cluster.targets = {"t1": [snap(objects=10, size=10_000_000, end=ENDED)]}

    threading.Timer(0.3, finish).start()
    fired = asyncio.run(
        events(AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", time.time(), 10, poll_interval=0.05))
    )
    assert fired == [
        {
            "job_id": "etl-1",
            "objects": 10,
            "error": "",
            "seconds": pytest.approx(2.5),
            "progress": "10 of 10 objects, 10.0 MB, 4.0 objects/s, finished after 2.5 s",
        }
    ]
    assert json.loads(json.dumps(fired)) == fired


def test_trigger_tells_an_aborted_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    cluster.targets = {"t1": [snap(objects=1, end=ENDED, aborted=True, **{"abort-err": "user"})]}
    (fired,) = asyncio.run(events(AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", time.time())))
    assert fired["error"] == "user"
    assert fired["progress"].endswith("finished after 2.5 s with error: user")


@pytest.mark.parametrize(("status", "message"), [(401, "token expired"), (403, "no permission to show jobs")])
def test_trigger_ends_at_once_when_a_retry_cannot_help(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    cluster.failure = (status, message)
    trigger = AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", time.time(), poll_interval=0.01)
    (fired,) = asyncio.run(asyncio.wait_for(events(trigger), 120))
    assert fired["error"] == f"AIStore does not show the job: {message}"
    assert cluster.aborted() == []


@pytest.mark.parametrize(
    ("status", "message"),
    [(503, "not ready"), (400, "a target is down"), (403, "aws-error[RequestTimeTooSkewed: the clock is wrong]")],
)
def test_trigger_waits_when_the_error_may_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    cluster.failure = (status, message)
    cluster.targets = {"t1": [snap(objects=10, size=10, end=ENDED)]}

    def answer() -> None:
        cluster.failure = None

    threading.Timer(1, answer).start()
    trigger = AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", time.time(), poll_interval=0.05)
    (fired,) = asyncio.run(asyncio.wait_for(events(trigger), 60))
    assert (fired["objects"], fired["error"]) == (10, "")


def test_a_cluster_that_hangs_blocks_no_other_trigger(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the event loop's executor also look up addresses, for all triggers."""
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    connection, hangs, polling = leads_to(monkeypatch, cluster), threading.Event(), threading.Semaphore(0)

    def poll(_: Follower) -> Progress:
        polling.release()
        hangs.wait(120)
        return Progress(finished=True)

    monkeypatch.setattr(Follower, "poll", poll)

    async def others() -> None:
        waiting = [asyncio.create_task(events(AISJobTrigger(connection, f"etl-{n}", 0))) for n in range(40)]
        try:
            while not polling.acquire(blocking=False):
                await asyncio.sleep(0.01)  # the threads of the loop are what this test is about
            await asyncio.wait_for(asyncio.to_thread(lambda: None), 60)
        finally:
            hangs.set()
        await asyncio.gather(*waiting)

    asyncio.run(others())


def test_a_poll_ends_when_the_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AIStoreInputError("AuthN: refused: correct login and password")

    monkeypatch.setattr(jobs, "newest_snapshots", refused)
    client: Any = None
    progress = Follower(client, "etl-1", 60, is_final).poll()
    assert (progress.finished, progress.error) == (
        True, "AIStore does not show the job: AuthN: refused: correct login and password",
    )  # fmt: skip


def test_trigger_tells_of_a_connection_that_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    monkeypatch.setenv("AIRFLOW_CONN_THE_CLUSTER", json.dumps({"conn_type": "aistore", "host": ""}))
    (fired,) = asyncio.run(asyncio.wait_for(events(AISJobTrigger("the_cluster", "etl-1", time.time())), 120))
    assert "the_cluster" in fired["error"]


def test_killed_trigger_aborts_its_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", 0).on_kill())
    assert cluster.aborted() == ["etl-1"]


@pytest.mark.parametrize(
    ("index", "states", "stops"),
    [
        (-1, {"r": {"t": "deferred"}}, False),
        (2, {"r": {"t_2": "deferred"}}, False),
        (-1, {"r": {"t": "failed"}}, True),
        (2, {"r": {"t_2": None}}, True),
        (-1, {}, True),  # the run was deleted
    ],
)
def test_a_triggerer_that_stalled_stops_nothing_that_another_has_taken_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, index: int, states: Any, stops: bool
) -> None:
    asked: list[Any] = []

    def get_task_states(**names: Any) -> Any:
        asked.append(names)
        return states

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", get_task_states)
    cancelled: list[bool] = []

    class Working(engine.EngineTrigger):
        async def engine(self) -> Any:
            return SimpleNamespace(cancel=lambda: cancelled.append(True))

    killed: list[Any] = [AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", 0), Working()]
    for trigger in killed:
        trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=index)
        asyncio.run(trigger.on_kill())
    assert cluster.aborted() == ["etl-1"] * stops
    assert cancelled == [True] * stops
    assert asked == [{"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": index}] * 2


def test_killed_trigger_ends_the_etls_when_its_job_is_gone(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], list[str]]] = []

    def release(_: Any, names: list[str]) -> bool:
        asked.append((cluster.aborted(), names))
        return len(asked) == 2  # the aborted job exists for a moment

    monkeypatch.setattr("storeside.aistore.following.release", release)
    monkeypatch.setattr("storeside.aistore.following.time.sleep", lambda _: None)
    asyncio.run(AISJobTrigger(leads_to(monkeypatch, cluster), "etl-1", 0, etl_names=["e"]).on_kill())
    assert asked == [(["etl-1"], ["e"])] * 2


def test_killed_trigger_leaves_the_job_of_another_task(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = leads_to(monkeypatch, cluster)
    asyncio.run(AISJobTrigger(connection, "etl-1", 0, own=False, etl_names=["of-another"]).on_kill())
    assert not cluster.aborted()


@pytest.mark.parametrize("own", [True, False])
def test_a_task_aborts_only_its_own_stalled_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)
    cluster.targets = {"t1": [snap(objects=5, size=50)]}
    connection = leads_to(monkeypatch, cluster)
    trigger = AISJobTrigger(connection, "etl-1", time.time(), poll_interval=0.01, stall_seconds=0.1, own=own)
    (fired,) = asyncio.run(asyncio.wait_for(events(trigger), 120))
    followed = FollowingOperator(task_id="t").follow(impatient(cluster.url), trigger)
    assert followed
    assert all(event["error"].startswith("no progress for") for event in (fired, followed))
    assert cluster.aborted() == (["etl-1"] * 2 if own else [])


@pytest.mark.parametrize(
    ("progress", "total", "seconds", "line"),
    [
        (Progress(), 0, 0, "0 objects, 0 B"),
        (Progress(), 10, 3, "0 of 10 objects, 0 B, 0.0 objects/s"),
        (Progress(1, 824), 0, 0.5, "1 object, 824 B"),
        (Progress(5, 1_500_000), 0, 2, "5 objects, 1.5 MB, 2.5 objects/s"),
        (Progress(5, 1_500_000), 10, 2, "5 of 10 objects, 1.5 MB, 2.5 objects/s, 2 s to go"),
        (Progress(10), 10, 2, "10 of 10 objects, 0 B, 5.0 objects/s"),
        (Progress(12), 10, 2, "12 of 10 objects, 0 B, 6.0 objects/s"),
        (Progress(5), 10, -1, "5 of 10 objects, 0 B"),
        (Progress(5, 0, 2.5, True), 10, 99, "5 of 10 objects, 0 B, 2.0 objects/s, finished after 2.5 s"),
        (Progress(5, 0, 0, True), 0, 10, "5 objects, 0 B, 0.5 objects/s, finished after 10.0 s"),
        (
            Progress(5, 0, 5, True, "user"),
            10,
            9,
            "5 of 10 objects, 0 B, 1.0 objects/s, finished after 5.0 s with error: user",
        ),
    ],
)
def test_describe(progress: Progress, total: int, seconds: float, line: str) -> None:
    assert describe(progress, total, seconds) == line


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TransferInputError("the table is a view"), False),
        (TransferTransientError("the queue does not answer"), True),
        (OperationalError("connection refused"), True),
        (DatabaseError("HTTP driver received HTTP status 502"), True),
        (ConnectionResetError(), True),
        (TriedOutError("asked for fewer requests"), True),
    ],
)
def test_only_what_no_retry_helps_fails_for_good(
    error: Exception, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(engine, "DELAYS", (0, 0))
    tries = []

    class Failing(engine.EngineTrigger):
        async def engine(self) -> Any:
            tries.append(1)

        def work(self, engine: Any) -> Any:
            raise error

    async def events() -> list[Any]:
        return [event.payload async for event in Failing().run()]

    (payload,) = asyncio.run(events())
    assert payload == {"error": str(error) or repr(error), "again": again}
    assert len(tries) == (3 if again and not isinstance(error, TriedOutError) else 1)


def test_an_engine_whose_servers_come_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(engine, "DELAYS", (0, 0))
    down = iter(
        [OperationalError("the client cannot be made"), None, TransferTransientError("lost on the way"), None, None]
    )

    def fail_or_not() -> None:
        if (error := next(down)) is not None:
            raise error

    @dataclass
    class Report:
        rows: int

    class Recovering(engine.EngineTrigger):
        async def engine(self) -> Any:
            fail_or_not()

        def work(self, engine: Any) -> Any:
            fail_or_not()
            return Report(7)

    async def events() -> list[Any]:
        return [event.payload async for event in Recovering().run()]

    assert asyncio.run(events()) == [{"report": {"rows": 7}}]
