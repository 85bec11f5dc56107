"""Copies through the worker and prefetches, between real servers: S3, AIStore, and OCI's double."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.jobs import Follower
from storeside.aistore.stored_objects import list_aistore
from storeside.copying.claims import Claims
from storeside.copying.errors import CopyCancelled, CopyInputError, CopyTransientError, DeniedError
from storeside.copying.job import CopyJob
from storeside.copying.multipart import MIB, Profile, Settings
from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.prefetch import Prefetch
from storeside.copying.s3 import AIStoreStore, S3Store, client_config
from storeside.copying.store import Head, Store
from storeside.ledger.copies import CopyLedger
from storeside.measure.tuner import scratch
from storeside.sql.migrate import migrate
from storeside.stack import authn
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import USER
from storeside.stack.settings import CHECKOUT, HOST, Stack
from storeside.transform.state import Summary
from tests.link import Link, linked
from tests.oci_double import NAMESPACE, Double, digest, served
from tests.support import read, unique, until

PROFILE = Profile.of(Settings(threshold=6 * MIB, part_size=5 * MIB, concurrency=4))
NOTHING = Head(0, "", "")
NAMES = ("plain", "a b+c&d=e", "a#b%20c", "quote'\"\\", "ü/ö")


class Copying:
    """One test's own buckets at every endpoint, and copies between them."""

    def __init__(self, stack: Stack, clickhouse: Any, oci: tuple[Double, int, dict[str, str]]) -> None:
        self.stack, self.clickhouse, (self.double, self.oci_port, self.oci_config) = stack, clickhouse, oci
        self.name = unique("copying")

    def s3(self, suffix: str, port: int = 0) -> S3Store:
        import boto3

        access, secret = s3.keys(self.stack)
        client = boto3.client(
            "s3", endpoint_url=f"http://{HOST}:{port or self.stack.ports['s3']}", region_name=s3.REGION,
            aws_access_key_id=access, aws_secret_access_key=secret, config=client_config(16),
        )  # fmt: skip
        if not port:
            client.create_bucket(Bucket=f"{self.name}-{suffix}")
        return S3Store(client, f"{self.name}-{suffix}")

    def ais(self, suffix: str) -> AIStoreStore:
        store = AIStoreStore(authn.cluster(self.stack), f"{self.name}-{suffix}", 16)
        store.check()
        return store

    def oci(self, suffix: str, port: int = 0) -> OCIStore:
        self.double.buckets.setdefault(f"{self.name}-{suffix}", {})
        client = oci_client(self.oci_config, 16, f"http://{HOST}:{port or self.oci_port}")
        return OCIStore(client, NAMESPACE, f"{self.name}-{suffix}")

    def store(self, kind: str, suffix: str) -> Store:
        made: Store = getattr(self, kind)(suffix)
        return made

    def job(self, source: Store, destination: Store, **options: Any) -> CopyJob:
        options = {"run_id": unique("run"), "profile": PROFILE, **options}
        return CopyJob(source, destination, CopyLedger(self.clickhouse), **options)

    def copy(self, source: Store, destination: Store, **options: Any) -> Summary:
        return self.job(source, destination, **options).run()

    def ledger(self, source: Store, destination: Store) -> dict[str, tuple[str, str]]:
        rows = self.clickhouse.query(
            "SELECT object, toString(status), reason FROM storeside.objects FINAL"
            " WHERE source = {source:String} AND destination = {destination:String}",
            parameters={"source": source.name, "destination": destination.name},
        ).result_rows
        return {name: (status, reason) for name, status, reason in rows}

    def left(self) -> int:
        """Return the number of listing rows and open claims of this test's buckets."""
        (open_claims,) = self.clickhouse.query(
            "SELECT count() FROM storeside.uploads FINAL WHERE state = 'open' AND destination LIKE {like:String}",
            parameters={"like": f"%{self.name}%"},
        ).first_row
        return int(open_claims)


@pytest.fixture(scope="module")
def oci() -> Iterator[tuple[Double, int, dict[str, str]]]:
    with served("none") as found:
        yield found


@pytest.fixture
def copying(stack: Stack, clickhouse: Any, oci: Any) -> Copying:
    return Copying(stack, clickhouse, oci)


