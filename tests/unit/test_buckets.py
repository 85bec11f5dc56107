"""Buckets by URI, and templates of names."""

from __future__ import annotations

import pytest
from aistore.sdk import Client
from hypothesis import given
from hypothesis import strategies as st

from storeside.aistore.buckets import Bucket, common_prefix
from storeside.aistore.names import expand
from storeside.aistore.stored_objects import FEW, find_aistore
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Options
from tests.aistore_double import Disks, as_files


@pytest.mark.parametrize(
    ("uri", "bucket", "remote"),
    [
        ("ais://speech", Bucket("ais", "speech"), False),
        ("ais://speech/", Bucket("ais", "speech"), False),
        ("s3://recordings", Bucket("s3", "recordings"), True),
        ("ais://#team/speech", Bucket("ais", "speech", "#team"), False),
        ("ais://@far#team/speech", Bucket("ais", "speech", "@far#team"), True),
        ("ais://@far/speech", Bucket("ais", "speech", "@far#"), True),
    ],
)
def test_uri(uri: str, bucket: Bucket, remote: bool) -> None:
    assert Bucket.parse(uri) == bucket
    assert str(bucket) == uri.rstrip("/")
    assert bucket.is_remote == remote


def test_the_sdk_is_told_the_namespace() -> None:
    handle = Bucket.parse("ais://@far#team/speech").handle(Client("http://nowhere"))
    assert handle.namespace.get_path() == "@far#team"
    assert handle.name == "speech"


@pytest.mark.parametrize("uri", ["speech", "ftp://a", "ais://", "ais://a/b", "s3://#ns/a", "ais://#ns"])
def test_uris_that_name_no_bucket(uri: str) -> None:
    with pytest.raises(ValueError, match="bucket"):
        Bucket.parse(uri)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("shard-{0008..0010}.tar", ["shard-0008.tar", "shard-0009.tar", "shard-0010.tar"]),
        ("{a,b}/x", ["a/x", "b/x"]),
        ("plain name", ["plain name"]),
        (r"back\slash", [r"back\slash"]),
    ],
)
def test_template(template: str, names: list[str]) -> None:
    assert expand(template) == names


@pytest.mark.parametrize(("template", "words"), [("{a,b", "{a,b"), ("{1..9999}", "more than 100 names")])
def test_templates_that_are_refused(monkeypatch: pytest.MonkeyPatch, template: str, words: str) -> None:
    monkeypatch.setattr("storeside.aistore.names._MOST_NAMES", 100)
    with pytest.raises(ValueError, match="template") as caught:
        expand(template)
    assert words in str(caught.value)


@given(st.sets(st.text("ab/", min_size=1, max_size=4)), st.sets(st.text("ab/", min_size=1, max_size=4), min_size=1))
def test_just_the_named_objects_are_found(there: set[str], wanted: set[str]) -> None:
    there = as_files(there)
    found = [o.name for o in find_aistore(Disks(there), Bucket("ais", "b"), wanted)]  # type: ignore[arg-type]
    assert sorted(found) == sorted(there & wanted)


def test_many_names_are_found_in_one_listing() -> None:
    there = {f"in/{n:05}" for n in range(FEW + 10)}
    listed = Disks(there | {"out/x"})
    found = find_aistore(listed, Bucket("ais", "b"), there | {"in/none"})  # type: ignore[arg-type]
    assert {o.name for o in found} == there
    assert set(listed.asked) == {"in/"}


def test_common_prefix_is_of_characters() -> None:
    assert common_prefix(["a/bc", "a/bd"]) == "a/b"


def test_sync_is_for_remote_buckets() -> None:
    with pytest.raises(ValueError, match="sync follows deletions in a remote bucket"):
        BucketJob(None, None, Bucket("ais", "a"), Bucket("ais", "b"), run_id="r", options=Options(sync=True))  # type: ignore[arg-type]
