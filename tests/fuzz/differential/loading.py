"""Files through the product's loaders, up to the staging tables.

A transfer is prepared as always: ClickHouse lists the objects, and they are planned. Then its batch loader fills
staging tables, and what these hold is compared: publishing moves their parts and changes no value. Three things are
done for speed, which none of the compared code sees:

- One staging table serves load after load, and is emptied in between.
- What the worker reads comes from memory; ClickHouse pulls from S3.
- Reasons for a refusal are kept here instead of in the ledger.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import FailureKind, LoadObjectError
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.objects.content import Content
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.source import Listed, Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.run.mending import Mending
from storeside.transfer.staging.grouping import Grouping
from storeside.transfer.staging.staging import Staged, Staging
from storeside.transfer.staging.work import USUAL, Group, How, Work
from storeside.transfer.state.loads import Loaded, Loads, Planned
from storeside.transfer.state.plan import Plan
from storeside.transfer.tables.table import Destination
from tests.transfers import request_of

PULL, PUSH, ARROW = LOADERS = ("pull", "push", "arrow")
COLLECTION = "storeside_s3"
_PUTS = 4


class Held:
    """An S3 client of objects in memory, for `Content`."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects

    def get_object(self, *, Key: str, Range: str = "", **_: Any) -> dict[str, Any]:
        """Return an object, or a range of it, with the ETag that S3 gives it."""
        from botocore.response import StreamingBody

        content = whole = self.objects[Key]
        if Range:
            first, last = Range.removeprefix("bytes=").split("-")
            content = whole[int(first) : int(last) + 1]
        return {"ETag": f'"{etag(whole)}"', "Body": StreamingBody(io.BytesIO(content), len(content))}


def etag(content: bytes) -> str:
    """Return the ETag that S3 gives an object."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass
class _FromMemory(Work):
    """Work whose objects the worker has already."""

    held: Held | None = None

    def content(self, o: Planned) -> Content:
        held: Any = self.held
        return Content(held, self.request.source.bucket, o.key, o.size, o.version)


class _ByArrow(Grouping):
    """Takes Parquet for too large to be sent whole."""

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        found = super().groups(objects, destination, how)
        return [replace(group, reading=replace(group.reading, by_arrow=True)) for group in found]


class _Noted(Loads):
    """A ledger that keeps the reasons of failed objects here."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.reasons: dict[str, str] = {}

    def record_failed(self, failed: Iterable[tuple[Planned, FailureKind, str]]) -> None:
        self.reasons |= {o.key: reason for o, _, reason in failed}


class _OneTable(Staging):
    """Fills the same staging table again and again."""

    free = ""
    _is_empty = True

    def filled(self, fill: Callable[[str], list[Loaded]], load_ids: Sequence[int] = ()) -> Staged:
        if not self.free:
            self.free = f"{self.tables}{self.work.token}_1"
            self.destination.stage(self.free)
        elif not self._is_empty:
            self.client.command(f"TRUNCATE TABLE {STAGING}.{identifier(self.free)} SYNC")
        try:
            staged = Staged(self.free, fill(self.free))
            self._check(staged)
        finally:  # what is refused has left nothing, mostly
            count = first_row(self.client.query(f"SELECT count() FROM {STAGING}.{identifier(self.free)}"))[0]
            self._is_empty = not count
        return staged


class Load:
    """One loader's way of the planned objects into a staging table."""

    def __init__(self, work: Work, noted: _Noted, *, pushed: bool, by_arrow: bool) -> None:
        self.client = work.client
        self.noted = noted
        pushed = pushed or work.push_all
        self.staging = _OneTable(work, 0, pushed=pushed)
        if by_arrow:
            self.staging.grouping = _ByArrow(work, pushed=pushed)
        self.mending = Mending(self.staging)
        self.destination = self.staging.look_up()

    def groups(self, objects: Sequence[Planned]) -> list[Group]:
        """Return the objects grouped by how they are read. Raises LoadObjectError."""
        return self.staging.grouping.groups(objects, self.destination)

    def read(self, objects: Sequence[Planned], rows: Callable[[str], Mapping[int, Any]]) -> dict[str, Any]:
        """Return the rows of each object; those that are refused are missing, with their reasons in `noted`.

        `rows` returns the rows of a staging table by load id. Objects that are refused together are tried in halves.
        """
        if not objects:
            return {}
        try:
            staged = self.staging.stage(objects)
        except LoadObjectError as e:
            if len(objects) > 1:
                middle = len(objects) // 2
                return self.read(objects[:middle], rows) | self.read(objects[middle:], rows)
            if (mended := self.mending.mend(objects[0], e)) is None:
                return {}
            staged = mended
        found = rows(staged.table)
        return {o.planned.key: found.get(o.planned.load_id, []) for o in staged.loaded}

    def close(self) -> None:
        """Drop the staging table."""
        if self.staging.free:
            self.staging.drop(self.staging.free)


class Loading:
    """Objects that are planned for one table, which is made of them where it is not there.

    With the loader "push" they are in memory only; otherwise they are in a new bucket, which is listed.
    """

    def __init__(self, client: Any, store: Any, contents: Mapping[str, bytes], table: str, **request: Any) -> None:
        bucket = f"fuzz-{uuid.uuid4().hex[:12]}"
        self.client = client
        self.held = Held(contents)
        self.request = request_of(Source(bucket, "", collection=COLLECTION), table, **request)
        self.transfer = Transfer(self.request, client, store, uuid.uuid4().hex)
        listed = None
        if self.request.loader == PUSH:
            listed = [Listed(key, etag(one), len(one), "2026-01-02T00:00:00.000Z") for key, one in contents.items()]
        else:
            store.create_bucket(Bucket=bucket)
            with ThreadPoolExecutor(_PUTS) as pool:
                list(pool.map(lambda key: store.put_object(Bucket=bucket, Key=key, Body=contents[key]), contents))
        self.prepared = self.transfer.prepare(listed)
        batches = self.transfer.plan.batches()
        self.planned = {o.key: o for batch in batches for o in self.transfer.plan.objects(batch.number)}
        if not self.planned:
            raise RuntimeError("no object is planned")

    def load(self, loader: str) -> Load:
        """Return a way into the table; close it at the end."""
        noted = _Noted(self.client, self.transfer.id, self.request.table, self.request.source, self.transfer.run_id)
        work = _FromMemory(
            self.request, Format(self.prepared.format, self.request.read.csv), self.client,
            Plan(noted), uuid.uuid4().hex[:8], self.transfer.s3, self.prepared.push, held=self.held,
        )  # fmt: skip
        return Load(work, noted, pushed=loader != PULL, by_arrow=loader == ARROW)

    def close(self) -> None:
        """Forget the plan, and drop the table."""
        self.transfer.plan.forget("load_plan")
        self.transfer.plan.forget("load_listings")
        self.client.command(f"DROP TABLE IF EXISTS {self.request.table} SYNC")
