"""Objects that a transformer leaves out, on a real cluster: listed with their reasons, and no failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.transform.bucket_job import BucketJob
from storeside.transform.inspection import Inspection
from storeside.transform.single import get_object, transform_object
from storeside.transform.state import Options, Summary
from tests.shards import files, tar
from tests.support import failures, put, read, sizes, small_spec, unique, until

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]
SHORT = "shorter than 3 bytes"


@dataclass
class Pair:
    """A test's buckets, and the jobs between them."""

    client: Any
    ledger: Ledger
    source: Bucket
    destination: Bucket

    def job(self, run: str, spec: EtlSpec, **options: Any) -> BucketJob:
        return BucketJob(
            self.client, self.ledger, self.source, self.destination, run_id=run, spec=spec, options=Options(**options)
        )

    def put(self, objects: dict[str, bytes]) -> None:
        put(self.client, self.source, objects)

    def outcomes(self, status: str) -> dict[str, str]:
        """Return the objects of a status in the ledger, with their reasons."""
        query = (
            "SELECT object, reason FROM storeside.objects FINAL"
            " WHERE destination = {destination:String} AND status = {status:String}"
        )
        parameters = {"destination": str(self.destination), "status": status}
        return dict(self.ledger.client.query(query, parameters=parameters).result_rows)


@pytest.fixture
def pair(aistore: Any, clickhouse: Any) -> Pair:
    source = Bucket("ais", unique("left-out"))
    source.handle(aistore).create()
    return Pair(aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")))


def sieve(**options: Any) -> EtlSpec:
    return small_spec("sieve", **options)


@pytest.mark.guarantee("left-out")
@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
def test_objects_are_left_out_over_every_channel(pair: Pair, drive: Drive, communication: str) -> None:
    """Each target keeps some results, and others go to another target."""
    short = {f"short-{n}": b"%d" % n for n in range(8)}
    pair.put({"long": b"long", "bad": b"bad", "wish": b"leave me out", **short})
    spec = sieve(communication=communication)
    for run, done in (("first", 1), ("second", 0)):
        summary = drive(pair.job(run, spec, keep_etl=run == "first"))
        assert (summary.listed, summary.done, summary.skipped) == (11, done, 1 - done)
        assert (summary.failed, summary.known_bad) == (done, 1 - done)
        assert (summary.left_out, summary.left_out_reasons) == (9, {SHORT: 8, "it wishes so": 1})
        assert sizes(pair.client, pair.destination) == {"long": 4}
    assert pair.outcomes("left_out") == {"wish": "it wishes so", **dict.fromkeys(short, SHORT)}
    assert failures(pair.ledger.client, "first", pair.destination) == {"bad": "this object is bad"}


@pytest.mark.guarantee("left-out")
def test_an_object_that_is_left_out_loses_its_earlier_result_and_ends_no_job(pair: Pair, drive: Drive) -> None:
    """The job ends at the first failure that AIStore learns of; a left-out object is none."""
    pair.put({f"{n}": b"%d" % n for n in range(6)} | {"later": b"long"})
    every = sieve(communication="hpush", environment={"LEAST": "1"})
    assert drive(pair.job("first", every)).done == 7
    put(pair.client, pair.destination, {"foreign": b"of another program"})
    pair.put({"foreign": b"1"})
    spec = sieve(communication="hpush")
    summary = drive(pair.job("second", spec, continue_on_error=False, keep_etl=True))
    assert (summary.done, summary.failed, summary.left_out) == (1, 0, 7), "the specification has changed"
    assert sizes(pair.client, pair.destination) == {"later": 4, "foreign": 18}
    pair.put({"0": b"now long enough", "later": b"l"})
    summary = drive(pair.job("third", spec))
    assert (summary.done, summary.failed, summary.left_out) == (1, 0, 7), "two objects have changed"
    assert sizes(pair.client, pair.destination) == {"0": 15, "foreign": 18}


@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_an_object_that_one_etl_of_a_chain_leaves_out_has_no_result(
    pair: Pair, drive: Drive, communication: str
) -> None:
    pair.put({f"{n}": b"%d" % n for n in range(6)} | {"long": b"long"})
    stages = [small_spec("upper", communication=communication), sieve(communication=communication)]
    for run, chain in (("last", stages[0] >> stages[1]), ("first", stages[1] >> stages[0])):
        summary = drive(pair.job(run, chain))
        assert (summary.done, summary.failed, summary.left_out_reasons) == (1, 0, {SHORT: 6})
        assert sizes(pair.client, pair.destination) == {"long": 4}


def test_members_that_are_left_out_are_counted_until_they_have_results(pair: Pair, drive: Drive) -> None:
    pair.put({"a.tar": tar([("1.txt", b"1"), ("2.txt", b"two"), ("3.txt", b"bad")]), "b.tar": tar([("1.txt", b"1")])})
    spec = sieve().of_members("*.txt")
    summary = drive(pair.job("first", spec, keep_etl=True))
    assert (summary.done, summary.failed, summary.left_out_reasons) == (2, 1, {SHORT: 2})
    assert pair.outcomes("left_out") == dict.fromkeys(("a.tar/1.txt", "b.tar/1.txt"), SHORT)
    assert files(read(pair.client, pair.destination, "a.tar")) == [("2.txt", b"TWO")]
    assert files(read(pair.client, pair.destination, "b.tar")) == []
    pair.put({"a.tar": tar([("1.txt", b"one"), ("2.txt", b"2")])})
    summary = drive(pair.job("second", spec))
    assert (summary.done, summary.failed, summary.left_out_reasons) == (1, 0, {SHORT: 1})
    assert pair.outcomes("left_out") == dict.fromkeys(("a.tar/2.txt", "b.tar/1.txt"), SHORT)


def test_single_objects_and_inspections(pair: Pair, tmp_path: Path) -> None:
    pair.put({"short": b"1", "long": b"long", "bad": b"bad"})
    spec = sieve(communication="hpush")
    put(pair.client, pair.destination, {"earlier": b"an earlier result"})
    for result in ("new-1", "new-2", "earlier"):
        with pytest.raises(AIStoreInputError, match=f"short cannot be transformed: it was left out: {SHORT}"):
            transform_object(pair.client, pair.source, "short", pair.destination, result, spec, keeper="run")
        assert transform_object(pair.client, pair.source, "long", pair.destination, "ok", spec, keeper="run") == 4
    with pytest.raises(AIStoreInputError, match=f"short cannot be read: it was left out: {SHORT}"):
        get_object(pair.client, pair.source, "short", tmp_path / "short", spec, keeper="run")
    assert list(tmp_path.iterdir()) == []
    inspection = Inspection(pair.client, pair.source, spec)
    job = inspection.submit()
    follower = jobs.Follower(pair.client, job, 60)
    until(lambda: follower.poll().finished, 30, "end of the inspection")
    assert inspection.failures(job).keys() == {"bad"}