def contents(store: Store) -> dict[str, bytes]:
    return {o.name: store.fetch(o.name, o.size)[1] for o in store.list()}


def test_a_copy_does_not_overwrite_that_of_another_source_bucket(copying: Copying) -> None:
    a, b, destination = copying.s3("a"), copying.s3("b"), copying.s3("c")
    for source, content in ((a, b"one"), (b, b"two")):
        source.put("same", b"same", NOTHING)
        source.put("x", content, NOTHING)
    assert copying.copy(a, destination).done == 2
    found = copying.copy(b, destination)
    assert (found.done, found.failed, found.skipped) == (0, 1, 1), found
    assert contents(destination) == {"same": b"same", "x": b"one"}
    assert f"which is the result of {a.name}/x" in copying.ledger(b, destination)["x"][1]
    assert copying.copy(b, destination, prepend="b/").done == 2
    destination.delete("x")
    assert copying.copy(b, destination).done == 1
    assert contents(destination)["x"] == b"two"
    assert copying.copy(a, destination).failed == 1


@pytest.mark.parametrize(
    ("source", "destination"),
    [("oci", "ais"), ("ais", "oci"), ("oci", "s3"), ("s3", "s3")],
)
def test_every_version_is_copied_once(copying: Copying, source: str, destination: str) -> None:
    a, b = copying.store(source, "a"), copying.store(destination, "b")
    bodies = {name: os.urandom(20_000 + n) for n, name in enumerate(NAMES)} | {
        "empty": b"",
        "large": os.urandom(11 * MIB),
    }
    for name, body in bodies.items():
        a.put(name, body, NOTHING)
    a.put("elsewhere/x", b"x", NOTHING)
    summary = copying.copy(a, b, prepend="in/")
    assert (summary.listed, summary.done, summary.failed, summary.skipped) == (8, 8, 0, 0)
    assert summary.bytes_in == sum(map(len, bodies.values())) + 1
    assert contents(b) == {f"in/{name}": body for name, body in {**bodies, "elsewhere/x": b"x"}.items()}
    again = copying.copy(a, b, prepend="in/")
    assert (again.done, again.skipped, again.bytes_in) == (0, 8, 0)
    a.put("plain", b"new", NOTHING)
    changed = copying.copy(a, b, prepend="in/")
    assert (changed.done, changed.skipped) == (1, 7)
    assert b.fetch("in/plain", 3)[1] == b"new"
    b.delete("in/plain")
    assert copying.copy(a, b, prepend="in/").done == 1
    assert copying.left() == 0


def test_objects_that_are_there_are_not_copied_again_without_a_ledger(copying: Copying) -> None:
    a, b = copying.s3("a"), copying.oci("b")
    for n in range(5):
        a.put(f"{n}", b"%d" % n, NOTHING)
    copying.copy(a, b)
    copying.clickhouse.command(
        f"DELETE FROM storeside.objects WHERE source = '{a.name}' AND destination = '{b.name}'",
        settings={"lightweight_deletes_sync": 2},
    )
    b.put("3", b"?", NOTHING)
    copying.double.requests.clear()
    summary = copying.copy(a, b)
    assert (summary.done, summary.skipped, summary.bytes_in) == (1, 4, 1)
    assert [path.rpartition("/")[2] for method, path in copying.double.requests if method == "PUT"] == ["3"]
    assert contents(b)["3"] == b"3"
    assert {status for status, _ in copying.ledger(a, b).values()} == {"done"}


def test_bad_objects_fail_alone_with_their_reasons(copying: Copying) -> None:
    a, b = copying.oci("a"), copying.ais("b")
    for name in ("good", "a//b", "../up", "changing"):
        a.put(name, os.urandom(100), NOTHING)
    a.put("large", os.urandom(7 * MIB), NOTHING)

    def overwrite(request: Any) -> None:
        if request.method in ("GET", "HEAD") and request.path.endswith("/o/changing"):
            a_bucket = copying.double.buckets[a.bucket]
            a_bucket["changing"] = type(a_bucket["changing"])(b"other", digest(b"other"))

    copying.double.before = overwrite
    try:
        summary = copying.copy(a, b)
    finally:
        copying.double.before = lambda request: None
    assert (summary.done, summary.failed) == (2, 3)
    found = copying.ledger(a, b)
    assert {name for name, (status, _) in found.items() if status == "done"} == {"good", "large"}
    assert "was overwritten" in found["changing"][1]
    assert "empty component" in found["a//b"][1]
    assert "'..' component" in found["../up"][1]
    assert sorted(contents(b)) == ["good", "large"]
    again = copying.copy(a, b)  # the overwritten object is another version; the names stay the same
    assert (again.done, again.skipped, again.known_bad) == (1, 2, 2)
    assert contents(b)["changing"] == b"other"


