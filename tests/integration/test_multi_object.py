"""Multi-object jobs of a real cluster: they are over when all is stored, which AIStore reports seconds later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from tests.support import unique, until

COUNT = 200
ROUNDS = int(os.environ.get("STORESIDE_TEST_ROUNDS", "4"))


@pytest.fixture(autouse=True)
def not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the counters of a job end the wait, not AIStore's report that it is idle."""
    monkeypatch.setattr(jobs, "IDLE_POLLS", 10**9)


@pytest.fixture(autouse=True)
def no_rebalance(aistore: Any) -> None:
    """Targets refuse these jobs during a rebalance, which earlier tests of restarts cause."""
    jobs.wait_for_rebalance(aistore)


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    return {f"o{n:03}": n * 37 % 19 * 15_000 for n in range(COUNT)}


@pytest.fixture(scope="module", params=["s3", "ais"])
def source(request: pytest.FixtureRequest, aistore: Any, s3_client: Any, sizes: dict[str, int]) -> Iterator[Bucket]:
    name = unique("many")
    bucket = Bucket(request.param, name)
    if bucket.is_remote:
        s3_client.create_bucket(Bucket=name)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda o: s3_client.put_object(Bucket=name, Key=o, Body=os.urandom(sizes[o])), sizes))
        yield bucket
        return
    made = aistore.bucket(name).create()
    for o, size in sizes.items():
        made.object(o).get_writer().put_content(os.urandom(size))
    yield bucket
    made.delete()


def test_a_copy_is_over_when_all_objects_are_stored(aistore: Any, source: Bucket, sizes: dict[str, int]) -> None:
    """The listing at the end is whole, in each round."""
    for _ in range(ROUNDS):
        to = aistore.bucket(unique("copies")).create()
        try:
            job = source.handle(aistore).objects(obj_names=list(sizes)).copy(to)
            job_id = job[0] if isinstance(job, list) else job
            follower = jobs.Follower(aistore, job_id, 60)
            progress = until(lambda: (seen := follower.poll()).finished and seen, 240, "end of the job", 0.01)  # noqa: B023
            stored = {entry.name: int(entry.size or 0) for entry in to.list_all_objects(props="name,size")}
            assert stored == sizes
            assert progress.error == ""
            pair = (source, Bucket("ais", to.name))
            assert jobs.running_between(aistore, *pair) is None
            jobs.end_idle(aistore, *pair)
            assert not [entry for entry in aistore.cluster().list_running_jobs() if job_id in entry]
        finally:
            to.delete()


def test_a_copy_of_absent_objects_is_over_as_well(aistore: Any, source: Bucket, sizes: dict[str, int]) -> None:
    to = aistore.bucket(unique("copies")).create()
    try:
        job = source.handle(aistore).objects(obj_names=["absent", *list(sizes)[:3]]).copy(to)
        follower = jobs.Follower(aistore, job[0] if isinstance(job, list) else job, 60)
        until(lambda: follower.poll().finished, 240, "end of the job", 0.01)
        assert {entry.name for entry in to.list_all_objects()} == set(list(sizes)[:3])
    finally:
        to.delete()
