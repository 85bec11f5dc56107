"""ETLs that were started by hand on a real cluster: used, never stopped; and AIStore's own specification files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.aistore import etl as etls
from storeside.aistore import existing, jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.existing import described, stage_of
from storeside.aistore.following import cancel
from storeside.aistore.spec import KEEPER, TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.operators import (
    AISDeleteEtlOperator,
    AISInitEtlOperator,
    AISStartEtlOperator,
    AISStopEtlOperator,
)
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import InPlaceJob
from storeside.transform.inspection import Inspection
from storeside.transform.single import get_object, transform_object
from storeside.transform.state import Options, Summary
from tests.support import etl_servers, read, sizes, small_spec, unique, until
from tests.unit.test_spec_file import DOCUMENTED

if TYPE_CHECKING:
    from airflow.sdk import Context

pytestmark = pytest.mark.usefixtures("no_etl_is_left")
Drive = Callable[[BucketJob], Summary]
# (name, transform, channel, variables) -> None
Start = Callable[..., None]


@pytest.fixture
def by_hand(aistore: Any, no_etl_is_left: None) -> Iterator[Start]:
    """Start ETLs as others do, with AIStore's API, and delete them after the test."""
    names: list[str] = []

    def start(name: str, transform: str = "upper", communication: str = "hpush", **variables: str) -> None:
        names.append(name)
        given = EtlSpec(name, TRANSFORMER_IMAGE, environment={"NUM_WORKERS": "1", **variables})
        message = {
            "name": name,
            "communication": f"{communication}://",
            "init_timeout": "30s",
            "obj_timeout": "45s",
            "support_direct_put": True,
            "runtime": {
                "image": TRANSFORMER_IMAGE,
                "command": list(transformer_command(f"tests.transformers:{transform}")),
                "env": [
                    *({"name": n, "value": v} for n, v in given.environment.items()),
                    *etls._of_the_cluster(aistore, given),
                ],
            },
        }
        aistore.cluster().client.request("put", path="etl", timeout=60, json=message)

    yield start
    until(lambda: not jobs.running_transforms(aistore), 60, "end of the transforms")
    for name in names:
        etls.discard(aistore, name)
        until(lambda: not stage_of(aistore, name), 20, "deletion of the ETL")  # noqa: B023


def job(aistore: Any, clickhouse: Any, source: Bucket, spec: EtlSpec, to: Bucket | None = None, **more: Any) -> Any:
    return BucketJob(
        aistore, Ledger(clickhouse), source, to or Bucket("ais", unique("out")), run_id=more.pop("run", "run"),
        spec=spec, options=Options(**more),
    )  # fmt: skip


def instance(aistore: Any, name: str) -> str:
    """Return what distinguishes one start of the ETL `name` from another."""
    (found,) = (etl.xaction_id for etl in aistore.cluster().list_etls() if etl.id == name)
    return str(found)


def ended(job: Any, state: Any) -> Any:
    """Wait for the end of a job of AIStore and return its progress."""
    follower = job.follower(state, 60)
    return until(lambda: (seen := follower.poll()).finished and seen, 60, "end of the job")


# ---- used as they run


@pytest.mark.parametrize("communication", ["hpush", "ws", "hpull"])
def test_an_existing_etl_is_used_and_runs_on(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start, communication: str
) -> None:
    name = unique("upper")
    by_hand(name, communication=communication, SUFFIX="!")
    started = instance(aistore, name)
    run = job(aistore, clickhouse, source, EtlSpec.existing(name, communication))
    assert run.spec.request_timeout == "45s"
    found = drive(run)
    assert (found.done, found.failed) == (6, 1), found
    assert found.examples == (("a/bad.txt", "this object is bad"),)
    assert read(aistore, run.destination, "a/1.txt") == b"OBJECT 1!"
    assert instance(aistore, name) == started
    again = drive(job(aistore, clickhouse, source, EtlSpec.existing(name), run.destination, run="2"))
    assert (again.done, again.skipped, again.known_bad) == (0, 6, 1), again
    assert instance(aistore, name) == started


