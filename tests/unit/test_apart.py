"""No accepted job writes where it reads: buckets in all their spellings, and names of results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk.const import HEADER_BUCKET_PROPS
from aistore.sdk.errors import AISError
from hypothesis import assume, given
from hypothesis import strategies as st

from storeside.aistore.buckets import PROVIDERS, Bucket
from storeside.aistore.errors import AIStoreError
from storeside.aistore.markers import marker
from storeside.aistore.places import Clusters, place
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import StoredObject
from storeside.transform.apart import require_apart
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import InPlaceJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options

OWN, ALIASES = "own-uuid", {"north": "uuid-n", "south": "uuid-s"}
# where a front bucket's objects are -> the front; `key` of a bucket is (provider, cluster's UUID, namespace, name)
Key = tuple[str, str, str, str]
FRONTS: Mapping[Key, Key] = {
    ("ais", "", "", "front"): ("aws", "", "", "b"),
    ("ais", "", "", "second"): ("aws", "", "", "b"),
    ("ais", "", "ns", "front"): ("gcp", "", "", "b"),
    ("ais", "", "", "far"): ("ais", "uuid-n", "", "theirs"),
    ("ais", "uuid-n", "", "theirs"): ("aws", "", "", "c"),
}


@dataclass
class FakeCluster:
    """Answers requests for the place of a bucket's objects as AIStore does."""

    heads: list[Key] = field(default_factory=list)
    status: int = 404

    def cluster(self) -> Any:
        return SimpleNamespace(client=self)

    def request(self, method: str, path: str, params: Mapping[str, str]) -> Any:
        assert (method, path) == ("get", "cluster")
        attached = [{"uuid": uuid, "alias": alias, "url": "http://x"} for alias, uuid in ALIASES.items()]
        found = {"smap": {"uuid": OWN}, "remote": {"a": attached}}[params["what"]]
        return SimpleNamespace(json=lambda: found)

    def bucket(self, name: str, provider: str, namespace: Any = None) -> Any:
        key = (provider, namespace.uuid if namespace else "", namespace.name if namespace else "", name)
        return SimpleNamespace(head=lambda: self.head(key))

    def head(self, key: Key) -> dict[str, str]:
        self.heads.append(key)
        if key not in FRONTS:
            if key[3] == "missing":
                raise AISError(self.status, "no bucket", "", None)
            return {HEADER_BUCKET_PROPS: json.dumps({"provider": key[0]})}
        provider, uuid, space, name = FRONTS[key]
        backend = {"name": name, "provider": provider, "namespace": {"uuid": uuid, "name": space}}
        return {HEADER_BUCKET_PROPS: json.dumps({"backend_bck": backend})}


def where(key: Key) -> Key:
    """Return where a bucket's objects are: the model that the product is compared with."""
    while key in FRONTS:
        key = FRONTS[key]
    return key


SCHEMES = {provider: scheme for scheme, provider in PROVIDERS.items()}


@st.composite
def buckets(draw: st.DrawFn) -> tuple[str, Key]:
    """A URI of a bucket and the bucket's key; the same bucket has several spellings."""
    provider = draw(st.sampled_from(["ais", "ais", "ais", "aws", "gcp"]))
    name = draw(st.sampled_from(["b", "c", "front", "second", "far", "theirs", "missing"]))
    slash = draw(st.sampled_from(["", "/"]))
    if provider != "ais":
        return f"{SCHEMES[provider]}://{name}{slash}", (provider, "", "", name)
    uuid = draw(st.sampled_from(["", "", "uuid-n", "uuid-s"]))
    space = draw(st.sampled_from(["", "", "ns"]))
    spellings = {"": ["", "@", f"@{OWN}"], "uuid-n": ["@uuid-n", "@north"], "uuid-s": ["@uuid-s", "@south"]}
    cluster = draw(st.sampled_from(spellings[uuid]))
    namespace = f"{cluster}#{space}" if space else draw(st.sampled_from([cluster, f"{cluster}#"]))
    return f"ais://{namespace + '/' if namespace else ''}{name}{slash}", ("ais", uuid, space, name)


NAMES = st.text(alphabet="ab./fw", min_size=1, max_size=6)
NAMINGS = st.builds(
    Naming,
    st.dictionaries(st.sampled_from(["a", "b", "f", "w"]), st.sampled_from(["a", "f", "w", ".w"]), max_size=3),
    st.sampled_from(["", "a", "a/", "b/", "."]),
)


