"""ETLs on a real cluster: started, shared, replaced and ended; chains, selections, single objects, inspections."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aistore.sdk.errors import AISError
from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

from storeside.aistore import etl as etls
from storeside.aistore import existing, jobs, lock
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreError, AIStoreInputError, AIStoreTransientError
from storeside.aistore.lock import locked
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.doctor import aistore as doctor
from storeside.ledger.objects import Ledger
from storeside.pages import etls as of_pages
from storeside.stack.settings import Stack
from storeside.transform import journal
from storeside.transform.bucket_job import BucketJob
from storeside.transform.inspection import Inspection
from storeside.transform.naming import Naming
from storeside.transform.single import get_object, transform_object
from storeside.transform.state import Options, State, Summary
from storeside.transformers.contract.failures import Unlisted
from tests.support import INIT_SECONDS, put, read, shared_etls, sizes, unique, until
from tests.support import small_spec as spec

pytestmark = pytest.mark.usefixtures("no_etl_is_left")
Drive = Callable[[BucketJob], Summary]


def job(aistore: Any, clickhouse: Any, source: Bucket, spec: EtlSpec | None, **options: Any) -> BucketJob:
    naming = options.pop("naming", None)
    to = options.pop("to", None) or Bucket("ais", unique("out"))
    run = options.pop("run", "run")
    options.setdefault("keep_etl", bool(spec) and spec.name in shared_etls())
    return BucketJob(
        aistore, Ledger(clickhouse), source, to, run_id=run, spec=spec, naming=naming, options=Options(**options)
    )


def instance(aistore: Any, name: str) -> str:
    """Return what distinguishes one start of the ETL `name` from another."""
    (found,) = (etl.xaction_id for etl in aistore.cluster().list_etls() if etl.id == name)
    return str(found)


# ---- lifecycle


def test_the_same_specification_is_one_etl_and_another_replaces_it(aistore: Any) -> None:
    upper = spec("upper", etl_name="named-etl")
    assert etls.ensure(aistore, upper) == ["named-etl"]
    first = instance(aistore, "named-etl")
    etls.ensure(aistore, upper)
    assert instance(aistore, "named-etl") == first
    etls.ensure(aistore, replace(upper, environment={"SUFFIX": "!"}))
    assert instance(aistore, "named-etl") != first
    assert etls.mark_of(aistore, "named-etl") == replace(upper, environment={"SUFFIX": "!"}).mark


def test_the_pages_read_the_logs_of_the_pods_beside_each_target(aistore: Any) -> None:
    (name,) = etls.ensure(aistore, spec("upper", etl_name="logged-etl"))
    targets = of_pages.targets(aistore, name)
    assert set(targets) == set(aistore.cluster().get_info().tmap)
    for target in targets:
        assert isinstance(of_pages.pod_log(aistore, name, target), list), target


def test_an_etl_that_ends_while_etls_are_listed_is_left_out(aistore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stays, ends = spec("upper", etl_name="stays-etl"), spec("wrap", etl_name="ending-etl")
    etls.ensure(aistore, stays)
    etls.ensure(aistore, ends)
    details = existing.details

    def late(client: Any, name: str) -> dict[str, Any]:
        if name == "ending-etl":
            etls.discard(client, name)
        return details(client, name)

    with monkeypatch.context() as patched:
        patched.setattr(existing, "details", late)
        found = etls.ours(aistore)
    assert "stays-etl" in found
    assert "ending-etl" not in found


def test_nothing_is_stopped_while_a_transform_runs(
    aistore: Any, clickhouse: Any, source: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = spec("slow", etl_name="slow-etl", environment={"SECONDS": "1.5"})
    running = job(aistore, clickhouse, source, slow)
    state = running.submit(running.begin())
    with pytest.raises(AIStoreTransientError, match="would abort"):
        etls.stop(aistore, "slow-etl")
    with pytest.raises(AIStoreTransientError, match="another specification"):
        etls.ensure(aistore, replace(slow, environment={"SECONDS": "0"}))
    assert not etls.release(aistore, ["slow-etl"])

    def down(*_: Any) -> None:
        raise AISError(503, "the API of Kubernetes is away", "", None)

    with monkeypatch.context() as patched:
        patched.setattr(etls, "_check_health", down)
        with pytest.raises(AIStoreTransientError, match=r"does not run beside every target .* would abort"):
            etls.ensure(aistore, slow)
    assert "slow-etl" in etls.ours(aistore)
    follower = running.follower(state, 60)
    progress = until(lambda: (seen := follower.poll()).finished and seen, 40, "end of the job")
    assert not progress.error


@pytest.mark.usefixtures("embedded_only")
def test_an_etl_ends_with_its_pod(aistore: Any) -> None:
    """The stock AIStore checks only after 4.7 s whether the service is gone, and then as late for the pod."""
    took = []
    while not took or (min(took) > 9 and len(took) < 5):  # other processes may delay one of them
        (name,) = etls.ensure(aistore, spec("upper", etl_name="brief-etl"))
        started = time.monotonic()
        etls.discard(aistore, name)
        took.append(time.monotonic() - started)
    assert min(took) < 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": "no/such-image:1"}, ("no/such-image",)),
        ({"command": transformer_command("tests.transformers:no_such_thing")}, ("no_such_thing",)),
        ({"resources": {"limits": {"memory": "12Mi"}}}, ("OOMKilled",)),
    ],
)
def test_a_pod_that_does_not_start_says_why(
    pod_watch: PodWatch, aistore: Any, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(AIStoreError) as caught:
        etls.ensure(aistore, replace(spec("upper"), **change), pod_watch)
    assert not [word for word in words if word not in str(caught.value)], caught.value
    assert type(caught.value) is AIStoreInputError  # no retry helps


def test_a_pod_that_was_killed_may_start_later(pod_watch: PodWatch, aistore: Any) -> None:
    # The first process of a container ignores its own signal, so it ends with the status of a killed one.
    killed = ("python", "-c", "import os; os.kill(os.getpid(), 9); raise SystemExit(137)")
    with pytest.raises(AIStoreTransientError, match=r"exit code 137|exitCode: 137"):
        etls.ensure(aistore, replace(spec("upper"), command=killed), pod_watch)


class Shout(FastAPIServer):
    """A server class as a user writes it, in a module that no pod has."""

    def transform(self, data: bytes, _path: str, etl_args: str) -> bytes:
        return data.upper() + SHOUTED + etl_args.encode()


SHOUTED = b"!"


class Refuse(FastAPIServer):
    """A server that logs nothing in the way of Storeside's server."""

    def transform(self, data: bytes, path: str, etl_args: str) -> bytes:
        raise ValueError(f"{path} is bad")


