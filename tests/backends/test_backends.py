"""Bucket jobs from and to buckets of GCS, Azure and OCI, through AIStore's own backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.names import SCRATCH
from storeside.copying.oci import OCIStore, oci_client
from storeside.copying.store import Head
from storeside.ledger.objects import Ledger
from storeside.measure.through import Through, benchmark
from storeside.stack import authn, demo
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import HOST, Stack
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Options, Summary
from tests import oci_double
from tests.backends.emulators import Emulators
from tests.backends.remote import Remote, remote
from tests.support import failures, put, read, sizes, small_spec, unique
from tests.transfers import request_of

pytestmark = pytest.mark.timeout(180)

SCHEMES = ("gs", "az", "oci")
# The ETL stays for the next test; AIStore requests the current version of an object that it has cached.
KEPT: dict[str, Any] = {"keep_etl": True, "latest": True}
Drive = Callable[[BucketJob], Summary]


@pytest.fixture(params=SCHEMES)
def recordings(request: pytest.FixtureRequest, emulators: Emulators) -> Remote:
    return remote(emulators, request.param, "recordings")


@pytest.fixture
def results(recordings: Remote, emulators: Emulators) -> Remote:
    """Another bucket of the same cloud."""
    return remote(emulators, Bucket.parse(recordings.uri).scheme, "results")


@pytest.fixture
def run(aistore: Any, clickhouse: Any, drive: Drive) -> Callable[..., Summary]:
    """Run a bucket job between two URIs, in a run of its own unless `run_id` names one."""

    def run(source: str, to: str, prefix: str, spec: Any = None, run_id: str = "", **options: Any) -> Summary:
        return drive(
            BucketJob(
                aistore, Ledger(clickhouse), Bucket.parse(source), Bucket.parse(to),
                run_id=run_id or unique("run"), spec=spec, options=Options(prefix=prefix, **options),
            )
        )  # fmt: skip

    return run


def counts(summary: Summary) -> tuple[int, int, int]:
    return summary.listed, summary.done, summary.failed


def test_a_copy_into_the_cluster_has_each_version_once(
    recordings: Remote, aistore: Any, run: Callable[..., Summary]
) -> None:
    prefix, to = f"{unique('in')}/", f"ais://{unique('ours')}"
    bodies = {f"{prefix}{name}": name.encode() * 7 for name in ("plain", "a b+c", "d/ü&=1", "x" * 90)}
    for name, body in bodies.items():
        recordings.put(name, body)
    assert counts(run(recordings.uri, to, prefix)) == (4, 4, 0)
    ours = Bucket.parse(to)
    assert {name: read(aistore, ours, name) for name in bodies} == bodies
    assert counts(run(recordings.uri, to, prefix)) == (4, 0, 0)
    recordings.put(f"{prefix}plain", b"PLAIN" * 7)  # of the same size
    assert counts(run(recordings.uri, to, prefix)) == (4, 1, 0)
    assert read(aistore, ours, f"{prefix}plain") == b"PLAIN" * 7
    ours.handle(aistore).object(f"{prefix}plain").delete()  # a copy that is lost is made again
    assert counts(run(recordings.uri, to, prefix)) == (4, 1, 0)


def test_copies_of_a_run_whose_ledger_is_lost_are_accepted(
    recordings: Remote, aistore: Any, clickhouse: Any, run: Callable[..., Summary]
) -> None:
    prefix, to = f"{unique('in')}/", f"ais://{unique('ours')}"
    recordings.put(f"{prefix}a", b"first")
    assert counts(run(recordings.uri, to, prefix)) == (1, 1, 0)
    clickhouse.command(
        "DELETE FROM storeside.objects WHERE destination = {to:String}", parameters={"to": to},
        settings={"lightweight_deletes_sync": 2},
    )  # fmt: skip
    assert counts(run(recordings.uri, to, prefix)) == (1, 1, 0)
    assert sizes(aistore, Bucket.parse(to)) == {f"{prefix}a": 5}


def test_a_transform_gives_the_reason_of_each_bad_object(
    recordings: Remote, aistore: Any, clickhouse: Any, run: Callable[..., Summary]
) -> None:
    prefix, to, run_id = f"{unique('in')}/", f"ais://{unique('ours')}", unique("run")
    for name, body in {"a.txt": b"good", "d/b.txt": b"more", "bad.txt": b"bad"}.items():
        recordings.put(f"{prefix}{name}", body)
    spec = small_spec("upper")
    summary = run(recordings.uri, to, prefix, spec, run_id, **KEPT)
    assert counts(summary) == (3, 2, 1), summary.examples
    assert {name: read(aistore, Bucket.parse(to), name) for name in sizes(aistore, Bucket.parse(to))} == {
        f"{prefix}a.txt": b"GOOD", f"{prefix}d/b.txt": b"MORE",
    }  # fmt: skip
    assert failures(clickhouse, run_id, to) == {f"{prefix}bad.txt": "this object is bad"}
    recordings.put(f"{prefix}bad.txt", b"mended")
    assert counts(run(recordings.uri, to, prefix, spec, **KEPT)) == (3, 1, 0)
    assert read(aistore, Bucket.parse(to), f"{prefix}bad.txt") == b"MENDED"


def test_aistores_own_errors_are_found(
    recordings: Remote, clickhouse: Any, run: Callable[..., Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AIStore writes oc://bucket/name in its errors of objects in OCI; a stock transformer has no other reason."""
    monkeypatch.setattr("storeside.transform.reasons.reported", lambda *_: iter(()))
    prefix, to, run_id = f"{unique('in')}/", f"ais://{unique('ours')}", unique("run")
    recordings.put(f"{prefix}d/bad.txt", b"bad")
    summary = run(recordings.uri, to, prefix, small_spec("upper", communication="hpush"), run_id, **KEPT)
    assert counts(summary) == (1, 0, 1)
    (reason,) = failures(clickhouse, run_id, to).values()
    assert "this object is bad" in reason