def test_a_task_that_is_killed_or_cleared_leaves_it_running(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start
) -> None:
    name = unique("slow")
    by_hand(name, "slow", SECONDS="1")
    started = instance(aistore, name)
    killed = job(aistore, clickhouse, source, EtlSpec.existing(name))
    state = killed.submit(killed.begin())
    cancel(aistore, state.job_id, killed.spec.all_names)  # as the trigger does
    assert ended(killed, state).error
    assert instance(aistore, name) == started
    cleared = job(aistore, clickhouse, source, EtlSpec.existing(name), killed.destination)
    found = drive(cleared)
    assert (found.listed, found.failed) == (7, 0), found
    assert set(sizes(aistore, killed.destination)) == set(sizes(aistore, source))
    assert instance(aistore, name) == started


def test_what_its_owner_changes_counts(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start
) -> None:
    name = unique("upper")
    by_hand(name, SUFFIX="1")
    first = job(aistore, clickhouse, source, EtlSpec.existing(name))
    assert drive(first).done == 6
    etls.discard(aistore, name)
    by_hand(name, SUFFIX="2")
    found = drive(job(aistore, clickhouse, source, EtlSpec.existing(name), first.destination, run="2"))
    assert found.done == 6, found
    assert read(aistore, first.destination, "a/1.txt") == b"OBJECT 12"


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_chain_with_one_of_ours(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start, ours_first: bool
) -> None:
    name, wrap = unique("upper"), small_spec("wrap", communication="hpush")
    by_hand(name)
    theirs = EtlSpec.existing(name)
    run = job(aistore, clickhouse, source, wrap >> theirs if ours_first else theirs >> wrap)
    found = drive(run)
    assert found.done == (7 if ours_first else 6), found
    result = read(aistore, run.destination, "a/1.txt")
    assert result == (b'{"CONTENT": "OBJECT 1"}' if ours_first else b'{"content": "OBJECT 1"}')
    assert wrap.name not in etls.ours(aistore)
    assert stage_of(aistore, name) == "Running"


def test_single_objects_inspections_and_in_place(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start, tmp_path: Path
) -> None:
    name, to = unique("upper"), Bucket("ais", unique("out"))
    by_hand(name)
    started, spec = instance(aistore, name), EtlSpec.existing(name)
    assert transform_object(aistore, source, "a/1.txt", to, "b.txt", spec) == 8
    assert get_object(aistore, source, "a/2.txt", tmp_path / "got", spec) == 8
    inspection = Inspection(aistore, source, spec)
    job_id = inspection.submit()
    follower = jobs.Follower(aistore, job_id, 60)
    until(lambda: follower.poll().finished, 30, "end of the inspection")
    assert inspection.failures(job_id) == {"a/bad.txt": "this object is bad"}
    found = drive(InPlaceJob(aistore, Ledger(clickhouse), source, run_id="in place", spec=spec))  # type: ignore[arg-type]
    assert (found.done, found.failed) == (6, 1), found
    assert read(aistore, source, "a/1.txt") == b"OBJECT 1"
    assert instance(aistore, name) == started


def test_an_etl_with_an_empty_variable_can_be_described(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start
) -> None:
    """AIStore leaves the empty value out, and its SDK cannot read that."""
    name = unique("upper")
    by_hand(name, SUFFIX="")
    assert described(aistore, EtlSpec.existing(name)).environment == {"NUM_WORKERS": "1", "SUFFIX": ""}
    assert name not in etls.ours(aistore)
    assert drive(job(aistore, clickhouse, source, EtlSpec.existing(name))).done == 6


# ---- errors