def test_a_class_is_sent_as_it_is(aistore: Any, clickhouse: Any, source: Bucket, drive: Drive) -> None:
    shout = EtlSpec.of_class(Shout, communication="hpush", init_timeout=INIT_SECONDS, file_access=False)
    assert shout == EtlSpec.of_class(Shout, communication="hpush", init_timeout=INIT_SECONDS, file_access=False)
    run = job(aistore, clickhouse, source, shout)
    found = drive(run)
    assert (found.done, found.failed) == (7, 0), found
    assert read(aistore, run.destination, "a/1.txt") == b"OBJECT 1!"
    assert shout.name not in etls.ours(aistore)


# ---- selections and limits of a job


@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
@pytest.mark.parametrize("file_access", [True, False])
def test_every_channel_does_the_same(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, communication: str, file_access: bool
) -> None:
    run = job(aistore, clickhouse, source, spec("upper", communication=communication, file_access=file_access))
    found = drive(run)
    assert (found.done, found.failed) == (6, 1), found
    assert found.examples == (("a/bad.txt", "this object is bad"),)
    assert sizes(aistore, run.destination).keys() == {f"a/{n}.txt" for n in range(6)}
    assert read(aistore, run.destination, "a/3.txt") == b"OBJECT 3"


@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_a_chain_is_one_pass(aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, communication: str) -> None:
    chain = (spec("upper") >> spec("wrap")).over(communication)
    run = job(aistore, clickhouse, source, chain, naming=Naming({"txt": "json"}))
    found = drive(run)
    assert (found.done, found.failed) == (6, 1), found
    assert found.examples == (("a/bad.txt", "this object is bad"),)
    assert json.loads(read(aistore, run.destination, "a/2.json")) == {"content": "OBJECT 2"}


def test_some_objects_and_names_that_are_not_there(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive
) -> None:
    run = job(aistore, clickhouse, source, spec("upper"), names=["a/1.txt", "a/4.txt", "a/none.txt"])
    found = drive(run)
    assert (found.listed, found.done, found.failed) == (3, 2, 1), found
    assert found.examples == (("a/none.txt", f"{source} has no object of this name"),)
    assert set(sizes(aistore, run.destination)) == {"a/1.txt", "a/4.txt"}


