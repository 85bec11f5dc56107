"""The division of objects into shards, by WebDataset's rule for samples."""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.stored_objects import StoredObject
from storeside.transform import shard_plan
from storeside.transform.shard_plan import Packing, ShardPlan, members_in, pack, version_of
from storeside.transformers.shards import gathering


def listed(*names: str, size: int = 1000) -> list[StoredObject]:
    return [StoredObject(name, size, f"1/{name}") for name in names]


def packed(listing: Iterable[StoredObject], **options: Any) -> list[list[str]]:
    return [[found.name for found in shard.members] for shard in pack(listing, Packing(**options), Counter())]


def test_samples_are_never_divided() -> None:
    names = ["a b.txt", "a.flac", "a.seg.json", "a/1.flac", "a/1.json", "a/2.json", "b.flac"]
    assert names == sorted(names)
    assert packed(listed(*names), samples_per_shard=1) == [
        ["a b.txt"], ["a.flac", "a.seg.json"], ["a/1.flac", "a/1.json"], ["a/2.json"], ["b.flac"],
    ]  # fmt: skip
    assert packed(listed(*names), samples_per_shard=3) == [names[:5], names[5:]]
    assert packed(listed(*names)) == [names]
    packing = Packing(samples_per_shard=4, name="t/{}.tar")
    assert [shard.name for shard in pack(listed(*names), packing, Counter())] == ["t/0.tar", "t/1.tar"]


@pytest.mark.parametrize("long", ["x.flac", f"{'d' * 90}/{'é' * 60}.flac"])
def test_the_size_of_a_shard_is_the_size_of_its_archive(long: str) -> None:
    (plan,) = pack(listed("a.flac", "b.flac", long, size=700), Packing(), Counter())
    pieces = gathering.archive((found.name, bytes(found.size)) for found in plan.members)
    archive = b"".join(pieces)
    assert len(archive) == plan.size
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert [(m.name, m.size, m.mtime) for m in opened] == [(n, 700, 0) for n in ("a.flac", "b.flac", long)]
    assert packed(plan.members, shard_size=plan.size) == [["a.flac", "b.flac", long]]
    assert len(packed(plan.members, shard_size=plan.size - 1)) == 2
    assert packed(plan.members, shard_size=1) == [["a.flac"], ["b.flac"], [long]], "a larger sample is alone"


def test_prefix_patterns_and_folder_markers_select_objects() -> None:
    objects = [*listed("in/a.flac", "in/a.json", "in/a.txt", "out/a.flac"), StoredObject("out/z/", 0, "1")]
    assert packed(objects, prefix="in/", objects="*.flac, *.json") == [["in/a.flac", "in/a.json"]]
    assert packed(objects)[0][-1] == "out/a.flac"
    assert packed(objects, prefix="none") == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["README", "a.flac"], "'README': a member needs an extension"),
        (["v1.0/noext"], "'v1.0/noext': a member needs an extension"),
        (["__unknown__/a.flac"], "'__unknown__/a.flac': WebDataset takes it for metadata"),
        (["__a__b__/c/d.flac"], "'__a__b__/c/d.flac': WebDataset takes it for metadata"),
        (["a.__key__"], "'a.__key__': WebDataset has fields of its own"),
        (["x/a.__URL__"], "'x/a.__URL__': WebDataset has fields of its own"),
        (["a.__bad__"], "'a.__bad__': WebDataset has fields of its own"),
        (["../a.flac"], "'../a.flac': the name has a '..' component"),
        (["/etc/a.flac"], "'/etc/a.flac': the name has an empty component"),
        (["a/./b.flac"], "'a/./b.flac': the name has a '.' component"),
        (["a.JPG", "a.jpg"], "'a.JPG' and 'a.jpg' are the same field of one sample"),
        (["a.b", "a.c/x.d", "a.e"], "'a.e': a folder whose name begins with 'a.' divides its sample"),
    ],
)
def test_names_that_webdataset_cannot_read(names: list[str], reason: str) -> None:
    with pytest.raises(AIStoreInputError) as error:
        packed(listed(*names))
    assert str(error.value).startswith(f"1 objects cannot be members of shards: {reason}")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"objects": "a/.*"}, "1 objects cannot be members of shards: 'a/.hidden.txt': a member needs an extension"),
        ({"prefix": "__meta"}, "1 objects cannot be members of shards: '__meta.json__': WebDataset takes it"),
    ],
)
def test_markers_become_members_only_if_keys_name_them(named: dict[str, str], reason: str) -> None:
    markers = ["_SUCCESS", "_committed_1.json", "__meta.json__", "a/.hidden.txt", "a/.part-0.crc", "a/b.flac.crc"]
    data = ["_raw/x.flac", "a/b.flac", "a/c_.crc.json"]
    ignored = Counter[str]()
    listing = listed(*sorted([*data, *markers, "a/m.metadata", "z_$folder$"]))
    assert [found.name for shard in pack(listing, Packing(), ignored) for found in shard.members] == data
    assert ignored == {"_*": 3, ".*": 2, "*.crc": 1, "*.metadata": 1, "*_$folder$": 1}
    assert packed(listing, objects="*.flac,*.crc", prefix="a/b") == [["a/b.flac", "a/b.flac.crc"]]
    with pytest.raises(AIStoreInputError, match=f"^{re.escape(reason)}"):
        packed(listing, **named)