@pytest.mark.guarantee("apart")
@given(st.lists(buckets(), min_size=2, max_size=4), st.sets(NAMES, max_size=8), NAMINGS)
def test_no_accepted_job_writes_over_an_object_that_it_reads(
    given_: list[tuple[str, Key]], names: set[str], naming: Naming
) -> None:
    uses = ("source", "destination", "quarantine", "bucket of facts")
    asked = {use: Bucket.parse(uri) for use, (uri, _) in zip(uses, given_, strict=False)}
    places = [where(key) for _, key in given_]
    if len(set(places)) < len(places):
        with pytest.raises(AIStoreError, match=r"Name another bucket for the") as caught:
            require_apart(FakeCluster(), asked)
        assert any(str(bucket) in str(caught.value) for bucket in asked.values())
        return
    require_apart(FakeCluster(), asked)
    # written names: results, copies of failed objects, facts; none is an object of the source
    sources = {(places[0], name) for name in names}
    results = {(places[1], naming.destination(name)) for name in names}
    others = {(found, name) for found in places[2:] for name in names}
    assert not sources & (results | others)


@given(buckets(), buckets())
def test_a_bucket_has_one_place(one: tuple[str, Key], other: tuple[str, Key]) -> None:
    client = FakeCluster()
    clusters = Clusters.of(client)
    found = [place(client, Bucket.parse(uri), clusters) for uri, _ in (one, other)]
    assert (found[0] == found[1]) == (where(one[1]) == where(other[1]))
    assert place(client, found[0], clusters) == found[0]


def test_a_bucket_is_not_taken_for_another_when_the_cluster_does_not_answer() -> None:
    client = FakeCluster(status=500)
    with pytest.raises(AISError):
        require_apart(client, {"source": Bucket.parse("ais://missing"), "destination": Bucket.parse("ais://b")})


def test_a_bucket_of_a_cluster_that_is_not_attached_is_not_asked_for() -> None:
    client = FakeCluster()
    require_apart(client, {"source": Bucket.parse("ais://@nobody/b"), "destination": Bucket.parse("ais://b")})
    assert client.heads == [("ais", "", "", "b")]


@pytest.mark.parametrize(
    ("uri", "same"),
    [
        ("ais://#/b", "ais://b"),
        ("ais://@/b", "ais://b"),
        ("ais://@#/b", "ais://b"),
        ("ais://@#ns/b", "ais://#ns/b"),
        ("ais://@u#/b", "ais://@u/b"),
    ],
)
def test_namespaces_without_a_name_are_written_in_one_way(uri: str, same: str) -> None:
    bucket = Bucket.parse(uri)
    assert bucket == Bucket.parse(same)
    assert str(bucket) == same
    assert bucket.is_remote == ("@u" in uri)


# ---- in place


@given(st.sets(NAMES, min_size=1, max_size=8), NAMINGS)
def test_in_place_writes_over_the_object_itself_or_nothing(names: set[str], naming: Naming) -> None:
    job = InPlaceJob(
        FakeCluster(), SimpleNamespace(), Bucket("ais", "b"), run_id="run",  # type: ignore[arg-type]
        spec=EtlSpec("x", "image"), naming=naming,
    )  # fmt: skip
    job._make._listings._list_source = lambda: [StoredObject(name, 1, "v") for name in sorted(names)]
    rows = list(job._make._listings.rows())
    assert {row[0] for row in rows} == {name for name in names if not marker(name)}
    for name, destination, _, _, reason in rows:
        assert (destination == name) if not reason else destination == ""
    assume(any(not row[4] for row in rows))
    assert job.spec.communication == "hpush"
    assert job.work not in (job.source, job.destination)


@pytest.mark.parametrize("options", [{"latest": True}, {"sync": True}])
def test_options_that_an_in_place_transform_cannot_have(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="excludes latest and sync"):
        InPlaceJob(
            FakeCluster(), SimpleNamespace(), Bucket("ais", "b"), run_id="run",  # type: ignore[arg-type]
            spec=EtlSpec("x", "image"), options=Options(**options),
        )  # fmt: skip


@pytest.mark.guarantee("apart")
def test_a_job_compares_its_buckets_before_it_does_anything() -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the ledger was used")

    job = BucketJob(
        FakeCluster(), SimpleNamespace(create=never), Bucket("ais", "front"), Bucket("s3", "b"),  # type: ignore[arg-type]
        run_id="run", options=Options(),
    )  # fmt: skip
    with pytest.raises(AIStoreError, match=r"ais://front, the source, and s3://b, the destination, are one bucket"):
        job.preview()