def test_a_preview_changes_nothing(aistore: Any, clickhouse: Any, source: Bucket, drive: Drive) -> None:
    before = set(etls.ours(aistore))
    run = job(aistore, clickhouse, source, spec("upper"))
    assert run.preview() == {"listed": 7, "pending": 7, "known_bad": 0, "refused": 0}
    assert set(etls.ours(aistore)) == before
    assert drive(run).done == 6
    assert job(aistore, clickhouse, source, spec("upper"), to=run.destination, run="2").preview()["pending"] == 0


def test_what_fails_goes_to_quarantine(aistore: Any, clickhouse: Any, source: Bucket, drive: Drive) -> None:
    quarantine = Bucket("ais", unique("quarantine"))
    found = drive(job(aistore, clickhouse, source, spec("upper"), quarantine=quarantine))
    assert (found.done, found.failed) == (6, 1), found
    assert read(aistore, quarantine, "a/bad.txt") == b"bad object"
    assert set(sizes(aistore, quarantine)) == {"a/bad.txt"}


def test_the_first_failure_ends_the_job_when_asked_to(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive
) -> None:
    put(aistore, source, {f"bad/{n}.txt": b"bad object" for n in range(40)})
    slow = spec("upper", communication="hpush")
    run = job(aistore, clickhouse, source, slow, continue_on_error=False)
    found = drive(run)
    assert 1 <= found.failed < 41, found
    # the next run does the objects that were not tried
    again = drive(job(aistore, clickhouse, source, slow, to=run.destination, run="2", retry_failed=True))
    assert (found.done + again.done, again.failed) == (6, 41), again


@pytest.mark.usefixtures("embedded_only")
def test_latest_and_sync_follow_a_remote_bucket(aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive) -> None:
    source = Bucket("s3", unique("in"))
    s3_client.create_bucket(Bucket=source.name)
    for name in ("one", "two"):
        s3_client.put_object(Bucket=source.name, Key=name, Body=name.encode())
    upper = spec("upper")
    run = job(aistore, clickhouse, source, upper)
    assert drive(run).done == 2
    s3_client.put_object(Bucket=source.name, Key="one", Body=b"uno")
    changed = drive(job(aistore, clickhouse, source, upper, to=run.destination, run="2", latest=True))
    assert (changed.done, changed.failed) == (1, 0), changed
    assert read(aistore, run.destination, "one") == b"UNO"
    s3_client.delete_object(Bucket=source.name, Key="two")
    drive(job(aistore, clickhouse, source, upper, to=run.destination, run="3", sync=True))
    assert set(sizes(aistore, run.destination)) == {"one"}