def test_an_error_lists_some_names_and_counts_all() -> None:
    with pytest.raises(AIStoreInputError) as error:
        packed(listed(*(f"{n:02}" for n in range(30))))
    assert str(error.value).startswith("30 objects")
    assert "'04'" in str(error.value)
    assert "'05'" not in str(error.value)


def test_a_sample_with_too_many_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "_MOST_MEMBERS", 3)
    names = [f"2026.{n}.flac" for n in range(4)]
    assert packed(listed(*names[:3], "b.flac")) == [names[:3], ["b.flac"]]
    with pytest.raises(AIStoreInputError, match="the sample '2026' has more than 3 objects"):
        packed(listed(*names))


def test_a_listing_must_be_in_order() -> None:
    with pytest.raises(AIStoreTransientError, match=r"has 'a\.json' after 'b\.json'"):
        packed(listed("b.json", "a.json"))


def test_a_folder_may_have_a_dot() -> None:
    names = ["v1.0/a.flac", "v1.0/a.json", "v1.json"]
    assert packed(listed(*names), samples_per_shard=1) == [names[:2], names[2:]]


def test_a_changed_member_changes_the_version_of_its_plan() -> None:
    def version(*members: StoredObject) -> str:
        return version_of(ShardPlan("s.tar", list(members)).content)

    one = StoredObject("a.txt", 1, "v1")
    assert version(one) == version(StoredObject("a.txt", 1, "v1"))
    others = [StoredObject("b.txt", 1, "v1"), StoredObject("a.txt", 2, "v1"), StoredObject("a.txt", 1, "v2")]
    assert len({version(one), *map(version, others)}) == 4
    assert members_in(ShardPlan("s.tar", [one]).content) == {"a.txt": 1}
    assert gathering.planned(ShardPlan("s.tar", [one]).content) == [("a.txt", 1)]


def test_numbers_of_shards() -> None:
    packing = Packing(name="x/shard-{:03d}.tar")
    assert [packing.number(f"x/shard-{n}.tar") for n in ("000", "012", "1234", "12", "abc", "", "-01")] == [
        0, 12, 1234, None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "shard.tar"}, "one place for their number"),
        ({"name": "{}-{}.tar"}, "one place"),
        ({"name": "{0.__class__}.tar"}, "one place"),
        ({"name": "{:99999999d}.tar"}, "one place"),
        ({"name": "shard-{:06d}.zip"}, "one place"),
        ({"name": "../{}.tar"}, "'..' component"),
        ({"objects": " , "}, "name objects, such as"),
        ({"shard_size": 0}, "positive number of bytes"),
        ({"samples_per_shard": -1}, "0 for no limit"),
    ],
)
def test_wrong_options(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(AIStoreInputError, match=reason):
        Packing(**options)
