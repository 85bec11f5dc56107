"""Complete listings of a double of AIStore 5.0, whose targets leave out objects in the same way."""

from __future__ import annotations

from typing import Any

from aistore.sdk.list_object_flag import ListObjectFlag
from hypothesis import example, given
from hypothesis import strategies as st
from types import SimpleNamespace

from storeside.aistore.buckets import Bucket, find_aistore, list_aistore
from storeside.aistore.entries import entries


class Disks:
    """Targets that walk folders as AIStore 5.0 does: `walk` in fs/walk.go, and pages as in ais/plstcx.go.

    It behaves like the SDK's client, bucket and requests as far as listings use them. Folders in `left` are on every
    disk without objects.
    """

    qparam: dict[str, str] = {}
    name = "b"

    def __init__(self, names: set[str], targets: int = 1, left: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.disks = [{n for i, n in enumerate(sorted(names)) if i % targets == t} for t in range(targets)]
        self.folders = [
            {n[:at] for n in disk for at in range(len(n)) if n[at] == "/"} | left for disk in self.disks
        ]
        self.asked: list[str] = []

    def bucket(self, *_: Any, **__: Any) -> Disks:
        return self

    @property
    def client(self) -> Disks:
        return self

    def head(self) -> dict[str, str]:
        return {}

    def request_deserialize(self, *_: Any, json: dict[str, Any], **__: Any) -> Any:
        message = json["value"]
        self.asked.append(message["prefix"])
        size = message["pagesize"] or 10_000
        flat = int(message["flags"]) & 1 << ListObjectFlag.NO_RECURSION.value
        found: set[str] = set()
        for disk, folders in zip(self.disks, self.folders, strict=True):
            walk = self.walk(disk, folders, message["prefix"], bool(flat))
            found |= set([n for n in walk if n > message["continuation_token"]][:size])
        page = sorted(found)[:size]
        token = page[-1] if len(found) >= size else ""
        return SimpleNamespace(UUID="u", ContinuationToken=token, Entries=[self.entry(n) for n in page])

    @staticmethod
    def entry(name: str) -> Any:
        return SimpleNamespace(n=name, s=1, v="1", cs="c", m="")

    @staticmethod
    def walk(disk: set[str], folders: set[str], prefix: str, flat: bool) -> list[str]:
        parent = prefix[: prefix.rfind("/") + 1]
        if prefix in folders:  # the fault: the prefix is walked as a folder
            parent = f"{prefix}/"
        there = [n for n in disk if n.startswith(prefix) and n.startswith(parent)]
        if flat:
            there = [n for n in there if "/" not in n[len(parent) :]]
            there += [
                f"{f}/" for f in folders
                if f.startswith(parent) and f.startswith(prefix) and "/" not in f[len(parent) :] and f != parent[:-1]
            ]  # fmt: skip
        return sorted(there, key=lambda n: n.rstrip("/").split("/"))


def names(disks: Disks, prefix: str = "", page: int = 1000) -> list[str]:
    return [found.name for found in entries(disks, Bucket("ais", "b"), prefix, page=page)]  # type: ignore[arg-type]


def as_files(given: set[str]) -> set[str]:
    """Return the names that can exist together: no object has the name of a folder."""
    fit = {n for n in given if n and not n.startswith("/") and not n.endswith("/") and "//" not in n}
    return {n for n in fit if not any(other.startswith(f"{n}/") for other in fit)}


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


def test_the_double_has_both_faults() -> None:
    """Otherwise the tests above would prove nothing."""
    disks = Disks({"part/1", "part-2"})
    assert disks.walk(disks.disks[0], disks.folders[0], "part", False) == ["part/1"]
    first = disks.request_deserialize(json={"value": {"prefix": "", "pagesize": 1, "continuation_token": "", "flags": "0"}})
    assert [e.n for e in first.Entries] == ["part/1"]
    second = disks.request_deserialize(
        json={"value": {"prefix": "", "pagesize": 1, "continuation_token": first.ContinuationToken, "flags": "0"}}
    )
    assert not second.Entries