def test_an_etl_that_does_not_exist_is_bad_input(aistore: Any, clickhouse: Any, source: Bucket) -> None:
    spec = EtlSpec.existing(unique("nothing"))
    with pytest.raises(AIStoreInputError, match=r"there is no ETL nothing-\w+ in the cluster, .* start it with"):
        job(aistore, clickhouse, source, spec)
    with pytest.raises(AIStoreInputError, match="there is no ETL"):
        etls.ensure(aistore, spec)
    with pytest.raises(AIStoreInputError, match="there is no ETL"):
        etls.start(aistore, spec.name)


def test_a_stopped_etl_is_not_started_by_a_task_but_by_its_own(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start
) -> None:
    name = unique("upper")
    by_hand(name)
    assert not etls.start(aistore, name)
    etls.stop(aistore, name)
    with pytest.raises(AIStoreTransientError, match=r"does not run \(it is stopped\), .* AISStartEtlOperator"):
        job(aistore, clickhouse, source, EtlSpec.existing(name))
    assert stage_of(aistore, name) == "Aborted"
    assert etls.start(aistore, name)
    assert drive(job(aistore, clickhouse, source, EtlSpec.existing(name))).done == 6


def test_another_communication_type_is_bad_input(
    aistore: Any, clickhouse: Any, source: Bucket, by_hand: Start, tmp_path: Path
) -> None:
    name = unique("upper")
    by_hand(name, communication="ws")
    with pytest.raises(AIStoreInputError, match=rf"ETL {name} is called over ws, not over hpush"):
        job(aistore, clickhouse, source, EtlSpec.existing(name, "hpush"))
    spec = EtlSpec.existing(name)
    for needs in (
        lambda: Inspection(aistore, source, spec).submit(),
        lambda: get_object(aistore, source, "a/1.txt", tmp_path / "got", spec),
        lambda: InPlaceJob(aistore, Ledger(clickhouse), source, run_id="run", spec=spec),
    ):
        with pytest.raises(AIStoreInputError, match="is called over ws, where AIStore does not learn which objects"):
            needs()
    assert stage_of(aistore, name) == "Running"


@pytest.mark.parametrize("communication", ["hpush", "ws"])
def test_an_etl_that_dies_during_the_job_costs_a_retry(
    stack: Stack, aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start, communication: str
) -> None:
    name = unique("slow")
    by_hand(name, "slow", communication, SECONDS="0.7")
    spec = EtlSpec.existing(name)
    died = job(aistore, clickhouse, source, spec)
    state = died.submit(died.begin())
    until(lambda: sizes(aistore, died.destination), 20, "a result")
    etl_servers(stack, name)[0].kill()
    assert ended(died, state).error
    with pytest.raises((AIStoreTransientError, AIStoreInputError)) as caught:  # as the task that resumes
        job(aistore, clickhouse, source, spec, died.destination).advance(state)
    assert name in str(caught.value)
    assert isinstance(caught.value, AIStoreTransientError), caught.value
    until(lambda: not jobs.running_transforms(aistore), 30, "end of the job")
    assert etls.start(aistore, name)
    found = drive(job(aistore, clickhouse, source, spec, died.destination))
    assert (found.listed, found.failed) == (7, 0), found
    assert set(sizes(aistore, died.destination)) == set(sizes(aistore, source))


def test_an_etl_that_is_replaced_during_the_job(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, by_hand: Start
) -> None:
    name = unique("slow")
    by_hand(name, "slow", SECONDS="1")
    spec = EtlSpec.existing(name)
    first = job(aistore, clickhouse, source, spec)
    state = first.submit(first.begin())
    etls.discard(aistore, name)
    assert ended(first, state).error
    until(lambda: not stage_of(aistore, name), 20, "deletion of the ETL")
    time.sleep(2)  # AIStore is still cancelling the first start, and shows no end of that
    by_hand(name)
    with pytest.raises(AIStoreTransientError, match="was replaced by another while the job ran"):
        job(aistore, clickhouse, source, spec, first.destination).advance(state)
    found = drive(job(aistore, clickhouse, source, spec, first.destination))
    assert (found.done, found.failed) == (6, 1), found
    assert {read(aistore, first.destination, f"a/{n}.txt") for n in range(6)} == {b"OBJECT %d" % n for n in range(6)}