@pytest.mark.usefixtures("embedded_only")
def test_sync_overwrites_no_result_of_another_object(
    aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> None:
    """AIStore processes all objects then, also those that the plan refuses."""
    source = Bucket("s3", unique("in"))
    s3_client.create_bucket(Bucket=source.name)
    for name in ("one.md", "one.txt", "two.txt"):
        s3_client.put_object(Bucket=source.name, Key=name, Body=name.encode())
    upper, naming = spec("upper"), Naming({"md": "out", "txt": "out"})
    to = Bucket("ais", unique("out"))

    def synced(run: str, sync: bool = True) -> Summary:
        return drive(job(aistore, clickhouse, source, upper, to=to, naming=naming, run=run, sync=sync))

    for run in ("first", "second"):
        with pytest.raises(AIStoreInputError, match=r"the results of 1 would .* 'one\.txt': .* like that of one\.md"):
            synced(run)
        assert sizes(aistore, to) == {}
    found = synced("third", sync=False)
    assert (found.done, found.failed, found.known_bad) == (2, 0, 1), found
    s3_client.delete_object(Bucket=source.name, Key="one.txt")
    s3_client.delete_object(Bucket=source.name, Key="two.txt")
    synced("fourth")
    assert set(sizes(aistore, to)) == {"one.out"}
    assert read(aistore, to, "one.out") == b"ONE.MD"


def transformed(aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive) -> tuple[Bucket, Bucket, EtlSpec]:
    """Transform two objects of S3; return their bucket, that of the results, and the ETL."""
    source, to, upper = Bucket("s3", unique("in")), Bucket("ais", unique("out")), spec("upper")
    s3_client.create_bucket(Bucket=source.name)
    for name in ("one.txt", "two.txt"):
        s3_client.put_object(Bucket=source.name, Key=name, Body=name.encode())
    drive(job(aistore, clickhouse, source, upper, to=to, run="first"))
    return source, to, upper


@pytest.mark.usefixtures("embedded_only")
def test_a_result_that_sync_removed_from_another_object_is_made_again(
    aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> None:
    """The result of a deleted object may have been the result of another with the same name, in either order."""
    source, to, upper = transformed(aistore, clickhouse, s3_client, drive)

    class Removing(BucketJob):
        """AIStore's job that removes a result after it was stored."""

        def advance(self, state: State, seconds: float = 0) -> State:
            if state.phase == "bucket":
                to.object(aistore, "one.txt").delete()
            return super().advance(state, seconds)

    run = Removing(
        aistore, Ledger(clickhouse), source, to, run_id="second", spec=upper,
        options=Options(sync=True, keep_etl=upper.name in shared_etls()),
    )  # fmt: skip
    found = drive(run)
    assert (found.listed, found.skipped, found.done, found.failed) == (2, 1, 1, 0), found
    assert read(aistore, to, "one.txt") == b"ONE.TXT"
    assert drive(job(aistore, clickhouse, source, upper, to=to, run="third")).skipped == 2


@pytest.mark.usefixtures("embedded_only")
def test_a_next_try_of_sync_removes_the_results_of_deleted_objects(
    aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> None:
    source, to, upper = transformed(aistore, clickhouse, s3_client, drive)
    s3_client.delete_object(Bucket=source.name, Key="two.txt")
    s3_client.put_object(Bucket=source.name, Key="three.txt", Body=b"three.txt")
    job(aistore, clickhouse, source, upper, to=to, run="second", sync=True).begin()  # killed after its plan
    drive(job(aistore, clickhouse, source, upper, to=to, run="second", sync=True))
    assert set(sizes(aistore, to)) == {"one.txt", "three.txt"}


@pytest.mark.usefixtures("embedded_only")
def test_folder_markers_of_a_remote_bucket_are_left_out(
    aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> None:
    source = Bucket("s3", unique("in"))
    s3_client.create_bucket(Bucket=source.name)
    for name in ("dir/", "dir/one", "x_$folder$"):
        s3_client.put_object(Bucket=source.name, Key=name, Body=b"one" if name == "dir/one" else b"")
    for etl in (spec("upper"), None):
        run = job(aistore, clickhouse, source, etl)
        found = drive(run)
        assert (found.listed, found.done, found.failed, found.skipped) == (1, 1, 0, 0), found
        assert set(sizes(aistore, run.destination)) == {"dir/one"}


def test_folder_markers_in_the_cluster_are_left_out(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source = Bucket("ais", unique("in"))
    markers = {"_SUCCESS": b"", "x/_committed_1": b"bad", "x/.one.crc": b"bad"}
    put(aistore, source, {"x/one": b"one", "_x/two": b"two", "x_$folder$": b"", **markers})
    run = job(aistore, clickhouse, source, spec("upper"))
    found = drive(run)
    assert (found.listed, found.done, found.failed) == (2, 2, 0), found
    assert found.ignored == {"_*": 2, ".*": 1}
    assert set(sizes(aistore, run.destination)) == {"x/one", "_x/two"}
    copied = drive(job(aistore, clickhouse, source, None))
    assert (copied.listed, copied.done, copied.ignored) == (5, 5, {}), copied
    chosen = drive(job(aistore, clickhouse, source, spec("upper"), prefix="x/_c"))
    assert (chosen.listed, chosen.failed, chosen.ignored) == (1, 1, {}), chosen
    named = job(aistore, clickhouse, source, None, names=["x_$folder$"])
    assert drive(named).done == 1
    assert set(sizes(aistore, named.destination)) == {"x_$folder$"}


def test_another_namespace(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source = Bucket.parse(f"ais://#{unique('ns')}/in")
    put(aistore, source, {"x": b"abc"})
    run = job(aistore, clickhouse, source, spec("upper"), to=Bucket("ais", unique("out"), source.namespace))
    assert drive(run).done == 1
    assert read(aistore, run.destination, "x") == b"ABC"


# ---- one object, and none


def test_one_object(aistore: Any, source: Bucket, tmp_path: Path) -> None:
    to = Bucket("ais", unique("out"))
    upper, kept = spec("upper"), {"keeper": "tests/run"}
    assert transform_object(aistore, source, "a/1.txt", to, "b.txt", upper, arguments="?", **kept) == 9
    assert read(aistore, to, "b.txt") == b"OBJECT 1?"
    with pytest.raises(AIStoreError, match="this object is bad"):
        transform_object(aistore, source, "a/bad.txt", to, "bad.txt", upper, **kept)
    assert set(sizes(aistore, to)) == {"b.txt"}

    path = tmp_path / "got.txt"
    with pytest.raises(AIStoreError, match="this object is bad"):
        get_object(aistore, source, "a/bad.txt", tmp_path / "bad.txt", upper, **kept)
    chain = upper >> spec("wrap")
    assert get_object(aistore, source, "a/2.txt", path, chain) == path.stat().st_size
    assert json.loads(path.read_text()) == {"content": "OBJECT 2"}
    assert [p.name for p in tmp_path.iterdir()] == ["got.txt"]
    assert not set(chain.over("hpush").names) & set(etls.ours(aistore))


def test_an_etl_that_somebody_starts_is_not_ended_however_long_that_takes(
    aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap = spec("wrap")
    etls.ensure(aistore, wrap)
    monkeypatch.setattr(etls, "_END_SECONDS", 0.5)
    monkeypatch.setattr(lock, "age_of", lambda *_: 3600.0)
    with locked(aistore, f"ETL {wrap.name}", stale_seconds=60, patience_seconds=1):
        assert not etls.release(aistore, wrap.names)
        assert wrap.name in etls.ours(aistore)
    assert etls.release(aistore, wrap.names)
    assert wrap.name not in etls.ours(aistore)


def test_tasks_that_end_the_etl_of_others_cost_them_a_start(aistore: Any, source: Bucket) -> None:
    to, wrap = Bucket("ais", unique("out")), spec("wrap")
    names = [f"a/{n}.txt" for n in range(6)]
    with ThreadPoolExecutor(3) as tasks:
        made = tasks.map(lambda name: transform_object(aistore, source, name, to, name, wrap), names)
        assert all(made)
    assert json.loads(read(aistore, to, "a/3.txt")) == {"content": "object 3"}
    assert len(sizes(aistore, to)) == 6


def test_an_inspection_finds_what_would_fail(aistore: Any, source: Bucket) -> None:
    inspection, job_id = inspected(aistore, source)
    assert inspection.failures(job_id) == {"a/bad.txt": "this object is bad"}
    assert set(sizes(aistore, source)) == {f"a/{n}.txt" for n in range(6)} | {"a/bad.txt"}


def inspected(aistore: Any, source: Bucket, etl: EtlSpec | None = None) -> tuple[Inspection, str]:
    """Inspect the bucket; return the inspection and its job, which has ended."""
    inspection = Inspection(aistore, source, etl or spec("upper"))
    job_id = inspection.submit()
    follower = jobs.Follower(aistore, job_id, 60)
    progress = until(lambda: (seen := follower.poll()).finished and seen, 30, "end of the inspection")
    assert not progress.error
    return inspection, job_id


def test_an_inspection_does_not_count_what_aistore_may_leave_out(aistore: Any) -> None:
    source = Bucket("ais", unique("in"))
    put(aistore, source, {f"{n}.txt": b"x" for n in range(300)})  # more per target than AIStore lists
    refuse = EtlSpec.of_class(Refuse, communication="hpush", init_timeout=INIT_SECONDS, file_access=False)
    with pytest.raises(AIStoreInputError, match=r"lists 128 per target: correct .*\.txt.* or inspect fewer objects"):
        Inspection.failures(*inspected(aistore, source, refuse))
    assert refuse.name not in etls.ours(aistore)
    few = Bucket("ais", unique("in"))
    put(aistore, few, {f"{n}.txt": b"x" for n in range(5)})
    assert len(Inspection.failures(*inspected(aistore, few, refuse))) == 5


def test_an_inspection_does_not_succeed_without_its_failures(
    aistore: Any, source: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspection, job_id = inspected(aistore, source)
    assert etls.release(aistore, inspection.spec.over("hpush").own_names), "by another task"
    with pytest.raises(AIStoreTransientError, match="a retry inspects the bucket again"):
        inspection.failures(job_id)

    inspection, job_id = inspected(aistore, source)
    read_logs, unlisted = journal._logs, Unlisted(time.time() + 60).line()
    monkeypatch.setattr(journal, "_logs", lambda *given: ((t, f"{log}\n{unlisted}") for t, log in read_logs(*given)))
    with pytest.raises(
        AIStoreInputError, match=r"do not list all objects .* such as 'a/bad.txt': this object is bad"
    ):
        inspection.failures(job_id)


# ---- faults


@pytest.mark.guarantee("transform-bad-object")
def test_a_dead_worker_costs_its_object_a_retry_and_no_other_anything(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, pod_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transform.bucket_job.RETRY_DELAY", 0.5)
    put(aistore, source, {"dies/once.txt": b"x", "dies/always.txt": b"x"})
    deadly = spec("deadly", environment={"MARKS": pod_folder})
    run = job(aistore, clickhouse, source, deadly)
    found = drive(run)
    assert (found.done, found.failed) == (8, 1), found
    ((name, reason),) = found.examples
    assert name == "dies/always.txt"
    assert "SIGSEGV" in reason
    assert "dies/once.txt" in sizes(aistore, run.destination)


def test_a_destination_that_may_not_be_written_to_is_said(aistore: Any, clickhouse: Any, source: Bucket) -> None:
    to = Bucket("ais", unique("out"))
    handle = to.handle(aistore)
    handle.create()
    # GET, HEAD of objects and of the bucket, and listing: AIStore's api/apc/access.go
    readable = {"action": "set-bprops", "value": {"access": str(1 << 0 | 1 << 1 | 1 << 8 | 1 << 9)}}
    handle.client.request("patch", path=f"buckets/{to.name}", params=handle.qparam, json=readable)
    run = job(aistore, clickhouse, source, spec("upper"), to=to)
    with pytest.raises(AISError, match="PUT access denied"):
        run.submit(run.begin())


@pytest.mark.usefixtures("embedded_only")
def test_a_full_cluster_is_said(stack: Stack, aistore: Any, clickhouse: Any, source: Bucket) -> None:
    disk = shutil.disk_usage(stack.state)
    if disk.used / disk.total < 0.03:
        pytest.skip("the disk is too empty for any mark of AIStore's")

    def space(**marks: int) -> None:
        settings = {f"space.{name}": value for name, value in marks.items()}
        aistore.cluster().client.request("put", path="cluster/set-config", params=settings)

    run = job(aistore, clickhouse, source, spec("upper", environment={"SUFFIX": "!"}))  # an ETL that will be started
    state = run.begin()
    space(cleanupwm=1, lowwm=1, highwm=1, out_of_space=2)
    try:
        until(lambda: refuses(aistore, source), 30, "full cluster", interval=1)
        with pytest.raises(AIStoreError, match="out of space"):
            run.submit(state)
        finding = doctor.disks(aistore)
        assert (finding.state, finding.check) == ("failed", "disks")
        assert re.search(r"target aistarget\d: \d+ % of a disk are used: .*out of space", finding.found)
    finally:
        space(cleanupwm=97, lowwm=97, highwm=98, out_of_space=99)
        until(lambda: not refuses(aistore, source), 30, "cluster with room", interval=1)


def refuses(aistore: Any, bucket: Bucket) -> bool:
    """Whether the cluster has no room for a byte on any of its targets."""
    try:
        for n in range(8):
            bucket.handle(aistore).object(f"room/{n}").get_writer().put_content(b"x")
    except AISError:
        return True
    return False


# ---- many, and changing


def test_many_tiny_objects_and_one_that_is_overwritten_meanwhile(
    aistore: Any, clickhouse: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    count = 600
    source = Bucket("ais", unique("in"))
    put(aistore, source, {})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: put(aistore, source, {f"{n:06}": b"object %d" % n}), range(count)))
    upper = spec("upper")
    run = job(aistore, clickhouse, source, upper)
    submit = run.submit

    def overwritten_meanwhile(state: State) -> State:
        submitted = submit(state)
        put(aistore, source, {"000007": b"overwritten"})  # AIStore may miss this object: then it is tried again
        return submitted

    monkeypatch.setattr(run, "submit", overwritten_meanwhile)
    found = drive(run)
    assert (found.done, found.failed) == (count, 0), found
    again = drive(job(aistore, clickhouse, source, upper, to=run.destination, run="2"))
    assert (again.done, read(aistore, run.destination, "000007")) == (1, b"OVERWRITTEN")