def test_results_are_written_to_the_cloud(
    recordings: Remote, results: Remote, aistore: Any, run: Callable[..., Summary]
) -> None:
    prefix = f"{unique('in')}/"
    for name, body in {"a.txt": b"good", "d/b.txt": b"more"}.items():
        recordings.put(f"{prefix}{name}", body)
    upper = small_spec("upper")
    assert counts(run(recordings.uri, results.uri, prefix, upper, **KEPT)) == (2, 2, 0)
    assert (results.read(f"{prefix}a.txt"), results.read(f"{prefix}d/b.txt")) == (b"GOOD", b"MORE")
    assert counts(run(recordings.uri, results.uri, prefix, upper, **KEPT)) == (2, 0, 0)
    recordings.put(f"{prefix}a.txt", b"next")
    assert counts(run(recordings.uri, results.uri, prefix, upper, **KEPT)) == (2, 1, 0)
    assert results.read(f"{prefix}a.txt") == b"NEXT"
    results.delete(f"{prefix}a.txt")
    assert counts(run(recordings.uri, results.uri, prefix, upper, **KEPT)) == (2, 1, 0)
    assert results.read(f"{prefix}a.txt") == b"NEXT"


def test_an_object_that_was_uploaded_to_oci_in_parts_is_not_transformed_in_its_old_version(
    emulators: Emulators, aistore: Any, run: Callable[..., Summary]
) -> None:
    """AIStore keeps no MD5 of its copy, so nothing tells the version of the copy."""
    client = oci_client(oci_double.config(emulators.oci_key), 4, f"http://{HOST}:{emulators.oci}")
    store, name = OCIStore(client, oci_double.NAMESPACE, "recordings"), f"{unique('in')}/large.txt"
    to = f"ais://{unique('ours')}"
    for body, upper in ((b"good", b"GOOD"), (b"next", b"NEXT")):
        upload = store.begin(name, Head(len(body), "", ""))
        store.complete(name, upload, [store.put_part(name, upload, 1, body)])
        assert counts(run("oci://recordings", to, name, small_spec("upper"), keep_etl=True)) == (1, 1, 0)
        assert read(aistore, Bucket.parse(to), name) == upper
    assert counts(run("oci://recordings", to, name, small_spec("upper"), keep_etl=True)) == (1, 0, 0)


def test_a_copy_that_aistore_does_not_write_to_the_cloud_is_no_success(
    results: Remote, aistore: Any, run: Callable[..., Summary]
) -> None:
    """AIStore 5.0 writes a copy to its disk alone if one target has both objects: see docs/aistore-bug-reports.md."""
    prefix, ours = f"{unique('out')}/", Bucket("ais", unique("ours"))
    bodies = {f"{prefix}{n}": b"%d" % n for n in range(8)}
    put(aistore, ours, bodies)
    with pytest.raises(AIStoreInputError, match="does not write all copies") as caught:
        run(str(ours), results.uri, prefix)
    assert "StorageCopyBucketOperator" in str(caught.value)
    there = sizes(aistore, Bucket.parse(results.uri))
    written = [name for name in bodies if name in there]
    assert len(written) < len(bodies)
    assert {name: results.read(name) for name in written} == {name: bodies[name] for name in written}


def test_a_copy_is_loaded_into_clickhouse(
    recordings: Remote, stack: Stack, clickhouse: Any, run: Callable[..., Summary]
) -> None:
    prefix, to, table = f"{unique('in')}/", f"ais://{unique('ours')}", f"data.{unique('t').replace('-', '_')}"
    recordings.put(f"{prefix}a.csv", b"n,word\n1,one\n2,two\n")

    def load() -> tuple[int, int]:
        run(recordings.uri, to, prefix)
        transfer = Transfer(
            request_of(Source(to, prefix), table), demo.clickhouse_client(stack, LOADER),
            authn.cluster(stack).client(), unique("run"), ledger=demo.clickhouse_client(stack, LEDGER),
        )  # fmt: skip
        report = transfer.run(transfer.prepare())
        return report.loaded, report.failed

    assert load() == (1, 0)
    assert load() == (0, 0)
    recordings.put(f"{prefix}b.csv", b"n,word\n3,three\n")
    assert load() == (1, 0)
    assert clickhouse.query(f"SELECT n, word FROM {table} ORDER BY n").result_rows == [
        (1, "one"), (2, "two"), (3, "three"),
    ]  # fmt: skip


def test_the_benchmark_measures_through_aistore_and_leaves_nothing(results: Remote, aistore: Any) -> None:
    bucket = Bucket.parse(results.uri)
    measured = benchmark([Through(aistore, bucket, "aistore test")], rounds=1, get_bytes=100_000, put_bytes=3_000_000)
    assert [(r.operation, r.object_size) for r in measured] == [
        ("get cold", 100_000), ("get large", 3_000_000), ("put as set", 3_000_000),
    ]  # fmt: skip
    assert all(r.median > 0 and r.backend == f"{bucket} through AIStore" for r in measured)
    assert not [name for name in sizes(aistore, bucket) if name.startswith(SCRATCH)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_bucket_that_does_not_exist_is_named(
    emulators: Emulators, run: Callable[..., Summary], scheme: str
) -> None:
    with pytest.raises(Exception, match="no-such-bucket"):
        run(f"{scheme}://no-such-bucket", f"ais://{unique('ours')}", "")