def test_a_copy_with_a_prefix_does_not_overwrite_the_copy_of_another_object(copying: Copying) -> None:
    source, destination = copying.s3("in"), copying.s3("out")
    source.put("x/a", b"below x", NOTHING)
    source.put("a", b"plain", NOTHING)
    assert copying.copy(source, destination, prefix="x/").done == 1
    found = copying.copy(source, destination, prefix="a", prepend="x/")
    assert (found.done, found.failed) == (0, 1), found
    assert found.examples[0][1].startswith("its result would be named x/a, which is the result of x/a: ")
    assert contents(destination) == {"x/a": b"below x"}

    source.delete("x/a")
    assert copying.copy(source, destination, prefix="a", prepend="x/").done == 1
    assert contents(destination) == {"x/a": b"plain"}


def test_what_cannot_be_reached_for_now_is_left_for_another_try(copying: Copying) -> None:
    from oci.retry import NoneRetryStrategy

    a, b = copying.oci("a"), copying.s3("b")
    for n in range(3):
        a.put(f"{n}", b"x", NOTHING)
    copying.double.faults += [("GET", f"{a.bucket}/o/1$", 503, "ServiceUnavailable")] * 40
    run = unique("run")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("storeside.copying.mover.ATTEMPTS", 1)
            a.client.retry_strategy = NoneRetryStrategy()
            with pytest.raises(
                CopyTransientError, match=r"1 object could not be copied for now, such as '1'.*2 others were copied"
            ):
                copying.copy(a, b, run_id=run)
    finally:
        copying.double.faults.clear()
    assert sorted(contents(b)) == ["0", "2"]
    summary = copying.copy(a, b, run_id=run)
    assert (summary.done, summary.skipped, summary.failed, summary.bytes_in) == (1, 2, 0, 1)
    assert sorted(contents(b)) == ["0", "1", "2"]
    cleared = copying.copy(a, b, run_id=run)
    assert (cleared.done, cleared.skipped, cleared.failed, cleared.bytes_in) == (0, 3, 0, 0)


