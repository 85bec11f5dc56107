"""Divides the objects of a bucket into tar shards that WebDataset can read.

A sample is all objects with the same name up to the first dot of the last part: ``a/1.flac`` and ``a/1.seg.json`` are
the sample ``a/1``. WebDataset takes neighbouring members as one sample, so a shard has the objects in the order of
their names, in which the objects of a sample are neighbours, and a sample is never divided.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.markers import marker, named_by
from storeside.aistore.names import is_folder_marker, unfit
from storeside.aistore.stored_objects import StoredObject
from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.tar_archive import Member
from storeside.transformers.contract.webdataset_names import unread

SHARD_SIZE = 1 << 30
# The rule of WebDataset: sample and extension (webdataset.tariterators.base_plus_ext).
_PARTS = re.compile(r"((?:[^/]*+/)*+[^./]++)[.]([^/]*+)")
_NAME = re.compile(r"[^{}]*\{(?::0[1-9]\d?d)?\}[^{}]*\.tar")
# Members of a shard: its plan is in the memory of the task and of the server.
_MOST_MEMBERS = 100_000
_NO_EXTENSION = "a member needs an extension, and its name must not begin with a dot"
# Errors of names that one message lists.
_EXAMPLES = 5


@dataclass(frozen=True)
class Packing:
    """Which objects become members, and how they are divided into shards.

    Raises AIStoreInputError for an invalid value.
    :param prefix: only objects whose names start with this
    :param objects: patterns of the objects' names, such as ``*.flac,*.json``; ``*`` also matches slashes
    :param name: names of the shards, with one place for their numbers, which begin at 0: ``shard-{:06d}.tar``
    :param shard_size: maximum bytes of a shard; a larger sample gets a separate shard
    :param samples_per_shard: maximum samples of a shard; 0 is no limit
    """

    prefix: str = ""
    objects: str = "*"
    name: str = "shard-{:06d}.tar"
    shard_size: int = SHARD_SIZE
    samples_per_shard: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.patterns:
            raise AIStoreInputError(f"objects {self.objects!r}: name objects, such as *.flac")
        if self.shard_size < 1:
            raise AIStoreInputError(f"shard_size {self.shard_size}: state a positive number of bytes")
        if self.samples_per_shard < 0:
            raise AIStoreInputError(f"samples_per_shard {self.samples_per_shard}: state a number, or 0 for no limit")

    @property
    def patterns(self) -> list[str]:
        """The patterns of names."""
        return [text.strip() for text in self.objects.split(",") if text.strip()]

    @property
    def markers(self) -> set[str]:
        """The patterns of the markers that `prefix` or `objects` names; other markers become no members."""
        return {kind for keys in (self.prefix, *self.patterns) for kind in named_by(keys)}

    def includes(self, name: str) -> bool:
        """Whether an object of this name becomes a member, unless it is a marker."""
        return name.startswith(self.prefix) and any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def number(self, name: str) -> int | None:
        """Return the number in the name of a shard; None if no shard has this name."""
        before, _, after = self.name.partition("{")
        after = after.partition("}")[2]
        digits = name[len(before) : len(name) - len(after)]
        is_number = digits.isascii() and digits.isdigit()
        return int(digits) if is_number and self.name.format(int(digits)) == name else None


def check_name(pattern: str) -> None:
    """Raise AIStoreInputError for a pattern that does not name shards."""
    if not _NAME.fullmatch(pattern):
        raise AIStoreInputError(
            f"name {pattern!r}: write the names of shards with one place for their number, such as"
            " shard-{:06d}.tar or train/{}.tar"
        )
    if reason := unfit(pattern.format(0)):
        raise AIStoreInputError(f"name {pattern!r}: {reason}")


@dataclass
class ShardPlan:
    """One shard and its members, in the order in which the shard has them. `size` is its size in bytes."""

    name: str
    members: list[StoredObject] = field(default_factory=list)
    samples: int = 0
    size: int = len(tar_archive.END)

    @property
    def content(self) -> bytes:
        """The plan as the object that the transformer receives; it changes when the content of a member changes."""
        listed = [(found.name, found.size, found.version) for found in self.members]
        return json.dumps(listed, separators=(",", ":")).encode()

    @property
    def bytes_in(self) -> int:
        """The bytes of all members."""
        return sum(found.size for found in self.members)


def version_of(content: bytes) -> str:
    """Return the version of a plan: the same content has the same version."""
    return hashlib.sha256(content).hexdigest()[:32]


def members_in(content: bytes) -> dict[str, int]:
    """Return the sizes of the members in a plan by their names."""
    return {name: size for name, size, _ in json.loads(content)}


def pack(listing: Iterable[StoredObject], packing: Packing, ignored: Counter[str]) -> Iterator[ShardPlan]:
    """Yield the shards of a bucket, whose objects are listed in the order of their names.

    `ignored` counts markers of writers, which are left out, by their patterns.

    Raises AIStoreInputError after the last object if names cannot be members of a shard, or at once for a sample with
    too many objects, and AIStoreTransientError for a listing in another order.
    """
    shard, number = ShardPlan(packing.name.format(0)), 0
    for sample in _samples(listing, packing, ignored):
        size = sum(map(_size, sample))
        full = packing.samples_per_shard and shard.samples == packing.samples_per_shard
        if shard.members and (
            full or shard.size + size > packing.shard_size or len(shard.members) + len(sample) > _MOST_MEMBERS
        ):
            yield shard
            number += 1
            shard = ShardPlan(packing.name.format(number))
        shard.members += sample
        shard.samples += 1
        shard.size += size
    if shard.members:
        yield shard


def _size(found: StoredObject) -> int:
    """Return the bytes of a member with its header."""
    member = Member(found.name, found.size, 0, 0, 0)
    return len(tar_archive.header(member, found.name, found.size)) + found.size + len(tar_archive.padding(found.size))


def _samples(
    listing: Iterable[StoredObject], packing: Packing, ignored: Counter[str]
) -> Iterator[list[StoredObject]]:
    names, named = _Names(), packing.markers
    sample: list[StoredObject] = []
    for found in listing:
        if not packing.includes(found.name) or is_folder_marker(found.name, found.size):
            continue
        if kind := marker(found.name, named):
            ignored[kind] += 1
            continue
        if names.begins(found.name) and sample:
            yield sample
            sample = []
        if not names.wrong:  # else the plan is not used
            sample.append(found)
    names.require()
    if sample:
        yield sample


def _refusal(name: str, extension: str) -> str | None:
    return unread(name, extension) or unfit(name)


class _Names:
    """Checks names in their order, and finds where a sample begins."""

    def __init__(self) -> None:
        self._last = ""
        self._sample = ""
        self._extensions: dict[str, str] = {}
        # Samples whose names begin those of the current one: ``a`` has objects before and after the folder ``a.b/``.
        self._outer: list[str] = []
        self._examples: list[str] = []
        self.wrong = 0

    def begins(self, name: str) -> bool:
        """Return whether the name begins a new sample.

        Raises AIStoreTransientError if it is not in order, and AIStoreInputError if its sample is too large.
        """
        if name <= self._last:
            raise AIStoreTransientError(f"the listing has {name!r} after {self._last!r}: a retry lists it again")
        self._last = name
        parts = _PARTS.fullmatch(name)
        if parts is None or (reason := _refusal(name, parts[2])):
            self._note(f"{name!r}: {reason if parts else unfit(name) or _NO_EXTENSION}")
            return False
        sample, extension = parts[1], parts[2].lower()
        is_new = sample != self._sample
        if is_new:
            self._enter(sample, name)
        elif len(self._extensions) == _MOST_MEMBERS:
            raise AIStoreInputError(
                f"the sample {sample!r} has more than {_MOST_MEMBERS} objects: a sample is all objects with the same"
                " name up to the first dot. Rename them without that dot, or leave them out with prefix or objects."
                " No shard was written"
            )
        if (other := self._extensions.setdefault(extension, name)) != name:
            self._note(f"{other!r} and {name!r} are the same field of one sample")
        return is_new

    def _enter(self, sample: str, name: str) -> None:
        self._outer = [outer for outer in (*self._outer, self._sample) if outer and name.startswith(f"{outer}.")]
        if sample in self._outer:
            self._note(f"{name!r}: a folder whose name begins with {sample + '.'!r} divides its sample")
        self._sample, self._extensions = sample, {}

    def _note(self, text: str) -> None:
        self.wrong += 1
        if len(self._examples) < _EXAMPLES:
            self._examples.append(text)

    def require(self) -> None:
        """Raise AIStoreInputError if names were wrong."""
        if self.wrong:
            raise AIStoreInputError(
                f"{self.wrong} objects cannot be members of shards: {'; '.join(self._examples)}. Rename them, or"
                " leave them out with prefix or objects. No shard was written"
            )
