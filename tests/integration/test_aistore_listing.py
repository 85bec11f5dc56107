"""Listings of AIStore's own buckets, whose targets leave out objects beside folders: each object is found once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from aistore.sdk.errors import AISError

from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import entries
from storeside.aistore.stored_objects import find_aistore, list_aistore
from storeside.ledger.objects import Ledger
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Options
from tests.listings import NAMES, PARTS
from tests.support import read, unique


@pytest.fixture(scope="module")
def listed(aistore: Any) -> Any:
    bucket = Bucket("ais", unique("listed"))
    handle = bucket.handle(aistore)
    handle.create()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: handle.object(name).get_writer().put_content(name.encode()), NAMES))
    yield bucket
    handle.delete(missing_ok=True)


def test_no_object_is_hidden(aistore: Any, listed: Bucket) -> None:
    """Prefixes of all names, and pages of several sizes."""
    prefixes = [*sorted({name[:end] for name in NAMES for end in range(len(name) + 1)})[::13], "", "part", "2026"]
    hidden = plainly = 0
    for number, prefix in enumerate(prefixes):
        expected = sorted(name for name in NAMES if name.startswith(prefix))
        found = sorted(e.name for e in entries(aistore, listed, prefix, page=(1000, 7, 50)[number % 3]))
        assert found == expected, prefix
        hidden += len(set(expected) - set(found))
        plainly += len(expected) - len(listed.handle(aistore).list_all_objects(prefix=prefix))
    print(f"\nBENCH listing.hidden_objects {hidden} objects of {len(NAMES)}, {len(prefixes)} prefixes")
    assert plainly > 0, "AIStore's own listing hides none of these objects: the workaround may go"


def test_a_folder_beside_more_objects_than_a_page_has(aistore: Any) -> None:
    there = ["wide/1", *(f"wide-{n:04}" for n in range(1100)), "wide0"]
    bucket = Bucket("ais", unique("wide"))
    handle = bucket.handle(aistore)
    handle.create()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: handle.object(name).get_writer().put_content(b"x"), there))
    for prefix in ("wide", "wide-", ""):
        expected = sorted(name for name in there if name.startswith(prefix))
        assert sorted(e.name for e in entries(aistore, bucket, prefix)) == expected
    handle.delete()


def test_an_object_with_the_name_of_a_folder_on_another_disk(aistore: Any) -> None:
    """AIStore refuses such an object only if the same disk stores both."""
    bucket = Bucket("ais", unique("twins"))
    handle = bucket.handle(aistore)
    handle.create()
    there = []
    for name in [f"twin{n}{end}" for n in range(12) for end in ("", "/1", "-2")]:
        with suppress(AISError):
            handle.object(name).get_writer().put_content(b"x")
            there.append(name)
    twins = [name for name in there if f"{name}/1" in there]
    assert twins
    for prefix in (*twins, "twin1", "twin", ""):
        expected = sorted(name for name in there if name.startswith(prefix))
        for page in (1000, 3):
            assert sorted(e.name for e in entries(aistore, bucket, prefix, page=page)) == expected, prefix
    handle.delete()


def test_named_objects_are_found(aistore: Any, listed: Bucket) -> None:
    wanted = [*PARTS, "part-x.csv", "part/part-x", "2026/2026-01/3", "none", "part/"]
    found = {o.name: o.version for o in find_aistore(aistore, listed, wanted)}
    assert set(found) == {"part-x.csv", "part/part-x", "2026/2026-01/3"}
    assert found.items() <= {o.name: o.version for o in list_aistore(aistore, listed)}.items()


def test_a_copy_of_a_prefix_that_is_a_folder_is_complete(
    aistore: Any, clickhouse: Any, listed: Bucket, drive: Any
) -> None:
    to = Bucket("ais", unique("copied"))
    handle = listed.handle(aistore)
    expected = {name for name in NAMES if name.startswith("part")}
    for run in ("1", "2"):
        job = BucketJob(
            aistore, Ledger(clickhouse), listed, to, run_id=unique(run), options=Options(prefix="part")
        )  # fmt: skip
        found = drive(job)
        assert (found.listed, found.done, found.failed) == (len(expected), len(expected) * (run == "1"), 0), found
    assert {o.name for o in list_aistore(aistore, to)} == expected
    assert read(aistore, to, "part-x.csv") == b"part-x.csv"
    # an empty folder stays on the disks after its last object
    for name in [name for name in NAMES if name.startswith("part.csv/")]:
        handle.object(name).delete()
    left = {name for name in NAMES if name.startswith("part.csv") and not name.startswith("part.csv/")}
    assert {o.name for o in list_aistore(aistore, listed, "part.csv")} == left


@pytest.mark.parametrize("prefix", ["part", "2026", "part/part", "part.", ""])
def test_the_s3_server_hides_nothing(s3_client: Any, prefix: str) -> None:
    from storeside.transfer.objects.listing import list_objects

    bucket = unique("listed")
    s3_client.create_bucket(Bucket=bucket)
    some = NAMES[::7] + [name for name in NAMES if "x" in name][::3]
    for name in set(some):
        s3_client.put_object(Bucket=bucket, Key=name, Body=b"x")
    found = sorted(o.key for page in list_objects(s3_client, bucket, prefix) for o in page)
    assert found == sorted({name for name in some if name.startswith(prefix)})
