"""A double of AIStore's listings, for tests without a cluster."""

from __future__ import annotations

from bisect import bisect_right
from types import SimpleNamespace
from typing import Any, ClassVar

from aistore.sdk.errors import AISError
from aistore.sdk.list_object_flag import ListObjectFlag


class Disks:
    """Targets that walk folders as AIStore 5.0 does: `walk` in fs/walk.go, and pages as in ais/plstcx.go.

    It behaves like the SDK's client, bucket and requests as far as listings use them. Folders in `left` are on every
    disk without objects.
    """

    qparam: ClassVar[dict[str, str]] = {}
    name = "b"

    def __init__(self, names: set[str], targets: int = 1, left: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.disks = [{n for i, n in enumerate(sorted(names)) if i % targets == t} for t in range(targets)]
        self.folders = [{n[:at] for n in disk for at in range(len(n)) if n[at] == "/"} | left for disk in self.disks]
        self.asked: list[str] = []
        self.walks: dict[tuple[str, int], list[str]] = {}

    def bucket(self, *_: Any, **__: Any) -> Disks:
        return self

    @property
    def client(self) -> Disks:
        return self

    def head(self) -> dict[str, str]:
        return {}

    def object(self, name: str) -> Any:
        return SimpleNamespace(head=lambda _properties: self.attributes(name))

    def attributes(self, name: str) -> Any:
        if not any(name in disk for disk in self.disks):
            raise AISError(404, "", "url", None)
        return SimpleNamespace(size=1, obj_version="1", checksum_value="c")

    def request_deserialize(self, *_: Any, json: dict[str, Any], **__: Any) -> Any:
        message = json["value"]
        self.asked.append(message["prefix"])
        size = message["pagesize"] or 10_000
        flat = int(message["flags"]) & 1 << ListObjectFlag.NO_RECURSION.value
        uuid = message["uuid"] or f"u{len(self.asked)}"
        token = message["continuation_token"]
        found: set[str] = set()
        for number, (disk, folders) in enumerate(zip(self.disks, self.folders, strict=True)):
            key = (uuid, number)
            if key not in self.walks:
                walk = self.walk(disk, folders, message["prefix"], bool(flat))
                self.walks[key] = [n for n in walk if n > token]
            kept = self.walks[key]  # the target searches its page for the token as if the names were in order
            kept = self.walks[key] = kept[bisect_right(kept, token) :]
            found |= set(kept[:size])
        page = sorted(found)[:size]
        after = page[-1] if len(found) >= size else ""
        return SimpleNamespace(UUID=uuid, ContinuationToken=after, Entries=[self.entry(n) for n in page])

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


def as_files(given: set[str]) -> set[str]:
    """Return the names that can exist together: no object has the name of a folder."""
    fit = {n for n in given if n and not n.startswith("/") and not n.endswith("/") and "//" not in n}
    return {n for n in fit if not any(other.startswith(f"{n}/") for other in fit)}
