"""Complete listings of a double of AIStore 5.0, whose targets leave out objects in the same way."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack

import storeside
from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import _answer, entries
from tests.aistore_double import Disks, as_files


def names(disks: Disks, prefix: str = "", page: int = 1000) -> list[str]:
    return [found.name for found in entries(disks, Bucket("ais", "b"), prefix, page=page)]  # type: ignore[arg-type]


NAMES = st.sets(st.text("a-/0.", min_size=1, max_size=7), max_size=40).map(as_files)


@given(NAMES, st.text("a-/0.", max_size=4), st.integers(1, 4), st.integers(1, 3), st.booleans())
@example({"part-2", "part/1", "part/2", "part3"}, "part", 1000, 2, False)
@example({"a/1", "a/2", "a/3", "a-1", "a-2"}, "", 2, 1, False)
def test_each_object_is_listed_once(there: set[str], prefix: str, page: int, targets: int, deleted: bool) -> None:
    if "//" in prefix or prefix.startswith("/"):
        return
    left = {prefix.rstrip("/")} - there - {""} if deleted else set()
    disks = Disks(there, targets, left)
    assert sorted(names(disks, prefix, page)) == sorted(n for n in there if n.startswith(prefix))


@given(st.sets(st.text("a-/0", min_size=1, max_size=5), max_size=30), st.text("a-/0", max_size=4), st.integers(1, 4))
@example({"part", "part/1", "part-2"}, "part", 1000)
def test_an_object_with_the_name_of_a_folder_on_another_target(given: set[str], prefix: str, page: int) -> None:
    if "//" in prefix or prefix.startswith("/"):
        return
    fit = {n for n in given if not n.startswith("/") and not n.endswith("/") and "//" not in n}
    disks = Disks(set(), 2)
    folders = {n for n in fit if any(other.startswith(f"{n}/") for other in fit)}
    disks.disks = [folders - {f for f in folders if any(o.startswith(f"{f}/") for o in folders)}, as_files(fit)]
    disks.folders = [{n[:at] for n in disk for at in range(len(n)) if n[at] == "/"} for disk in disks.disks]
    there = disks.disks[0] | disks.disks[1]
    assert sorted(names(disks, prefix, page)) == sorted(n for n in there if n.startswith(prefix))


def test_requests_grow_with_pages_and_not_with_the_siblings_of_a_folder() -> None:
    there = {f"part{after}{n:05}" for after in "/-0" for n in range(2500)}
    for prefix, pages in (("part", 8), ("part-", 3), ("", 8)):
        disks = Disks(there, 2)
        assert sorted(names(disks, prefix)) == sorted(n for n in there if n.startswith(prefix))
        assert len(disks.asked) <= 2 * pages + 6


def test_the_double_has_both_faults() -> None:
    """Otherwise the tests above would prove nothing."""
    disks = Disks({"part/1", "part-2"})
    assert disks.walk(disks.disks[0], disks.folders[0], "part", False) == ["part/1"]
    asked = {"uuid": "u", "prefix": "", "pagesize": 1, "continuation_token": "", "flags": "0"}
    first = disks.request_deserialize(json={"value": asked})
    assert [e.n for e in first.Entries] == ["part/1"]
    second = disks.request_deserialize(json={"value": {**asked, "continuation_token": first.ContinuationToken}})
    assert not second.Entries


def test_no_other_module_requests_a_listing_from_aistore() -> None:
    """OCI's client has a method of the same name as the SDK of AIStore."""
    root = Path(storeside.__file__).parent
    calls = re.compile(r"\.list_(objects|objects_iter|all_objects|archive)\(|\bACT_LIST\b")
    callers, users = set(), set()
    for path in root.rglob("*.py"):
        text = path.read_text()
        name = str(path.relative_to(root))
        if calls.search(text):
            callers.add(name)
        if re.search(r"from storeside\.aistore\.entries import (?!PAGE\n)", text):
            users.add(name)
    assert callers == {"aistore/entries.py", "copying/oci.py"}
    assert users == {
        "aistore/stored_objects.py",
        "copying/prefetch.py",
        "doctor/aistore.py",
        "transform/shard_check.py",
    }


def test_an_answer_of_aistore_is_read() -> None:
    sent = {
        "UUID": "u",
        "ContinuationToken": "",
        "Flags": 0,
        "Entries": [{"n": "a", "s": 3, "m": "[ETag:1]", "f": 64}],
    }
    (found,) = msgpack.decode(msgpack.encode(sent), type=_answer()).Entries
    assert (found.n, found.s, found.m, found.v) == ("a", 3, "[ETag:1]", "")
    assert msgpack.decode(msgpack.encode({**sent, "Entries": None}), type=_answer()).Entries is None