def test_what_vanishes_at_the_destination_is_not_told_as_done(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = copying.s3("a"), copying.oci("b")
    for n in range(3):
        a.put(f"{n}", b"x", NOTHING)
    job = copying.job(a, b)
    list_destination = job._list_destination

    def delete_and_list(side: str) -> None:
        if side == "after":
            b.delete("1")
        list_destination(side)

    monkeypatch.setattr(job, "_list_destination", delete_and_list)
    summary = job.run()
    assert (summary.done, summary.failed) == (2, 1)
    assert "does not list the written version" in copying.ledger(a, b)["1"][1]


def test_a_permission_that_was_missing_once_is_no_mark_for_ever(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = copying.s3("a"), copying.oci("b")
    for n in range(3):
        a.put(f"{n}", b"x", NOTHING)
    fetch = a.fetch

    def denied(key: str, size: int) -> tuple[Head, bytes]:
        if key == "1":
            raise DeniedError("give it s3:GetObject")
        return fetch(key, size)

    with monkeypatch.context() as patch:
        patch.setattr(a, "fetch", denied)
        summary = copying.copy(a, b)
    assert (summary.done, summary.failed) == (2, 1)
    assert copying.ledger(a, b)["1"] == ("failed", "give it s3:GetObject")
    again = copying.copy(a, b)
    assert (again.done, again.skipped, again.known_bad, again.failed) == (1, 2, 0, 0)
    assert sorted(contents(b)) == ["0", "1", "2"]


def test_a_missing_bucket_ends_it_before_anything_is_read(copying: Copying) -> None:
    a = copying.s3("a")
    with pytest.raises(CopyInputError, match="has no bucket none-such"):
        copying.copy(a, OCIStore(copying.oci("x").client, NAMESPACE, "none-such"))
    with pytest.raises(CopyInputError, match="NoSuchBucket"):
        copying.copy(S3Store(a.client, "none-such"), copying.oci("x"))


# --- killed in the middle

SCRIPT = """
import sys, json
sys.path.insert(0, {checkout!r})
import boto3, clickhouse_connect
from storeside.copying.job import CopyJob
from storeside.ledger.copies import CopyLedger
from storeside.copying.multipart import Profile, Settings
from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.s3 import S3Store, client_config
g = json.loads(sys.stdin.read())
a = S3Store(boto3.client("s3", config=client_config(8), **g["s3"]), g["source"])
b = OCIStore(oci_client(g["oci"], 8, g["endpoint"]), g["namespace"], g["destination"])
ledger = CopyLedger(clickhouse_connect.get_client(**g["clickhouse"]))
CopyJob(a, b, ledger, run_id=g["run"], profile=Profile.of(Settings(2_000_000, 1_000_000, 2))).run()
"""


def test_a_killed_worker_leaves_no_parts_after_the_next_start(copying: Copying) -> None:
    import json

    a, b = copying.s3("a"), copying.oci("b")
    a.put("0-small", b"small", NOTHING)
    a.put("1-large", large := os.urandom(6_000_000), NOTHING)
    access, secret = s3.keys(copying.stack)
    with linked(copying.oci_port, rtt=0.01, rate=1e6) as link:
        given = {
            "s3": {"endpoint_url": copying.stack.url("s3"), "region_name": s3.REGION, "aws_access_key_id": access,
                   "aws_secret_access_key": secret},
            "source": a.bucket, "oci": copying.oci_config, "endpoint": f"http://{HOST}:{link.port}",
            "namespace": NAMESPACE, "destination": b.bucket, "run": "killed",
            "clickhouse": {"host": HOST, "port": copying.stack.ports["clickhouse_http"], "username": USER,
                           "password": copying.stack.secrets["clickhouse"]},
        }  # fmt: skip
        worker = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(checkout=str(CHECKOUT))], stdin=subprocess.PIPE, text=True
        )
        assert worker.stdin
        worker.stdin.write(json.dumps(given))
        worker.stdin.close()
        begun = lambda: [u for u in copying.double.begun.values() if u.bucket == b.bucket and u.parts]  # noqa: E731
        until(begun, 60, "part of the upload")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert len(begun()) == 1
    assert copying.left() == 1
    # another client's upload of another object stays
    other = b.begin("2-other", NOTHING)
    # another run, while the first may be alive: its upload stays
    assert Claims(copying.clickhouse, b, "another").sweep() == 0
    assert len(begun()) == 1
    # the same run again knows that its earlier attempt is dead
    copying.double.requests.clear()
    summary = copying.copy(a, b, run_id="killed")
    assert summary.failed == 0
    assert not [path for method, path in copying.double.requests if method == "PUT" and path.endswith("/o/0-small")]
    assert [id for id, u in copying.double.begun.items() if u.bucket == b.bucket] == [other]
    assert contents(b) == {"0-small": b"small", "1-large": large}
    assert copying.left() == 0


@pytest.mark.parametrize("kind", ["s3", "ais", "oci"])
def test_uploads_are_found_and_aborted_once(copying: Copying, kind: str) -> None:
    store = copying.store(kind, "a")
    first, second, other = (store.begin(key, NOTHING) for key in ("o", "o", "other"))
    store.put_part("o", first, 1, b"x")
    assert {upload.id for upload in store.uploads("o")} == {first, second}
    assert abs(next(store.uploads("o")).begun.timestamp() - time.time()) < 60
    for _ in range(2):
        store.abort("o", first)
        store.delete("never there")
    assert {upload.id for upload in store.uploads("o")} == {second}
    assert {upload.id for upload in store.uploads("other")} == {other}


