"""ETLs whose tasks could not stop them, or died: the last task that ends stops them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aistore.sdk.const import HEADER_BUCKET_PROPS

from storeside.aistore import etl as etls
from storeside.aistore import existing, jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.lock import age_of
from storeside.aistore.spec import KEEPER, EtlSpec
from storeside.ledger.objects import Ledger
from storeside.transform.bucket_job import BucketJob
from storeside.transform.single import transform_object
from storeside.transform.state import Options, Summary
from tests.support import shared_etls, small_spec, unique, until

pytestmark = pytest.mark.usefixtures("no_etl_is_left")


@pytest.fixture
def alone(aistore: Any) -> Iterator[None]:
    """Let no transform of an earlier test run."""
    until(lambda: not jobs.running_transforms(aistore), 30, "end of the transforms")
    yield
    assert records(aistore) == []


def records(aistore: Any) -> list[str]:
    """Return the records of ETLs, except for those that other tests keep."""
    names = [bucket.name for bucket in aistore.cluster().list_buckets()]
    names = [name for name in names if name.startswith((etls.USED, etls.LEFT, etls.KEPT))]
    return [name for name in names if not name.endswith(tuple(shared_etls()))]


def left(aistore: Any) -> set[str]:
    return {etl.id for etl in aistore.cluster().list_etls()} - shared_etls()


def overlapping(number: int) -> EtlSpec:
    return small_spec("upper", environment={"SUFFIX": f"-{number}"})


@pytest.mark.usefixtures("alone")
def test_the_last_of_overlapping_transforms_stops_the_etls_of_all(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Callable[[BucketJob], Summary]
) -> None:
    """Ten specifications. Two tasks are killed after they started their ETLs, and not tried again."""
    slow = small_spec("slow", environment={"SECONDS": "0.5"})
    running = BucketJob(
        aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")), run_id=unique("run"), spec=slow,
        options=Options(),
    )  # fmt: skip
    *ended, one, two, kept, last = [overlapping(n) for n in range(9)]
    for spec in (*ended, one, two):
        etls.ensure(aistore, spec, keeps=False)
    etls.ensure(aistore, kept)
    state = running.submit(running.begin())
    for spec in (*ended, kept):  # these end while the transform runs
        assert not etls.release(aistore, spec.names)
    etls.ensure(aistore, kept)  # and a task that keeps it uses this one again
    assert left(aistore) == {name for spec in (*ended, one, two, kept, slow) for name in spec.names}
    while state.phase != "done":
        if state.job_id:
            follower = running.follower(state, 60)
            until(lambda: follower.poll().finished, 60, "end of the job")  # noqa: B023 - called in this turn
            state = running.advance(state)
        state = running.submit(state)
    running.finish(state)
    assert left(aistore) == {*one.names, *two.names, *kept.names}, "tasks use two, and another keeps the third"
    assert sorted(records(aistore)) == sorted(etls.USED + spec.name for spec in (one, two))
    # the tasks of two died, and another transform ends a day later
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(etls, "_ABANDONED_SECONDS", 0.0)
        job = BucketJob(
            aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")), run_id=unique("run"), spec=last,
            options=Options(),
        )  # fmt: skip
        drive(job)
    assert left(aistore) == set(kept.names)
    assert etls.release(aistore, kept.names)
    print(f"\nBENCH etl.left_running {len(left(aistore))} ETLs of {len(ended) + 5}")
    assert left(aistore) == set()


@pytest.mark.usefixtures("alone")
def test_a_task_that_waits_too_long_for_the_lock_leaves_its_etl_to_the_task_that_holds_it(
    aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = overlapping(9)
    etls.ensure(aistore, spec, keeps=False)
    monkeypatch.setattr(etls, "_END_SECONDS", 0.2)
    with etls.kept(aistore, ["other"]):
        assert not etls.release(aistore, spec.names)
    assert etls.release(aistore, ["none-of-them"])
    assert left(aistore) == set()


@pytest.mark.usefixtures("alone")
def test_a_kept_etl_is_stopped_when_it_was_not_used_for_long(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Callable[[BucketJob], Summary],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def transform(number: int, *, keep_etl: bool) -> str:
        job = BucketJob(
            aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")), run_id=unique("run"),
            spec=overlapping(number), options=Options(keep_etl=keep_etl),
        )  # fmt: skip
        assert drive(job).done
        return job.scope.run_id

    keeper = transform(7, keep_etl=True)
    ((name,), record) = overlapping(7).names, etls.KEPT + overlapping(7).name
    assert records(aistore) == [record]
    assert existing.variables(existing.details(aistore, name)["init_msg"])[KEEPER] == keeper
    idle = {one: seconds for one, seconds in etls.idle_seconds(aistore).items() if one not in shared_etls()}
    assert idle == {name: pytest.approx(age_of(aistore, record), abs=60)}
    before = aistore.bucket(record).head()[HEADER_BUCKET_PROPS]
    etls.renew(aistore, [name, "none-of-them"])
    assert records(aistore) == [record]
    assert aistore.bucket(record).head()[HEADER_BUCKET_PROPS] != before
    transform(8, keep_etl=False)
    assert left(aistore) == {name}
    monkeypatch.setattr(etls, "KEPT_SECONDS", -1.0)
    transform(8, keep_etl=False)
    assert left(aistore) == set()


@pytest.mark.usefixtures("alone")
def test_an_etl_that_single_objects_keep_is_stopped_when_it_was_not_used_for_long(
    aistore: Any, source: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = overlapping(7).over("hpush")
    (name,), kept = spec.names, [etls.KEPT + spec.name]
    etls.ensure(aistore, spec, keeps=False)  # its task dies
    assert transform_object(aistore, source, "a/1.txt", Bucket("ais", unique("out")), "b", spec, keeper="d/r")
    assert records(aistore) == kept
    etls.stop(aistore, name)
    assert records(aistore) == [], "no task deletes an ETL that a user stopped"
    assert etls.start(aistore, name)
    assert records(aistore) == kept
    assert etls.release(aistore, ["none-of-them"])
    assert left(aistore) == {name}
    monkeypatch.setattr(etls, "KEPT_SECONDS", -1.0)
    assert etls.release(aistore, ["none-of-them"])
    assert left(aistore) == set()
