"""The plan and the ledger of a preview: it reads Storeside's tables, if they exist, and writes none of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import (
    UNKNOWN_DATABASE,
    UNKNOWN_TABLE,
    FailureKind,
    TransferInputError,
    code_of,
)
from storeside.transfer.request.source import Listed
from storeside.transfer.state.loads import Loaded, Loads, Planned, Totals, Unplanned
from storeside.transfer.state.plan import Plan, Small, without_version
from storeside.transfer.state.small_plan import SELECTED, Chosen, Facts, facts, listing, planned_of

if TYPE_CHECKING:
    import pyarrow as pa

# Planned objects that a preview remembers: samples come from them. It counts the others.
_KEPT = 1000
# Listed objects for which one statement asks: their keys are part of its text.
_AT_ONCE = 100


class UnstoredLoads(Loads):
    """A ledger whose new outcomes stay in this process; `refused` has the reasons of objects that failed, by key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refused: dict[str, str] = {}

    def create(self) -> None:
        """Create no tables."""

    def states(self, objects: Sequence[Planned]) -> dict[int, str]:
        """Return nothing: no other run decides what a preview shows."""
        return {}

    def doubtful(self, objects: Sequence[Planned] | None = None) -> list[Loaded]:
        """Return nothing: a preview settles no interrupted publication."""
        return []

    def _insert(self, rows: Iterable[tuple[Loaded, str, FailureKind, str]]) -> None:
        for o, state, _, reason in rows:
            self._recorded[o.planned.load_id] = (state, o, reason)
            if state == "failed":
                self.refused[o.planned.key] = reason


class UnstoredPlan(Plan):
    """A plan that counts the objects of a listing and remembers a few of them.

    `retry_failed` and `since` are those of `Plan.make`.
    """

    def __init__(self, loads: UnstoredLoads, *, retry_failed: bool, since: int) -> None:
        super().__init__(loads, stores=False)
        self._retry_failed, self._since = retry_failed, since
        self._begin()

    def _begin(self) -> None:
        self._kept: list[Planned] = []
        self._first: Planned | None = None
        self._pushed: set[int] = set()
        self._selected = self._planned_objects = self._bytes = 0
        self._bad: list[tuple[str, str]] = []
        self._bad_count = 0
        self._ignored: Counter[str] = Counter()

    def record_listing(self, pages: Iterable[Sequence[Listed]]) -> None:
        """Count the objects of a listing."""
        self._begin()
        for page in pages:
            for start in range(0, len(page), _AT_ONCE):
                self._count(page[start : start + _AT_ONCE])

    def record_inventory(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Count the objects of an inventory."""
        names = ("key", "etag", "size", "modified")
        self.record_listing(
            [Listed(*row) for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True)]
            for batch in batches
        )

    def _count(self, listed: Sequence[Listed]) -> None:
        found = facts(self.loads, listed, self._since, creates=False)
        known = {
            (row.key, row.version)
            for row in found.known if row.keeps_from_plan(self.loads, retry_failed=self._retry_failed)
        }  # fmt: skip
        rows = planned_of(found.chosen, known, batch_bytes=1 << 60, batch_objects=1, push=False)
        objects = [o for *_, o in rows]
        if without := next((o.key for o in objects if not o.version), ""):
            raise TransferInputError(without_version(self.loads.source, without))
        selected = [o for o in found.chosen if o.selected]
        self._selected += len(selected)
        self._planned_objects += len(objects)
        self._bytes += sum(o.size for o in objects)
        self._keep(objects, {o.load_id for _, pushed, o in rows if pushed})
        self._count_others(found, selected, listed)

    def _keep(self, objects: Sequence[Planned], pushed: set[int]) -> None:
        """Remember the first object with content by its key, and others spread over the plan, as `sample` does."""
        with_content = [o for o in (*objects, *filter(None, [self._first])) if o.size]
        self._first = min(with_content, key=lambda o: o.key.encode(), default=None)
        self._kept = heapq.nsmallest(_KEPT, [*self._kept, *objects], key=attrgetter("load_id"))
        self._pushed |= pushed
        self._pushed &= {o.load_id for o in (*self._kept, *filter(None, [self._first]))}

    def _count_others(self, found: Facts, selected: Sequence[Chosen], listed: Sequence[Listed]) -> None:
        """Count the objects that failed for good before, and markers."""
        if not self._retry_failed and any(row.state == "failed" for row in found.known):
            source = f"{listing(listed)} WHERE"
            bad = self.loads.known_bad(SELECTED, {"modified_from": self._since * 1000}, 20, source)
            self._bad_count += bad.known_bad
            self._bad += [(str(key), str(reason)) for key, reason in bad.known_failures]
        if len(selected) < len(found.chosen):
            self._ignored.update(self._markers(listed))

    def make(
        self, *, batch_bytes: int, batch_objects: int, push: bool, retry_failed: bool, since: int = 0,
        settle: Callable[[], object] | None = None,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Plan the remembered objects; return the numbers selected and planned, and the planned bytes, of all."""
        kept = {o.load_id: o for o in (*self._kept, *filter(None, [self._first]))}
        pushed = {load_id: push or load_id in self._pushed for load_id in kept}
        rows = [(int(pushed[load_id]), pushed[load_id], o) for load_id, o in kept.items()]
        self._small = Small(
            [Listed(o.key, o.version, o.size, "") for o in kept.values()],
            sorted(rows, key=lambda row: (row[0], row[2].key.encode())),
        )
        self.loads.count_from(Totals(0, 0, 0, 0, 0, planned=len(kept)))
        self.ignored = dict(self._ignored)
        return self._selected, self._planned_objects, self._bytes

    def known_bad(self, limit: int, since: int = 0) -> Unplanned:
        """Return the selected objects that are not planned because they failed for good."""
        return Unplanned(known_bad=self._bad_count, known_failures=tuple(islice(self._bad, limit)))

    def start_after(self, overlap_seconds: float) -> str:
        """Return the key after which a listing has all new objects; none without Storeside's tables."""
        try:
            return super().start_after(overlap_seconds)
        except DatabaseError as e:
            if code_of(e) not in (UNKNOWN_DATABASE, UNKNOWN_TABLE):
                raise
            return ""

    def _drop(self, table: str) -> None:
        """Do nothing: no table has the plan."""