def test_a_crash_at_the_end_copies_nothing_again(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = copying.s3("a"), copying.ais("b")
    for n in range(3):
        a.put(f"{n}", b"x", NOTHING)
    job = copying.job(a, b)
    monkeypatch.setattr(job, "_settle", _killed)
    with pytest.raises(RuntimeError, match="killed"):
        job.run()
    b.delete("1")
    summary = copying.copy(a, b)
    assert (summary.done, summary.skipped) == (1, 2)
    assert sorted(contents(b)) == ["0", "1", "2"]


def _killed(*_: Any) -> None:
    raise RuntimeError("killed")


def test_a_killed_measurement_is_cleaned_up_by_the_next(copying: Copying) -> None:
    for kind in ("s3", "ais"):
        store = copying.store(kind, "a")
        with scratch(store, "run/tune") as key:
            pass
        store.put(key, b"left", NOTHING)
        store.put_part(key, store.begin(key, NOTHING), 1, b"left")
        with scratch(store, "run/tune"):
            assert list(store.list()) == list(store.uploads(key)) == []


def test_uploads_of_a_run_that_died_long_ago_are_swept(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    b = copying.s3("b")
    dead = Claims(copying.clickhouse, b, "dead")
    migrate(copying.clickhouse)
    dead.open(["o"])
    b.put_part("o", b.begin("o", NOTHING), 1, b"x")
    assert Claims(copying.clickhouse, b, "another").sweep() == 0
    monkeypatch.setattr("storeside.copying.claims.DEAD_SECONDS", 0.0)
    assert Claims(copying.clickhouse, b, "another").sweep() == 1
    assert list(b.uploads("o")) == []
    assert Claims(copying.clickhouse, b, "another").sweep() == 0
    dead.open(["p", "q"])
    dead.close(left={"q"})  # its abort failed
    assert copying.left() == 1


def test_a_stopped_copy_aborts_its_uploads(copying: Copying) -> None:
    a = copying.s3("a")
    for n in range(4):
        a.put(f"{n}", os.urandom(6 * MIB), NOTHING)
    with linked(copying.oci_port, rate=4e6) as link:
        b = copying.oci("b", link.port)
        job = copying.job(a, b, profile=Profile.of(Settings(2 * MIB, MIB, 4)))
        _when_carried(link, 3 * MIB, job.stop.set)
        with pytest.raises(CopyCancelled, match="was stopped"):
            job.run()
    assert not [u for u in copying.double.begun.values() if u.bucket == b.bucket]
    assert copying.left() == 0


def _when_carried(link: Link, size: int, act: Callable[[], None]) -> None:
    import threading

    def watch() -> None:
        until(lambda: link.carried > size, 60, "traffic")
        act()

    threading.Thread(target=watch, daemon=True).start()


# --- prefetch


def test_a_remote_bucket_is_fetched_into_the_cluster(copying: Copying, aistore: Any, s3_client: Any) -> None:
    store = copying.s3("remote")
    for n in range(20):
        store.put(f"in/{n:02}", os.urandom(1000 + n), NOTHING)
    store.put("out/x", b"x", NOTHING)
    bucket = Bucket("s3", store.bucket)
    prefetch = Prefetch(aistore, bucket, "in/")
    assert prefetch.missing().objects == 20
    read(aistore, bucket, "in/03")
    missing = prefetch.missing()
    assert (missing.objects, missing.bytes) == (19, sum(range(1000, 1020)) - 1003)
    follower = Follower(aistore, prefetch.submit(latest=False, workers=0, blob_threshold=0), 30)
    progress = until(lambda: (seen := follower.poll()).finished and seen, 120, "end of the job")
    assert progress.error == ""
    assert prefetch.missing(reasons=True).objects == 0
    assert Prefetch(aistore, bucket).missing().objects == 1
    with pytest.raises(ValueError, match="name a remote bucket"):
        Prefetch(aistore, Bucket("ais", "b"))


def test_stores_are_what_the_cluster_lists(copying: Copying, aistore: Any, tmp_path: Path) -> None:
    store = copying.ais("x")
    store.put("a/b", b"content", NOTHING)
    assert [(o.name, o.size) for o in list_aistore(aistore, Bucket("ais", store.bucket))] == [("a/b", 7)]
    assert store.head("a/b").size == 7