def test_operators_start_stop_check_and_delete(
    stack: Stack, aistore: Any, by_hand: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(airflow.connections(stack)["AISTORE_DEFAULT"]))
    name, run = unique("upper"), SimpleNamespace(dag_id="d", run_id="r")
    context = cast("Context", {"dag_run": run})
    check = AISInitEtlOperator(task_id="check", etl=EtlSpec.existing(name))
    start, stop = (kind(task_id="t", etl_name=name) for kind in (AISStartEtlOperator, AISStopEtlOperator))
    for operator in (check, start, stop):
        with pytest.raises(AirflowFailException, match=rf"there is no ETL {name}|ETL {name} cannot be stopped"):
            operator.execute(context)
    by_hand(name)
    started = instance(aistore, name)
    assert check.execute(context) == [name]
    assert start.execute(context) is False
    assert instance(aistore, name) == started
    stop.execute(context)
    with pytest.raises(AirflowException, match="it is stopped") as stopped:
        check.execute(context)
    assert not isinstance(stopped.value, AirflowFailException)  # Airflow retries it
    assert start.execute(context) is True
    ours = small_spec("wrap", communication="hpush")
    both = ours >> EtlSpec.existing(name)
    assert AISInitEtlOperator(task_id="both", etl=both).execute(context) == [ours.name, name]
    assert existing.variables(existing.details(aistore, ours.name)["init_msg"])[KEEPER] == "d/r"
    assert ours.name in etls.idle_seconds(aistore)
    assert AISDeleteEtlOperator(task_id="delete", etl=both).execute(context) is True
    assert (stage_of(aistore, ours.name), stage_of(aistore, name)) == ("", "Running")
    assert AISDeleteEtlOperator(task_id="all").execute(context) is True
    assert stage_of(aistore, name) == "Running"


# ---- AIStore's specification files


def documented(tmp_path: Path, name: str) -> EtlSpec:
    """Return the documented file with an image that the stack can run."""
    command = json.dumps(transformer_command("tests.transformers:upper"))
    text = DOCUMENTED.replace("hello-world-etl", name).replace(
        "aistorage/transformer_hello_world:latest", f"{TRANSFORMER_IMAGE}\n  command: {command}"
    )
    path = tmp_path / "etl_spec.yaml"
    path.write_text(text.replace("init_timeout: 5m", "init_timeout: 30s"))
    return EtlSpec.from_yaml(path)


def test_a_documented_file_is_an_etl_of_ours(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, tmp_path: Path
) -> None:
    name = unique("hello")
    spec = documented(tmp_path, name)
    run = job(aistore, clickhouse, source, spec)
    found = drive(run)
    assert (found.done, found.failed) == (6, 1), found
    assert read(aistore, run.destination, "a/1.txt") == b"OBJECT 1"
    assert not stage_of(aistore, name)
    with pytest.raises(AIStoreInputError, match="there is no ETL"):
        job(aistore, clickhouse, source, EtlSpec.existing(name))


def test_the_same_file_started_by_hand_is_not_replaced(
    aistore: Any, source: Bucket, by_hand: Start, tmp_path: Path
) -> None:
    name = unique("hello")
    by_hand(name)
    started = instance(aistore, name)
    with pytest.raises(AIStoreInputError, match=rf"Storeside did not start it: use EtlSpec\.existing\('{name}'\)"):
        etls.ensure(aistore, documented(tmp_path, name))
    assert instance(aistore, name) == started


def test_an_etl_of_ours_may_be_used_as_an_existing_one(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive
) -> None:
    spec = replace(small_spec("upper"), etl_name=unique("named"))
    etls.ensure(aistore, spec)
    assert drive(job(aistore, clickhouse, source, EtlSpec.existing(spec.name))).done == 6
    assert stage_of(aistore, spec.name) == "Running"
    assert etls.release(aistore, [spec.name])
