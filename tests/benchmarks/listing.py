"""Listings of buckets of AIStore with a million objects, in requests and CPU seconds: ``make bench-listing``.

A double of AIStore 5.0 in the process answers as its targets do, with pages of 1,000 objects in AIStore's encoding.
The seconds are those of the worker, which decodes and checks the pages, without those of the double. **plain** is
AIStore's own listing of a flat bucket: one request a page. The other cases are complete listings: of a prefix that
begins all names (**prefix**), of one that half of the objects have as a folder and half beside it (**folder**), and
of a whole bucket with an object beside each folder of 99 (**siblings**, with a tenth of the objects). AIStore's own
listing leaves out objects in the last two.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from aistore.sdk.list_object_flag import ListObjectFlag
from msgspec import msgpack

from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import _LAST, PAGE, _Listing, entries
from tests.aistore_double import Disks
from tests.benchmarks import measure
from tests.benchmarks.measure import bench


class Large(Disks):
    """A target with many objects: it walks them once for each prefix. `seconds` are those of its own work."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(set(names))
        self.seconds = 0.0
        self._sorted = sorted(self.disks[0]), sorted(self.folders[0])
        self._walked: dict[tuple[str, bool], list[str]] = {}
        self._open: dict[str, tuple[list[str], int]] = {}

    def request_deserialize(self, *_: Any, json: dict[str, Any], **more: Any) -> Any:
        began = time.process_time()
        page = self._page(json["value"])
        self.seconds += time.process_time() - began
        return msgpack.decode(page, type=more["res_model"])

    def _page(self, message: dict[str, Any]) -> bytes:
        self.asked.append(message["prefix"])
        token, size = message["continuation_token"], message["pagesize"]
        uuid = message["uuid"] or f"u{len(self.asked)}"
        if uuid in self._open:
            walk, at = self._open[uuid]
            at = bisect_right(walk, token, at)
        else:
            flat = bool(int(message["flags"]) & 1 << ListObjectFlag.NO_RECURSION.value)
            walk, at = self._walk(message["prefix"], flat), 0
            walk = [name for name in walk if name > token] if token else walk
        self._open[uuid] = walk, at
        page = sorted(walk[at : at + size])
        listed = [{"n": name, "s": 1, "v": "1", "cs": "0123456789abcdef"} for name in page]
        after = page[-1] if len(page) >= size else ""
        return msgpack.encode({"UUID": uuid, "ContinuationToken": after, "Entries": listed})

    def _walk(self, prefix: str, flat: bool) -> list[str]:
        if (prefix, flat) not in self._walked:
            objects, folders = ({*_below(names, prefix)} for names in self._sorted)
            self._walked[prefix, flat] = self.walk(objects, folders, prefix, flat)
        return self._walked[prefix, flat]


def _below(names: Sequence[str], prefix: str) -> Sequence[str]:
    """Return the names that begin with a prefix; `names` are in order."""
    return names[bisect_left(names, prefix) : bisect_left(names, f"{prefix}{_LAST}")]


def _plain(disks: Large, prefix: str) -> Iterator[Any]:
    """Yield what AIStore itself lists."""
    listing = _Listing(disks, Bucket("ais", "b"), "name,size", PAGE, ())
    return (found for page in listing.pages(prefix) for found in page.entries)


def _complete(disks: Large, prefix: str) -> Iterator[Any]:
    return entries(disks, Bucket("ais", "b"), prefix)


# The prefix, the name of an object by its number, and the listing, of each case.
CASES: dict[str, tuple[str, Callable[[int], str], Callable[[Large, str], Iterator[Any]]]] = {
    "plain": ("", lambda n: f"part-{n:07}.csv", _plain),
    "prefix": ("part-", lambda n: f"part-{n:07}.csv", _complete),
    "folder": ("part", lambda n: f"part{'-/'[n % 2]}{n:07}.csv", _complete),
    "siblings": ("", lambda n: f"{n // 100:05}/{n % 100}.csv" if n % 100 else f"{n // 100:05}.csv", _complete),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="objects (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    print(f"{options.count} objects; {measure.machine()}")
    for case, (prefix, named, listing) in CASES.items():
        count = (
            options.count // 10 if case == "siblings" else options.count
        )  # the double reads all of them for a page
        disks = Large(map(named, range(count)))
        seconds, requests = [], 0
        for _ in range(options.rounds + 1):  # the first one walks the objects
            gc.freeze()  # so that collections do not search the double
            disks.seconds, before, began = 0.0, len(disks.asked), time.process_time()
            found = sum(1 for _ in listing(disks, prefix))
            seconds.append(time.process_time() - began - disks.seconds)
            requests = len(disks.asked) - before
            assert found == count, f"{case}: {found} of {count} objects were listed"
        bench(f"listing.{case}_requests", requests, "requests")
        bench(f"listing.{case}_seconds", statistics.median(seconds[1:]), "s")
        print(f"{case}: {measure.spread(seconds[1:], 2)} s of CPU")


if __name__ == "__main__":
    main()
