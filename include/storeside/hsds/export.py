"""Exports HSDS datasets to Parquet on S3: one object per slab, written only once even if the export is restarted."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storeside.copying.errors import passes, passing_errors
from storeside.hsds.client import Client, Dataset, OversizeError
from storeside.hsds.errors import HsdsCancelled, HsdsInputError, HsdsTransientError
from storeside.hsds.mapping import LAYOUTS
from storeside.hsds.mapping import Mapping as Columns
from storeside.hsds.plan import Plan, Slab, plan
from storeside.hsds.selection import parse
from storeside.hsds.variable import decoded

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

log = logging.getLogger(__name__)

SLAB_BYTES = 8 << 20
LEAST_SLAB_BYTES, MOST_SLAB_BYTES = 1 << 10, 32 << 20
REPORT_SECONDS = 5.0
# As a multiple of `slab_bytes`: a slab is split if its variable-length elements need more.
OVERSIZE = 4
_PARTS = "part-"
_MARK, _SLAB, _RUN = "storeside-export", "storeside-slab", "storeside-run"
_REFUSED = frozenset({301, 400, 401, 403, 404, 405})

Compression = Literal["zstd", "lz4", "snappy", "gzip", "none"]


@dataclass(frozen=True)
class Export:
    """The source, the destination and the format of an export.

    `selection` is a text such as ``0:1000, :``; empty selects everything. `layout` is one of
    `storeside.hsds.mapping.LAYOUTS`. The parts are the objects ``part-….parquet`` below `prefix`, which must be used
    by this export only. `workers` slabs of at most `slab_bytes` each are processed at the same time.
    """

    domain: str
    path: str
    bucket: str
    prefix: str
    selection: str = ""
    layout: str = "long"
    compression: str = "zstd"
    slab_bytes: int = SLAB_BYTES
    workers: int = 2

    def __post_init__(self) -> None:
        if not LEAST_SLAB_BYTES <= self.slab_bytes <= MOST_SLAB_BYTES:
            raise HsdsInputError(
                f"slab_bytes {self.slab_bytes}: choose from {LEAST_SLAB_BYTES} to {MOST_SLAB_BYTES}, because servers"
                " and workers hold several slabs in memory"
            )
        if self.layout not in LAYOUTS:
            raise HsdsInputError(f"layout {self.layout!r}: choose one of {', '.join(LAYOUTS)}")
        if not 1 <= self.workers <= 32:
            raise HsdsInputError(f"workers {self.workers}: choose from 1 to 32")
        if self.compression not in get_args(Compression):
            raise HsdsInputError(f"compression {self.compression!r}: choose zstd, lz4, snappy, gzip or none")
        if not self.bucket or not self.prefix.strip("/"):
            raise HsdsInputError("an export needs a bucket and a prefix that no other export uses")

    @property
    def keys(self) -> str:
        """The common prefix of the keys of all parts."""
        return f"{self.prefix.strip('/')}/{_PARTS}"


@dataclass(frozen=True)
class Report:
    """The result of an export: parts and elements, parts that existed before, bytes read and written, and seconds."""

    parts: int
    present: int
    elements: int
    bytes_read: int
    bytes_written: int
    seconds: float


class Exporter:
    """One run of an export. If the run with this `run_id` is restarted, it keeps the parts that it wrote."""

    def __init__(self, client: Client, s3: S3Client, export: Export, run_id: str) -> None:
        self.client = client
        self.s3 = s3
        self.export = export
        self.stop = threading.Event()
        self._run = hashlib.sha256(run_id.encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._told = time.monotonic()
        self._done = {"parts": 0, "present": 0, "elements": 0, "bytes_read": 0, "bytes_written": 0}

    def run(self) -> Report:
        """Export the missing parts.

        Raises:
            HsdsInputError: the request cannot be carried out, or the prefix contains parts of another export.
            HsdsTransientError: HSDS or S3 is unreachable or busy.
            HsdsCancelled: the export was stopped.
        """
        begin = time.monotonic()
        dataset = self.client.dataset(self.export.domain, self.export.path)
        selection = parse(self.export.selection, dataset.shape)
        second = selection[1] if len(selection) > 1 else range(0)
        columns = Columns(dataset.dtype, len(dataset.shape), self.export.layout, second)
        slabs = plan(
            selection, dataset.chunks, columns.element_bytes, self.export.slab_bytes, whole_rows=columns.whole_rows
        )
        mark = self._mark(dataset, slabs)
        present = self._present(mark)
        total = len(slabs) if all(selection) else 0
        log.info(
            "%s %s %s, chunks %s: %d slabs of at most %.1f MB, %d parts exist",
            dataset, dataset.dtype, list(dataset.shape), list(dataset.chunks), total,
            math.prod(slabs.block) * columns.element_bytes / 1e6, len(present),
        )  # fmt: skip
        kept = self._export(_Job(dataset, columns, slabs, mark, present, total))
        self._delete([key for key in present if key not in kept])
        return Report(**self._done, seconds=time.monotonic() - begin)

    def _export(self, job: _Job) -> set[str]:
        """Export all slabs in threads and return the keys of all parts."""
        source = iter(job.slabs) if job.total else iter(())
        kept: set[str] = set()

        def work() -> None:
            buffer = bytearray()
            while (slab := self._next(source)) is not None:
                waiting = [slab]
                while waiting:
                    piece = waiting.pop()
                    if halves := self._one(job, piece, buffer):
                        waiting += reversed(halves)
                        continue
                    with self._lock:
                        kept.add(self._key(job.slabs, piece))

        with ThreadPoolExecutor(self.export.workers, "hsds") as pool:
            futures = [pool.submit(work) for _ in range(min(self.export.workers, max(job.total, 1)))]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self.stop.set()
                raise
        if self.stop.is_set():
            raise HsdsCancelled("the export was stopped: start it again to continue")
        return kept

    def _next(self, source: Iterator[Slab]) -> Slab | None:
        with self._lock:
            return None if self.stop.is_set() else next(source, None)

    def _one(self, job: _Job, slab: Slab, buffer: bytearray) -> tuple[Slab, Slab] | None:
        """Export a slab unless its part exists; return its halves if they must be exported instead."""
        key = self._key(job.slabs, slab)
        found = job.present.get(key, {})
        if found.get(_RUN) == self._run:
            if found.get(_SLAB) == slab.select:
                self._count(job, slab, present=1)
                return None
            if job.dataset.item_bytes is None and (halves := slab.halves()):
                return halves  # an earlier try split the slab; the key belongs to its first half
        try:
            elements, size = self._read(job.dataset, slab, buffer)
        except OversizeError:
            if halves := slab.halves():
                return halves
            raise HsdsInputError(
                f"{job.dataset}: the element at {slab.select} is larger than {OVERSIZE * self.export.slab_bytes}"
                " bytes: choose larger slabs"
            ) from None
        try:
            body = self._parquet(job.columns, job.columns.table(slab, elements))
        except HsdsInputError as e:
            raise HsdsInputError(f"{job.dataset}, {slab.select}: {e}") from e
        metadata = {_MARK: job.mark, _RUN: self._run, _SLAB: slab.select}
        written = body.getbuffer().nbytes
        self._s3(lambda: self.s3.put_object(Bucket=self.export.bucket, Key=key, Body=body, Metadata=metadata))
        self._count(job, slab, bytes_read=size, bytes_written=written)
        return None

    def _read(self, dataset: Dataset, slab: Slab, buffer: bytearray) -> tuple[np.ndarray[Any, Any], int]:
        """Return a slab's elements and their number of bytes; `buffer` contains fixed-size elements."""
        if dataset.item_bytes is None:
            content = self.client.read(dataset, slab, OVERSIZE * self.export.slab_bytes)
            return decoded(content, dataset, slab), len(content)
        size = slab.count * dataset.item_bytes
        if len(buffer) < size:
            buffer.extend(bytes(size - len(buffer)))
        with memoryview(buffer) as view, view[:size] as part:
            self.client.read_into(dataset, slab, part)
        kind = dataset.dtype
        array = np.frombuffer(buffer, kind.base, count=size // kind.base.itemsize)
        return array.reshape((*slab.shape, *kind.shape)), size

    def _parquet(self, columns: Columns, table: pa.Table) -> io.BytesIO:
        """Return a table as Parquet. Equal elements yield equal bytes, and therefore the same ETag."""
        indexes = [name for name in table.column_names[: columns.rank if columns.layout == "long" else 1]]
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            compression=self.export.compression,
            use_dictionary=False,
            write_statistics=indexes,
            column_encoding=dict.fromkeys(indexes, "DELTA_BINARY_PACKED"),
            row_group_size=max(table.num_rows, 1),
        )
        sink.seek(0)
        return sink

    # existing parts

    def _mark(self, dataset: Dataset, slabs: Plan) -> str:
        """Return the mark of all parts of this export, which does not depend on the length of the first dimension."""
        told = [
            self.client.server.endpoint, self.client.server.bucket, dataset.domain, dataset.path, dataset.type,
            self.export.selection, self.export.layout, self.export.compression,
            [[d.start, d.stop, d.step] for d in slabs.selection[1:]], slabs.block,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def _present(self, mark: str) -> dict[str, Mapping[str, str]]:
        """Return the existing parts with their metadata. Raises HsdsInputError for a part of another export."""
        pages = self._s3(
            lambda: list(
                self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.export.bucket, Prefix=self.export.keys)
            )
        )
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]

        def noted(key: str) -> Mapping[str, str]:
            found: Mapping[str, str] = self._s3(
                lambda: self.s3.head_object(Bucket=self.export.bucket, Key=key)["Metadata"]
            )
            return found

        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(keys, pool.map(noted, keys), strict=True))
        for key, metadata in found.items():
            if metadata.get(_MARK) != mark:
                raise HsdsInputError(
                    f"s3://{self.export.bucket}/{key}: is not of this export, because its dataset, selection, type or"
                    " layout differ: choose another prefix, or delete the objects below this one"
                )
        return found

    def _key(self, slabs: Plan, slab: Slab) -> str:
        """Return the key of a slab's part, which has the slab's start in each dimension that distinguishes slabs."""
        starts = [dimension.start for dimension in slab.dimensions]
        split = slabs.split
        rest = [n for n in range(len(starts)) if n not in split]
        if all(starts[n] == slabs.selection[n].start for n in rest):  # otherwise it is a piece of a split slab
            starts = [starts[n] for n in split]
        return f"{self.export.keys}{'-'.join(f'{start:012d}' for start in starts) or '0'}.parquet"

    def _delete(self, keys: list[str]) -> None:
        """Delete parts of this export for which the dataset has no data."""
        for key in keys:
            log.info("s3://%s/%s: deleted, because the dataset has no data for it", self.export.bucket, key)
            self._s3(partial(self.s3.delete_object, Bucket=self.export.bucket, Key=key))

    def _s3(self, call: Callable[[], Any]) -> Any:
        return s3_call(call, f"s3://{self.export.bucket}/{self.export.prefix}")

    def _count(self, job: _Job, slab: Slab, present: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Add a part to the report, and log the progress every few seconds."""
        added = {"parts": 1, "present": present, "elements": slab.count}
        added |= {"bytes_read": bytes_read, "bytes_written": bytes_written}
        with self._lock:
            for name, value in added.items():
                self._done[name] += value
            now = time.monotonic()
            if now - self._told < REPORT_SECONDS:
                return
            self._told = now
            done = dict(self._done)
        log.info("%d of %d slabs, %.1f MB read", done["parts"], job.total, done["bytes_read"] / 1e6)


@dataclass(frozen=True)
class _Job:
    """The data that the threads of an export share."""

    dataset: Dataset
    columns: Columns
    slabs: Plan
    mark: str
    present: Mapping[str, Mapping[str, str]]
    total: int


def s3_call(call: Callable[[], Any], what: str) -> Any:
    """Call S3. Raises HsdsInputError if S3 refuses, and HsdsTransientError if S3 is unreachable or busy."""
    from botocore import exceptions as boto

    try:
        return call()
    except boto.ClientError as e:
        status = e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = e.response.get("Error", {}).get("Code", "")
        if status in _REFUSED and not passes(e):
            raise HsdsInputError(f"{what}: S3 refuses it ({code}): check the bucket's name and permissions") from e
        raise HsdsTransientError(f"{what}: S3 failed ({code})") from e
    except passing_errors() as e:
        raise HsdsTransientError(f"{what}: S3 cannot be reached: {e}") from e
    except boto.BotoCoreError as e:
        said = str(e).rstrip(".")
        raise HsdsInputError(f"{what}: {said}: correct the bucket's name, or the connection's keys and region") from e
