"""Imports a local HDF5 file, or Parquet, into an HSDS dataset, slab by slab; continues after a killed run."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storeside.hsds.client import Client, Dataset
from storeside.hsds.errors import HsdsCancelled, HsdsInputError
from storeside.hsds.export import LEAST_SLAB_BYTES, MOST_SLAB_BYTES, OVERSIZE, SLAB_BYTES
from storeside.hsds.mapping import VARIABLE_BYTES
from storeside.hsds.plan import Slab, plan
from storeside.hsds.sources import Hdf5Source, ParquetSource, digest, local_parquet, s3_parquet
from storeside.hsds.variable import description, encoded, size_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

log = logging.getLogger(__name__)

# The attribute of the dataset in which an import records the number of slabs that it has written.
PROGRESS = "storeside_import"
CHECKPOINT_SECONDS = 5.0
_TOGETHER = 16
# Elements of variable length that an import reads of a slab to learn their size.
_SAMPLE = 16
_HDF5 = (".h5", ".hdf5", ".he5", ".nc", ".nc4", ".hdf")


@dataclass(frozen=True)
class Import:
    """The source, the destination and the format of an import.

    `source` is a local HDF5 file, a local Parquet file, a folder of Parquet files, or ``s3://bucket/prefix`` of
    Parquet objects. `source_path` is the dataset in the HDF5 file; empty means the same as `path`. `layout` applies
    to Parquet and is one of `storeside.hsds.sources.LAYOUTS`. `gzip` is the compression level in HSDS; 0 means no
    compression.
    """

    source: str
    domain: str
    path: str
    source_path: str = ""
    layout: str = "table"
    gzip: int = 0
    slab_bytes: int = SLAB_BYTES
    workers: int = 2

    def __post_init__(self) -> None:
        if not LEAST_SLAB_BYTES <= self.slab_bytes <= MOST_SLAB_BYTES:
            raise HsdsInputError(f"slab_bytes {self.slab_bytes}: choose from {LEAST_SLAB_BYTES} to {MOST_SLAB_BYTES}")
        if not 0 <= self.gzip <= 9:
            raise HsdsInputError(f"gzip {self.gzip}: choose a level from 1 to 9, or 0 for no compression")
        if not 1 <= self.workers <= 32:
            raise HsdsInputError(f"workers {self.workers}: choose from 1 to 32")


@dataclass(frozen=True)
class Report:
    """The result of an import: slabs, slabs that existed before, elements, bytes written, and seconds."""

    slabs: int
    present: int
    elements: int
    bytes_written: int
    seconds: float


class Importer:
    """One run of an import. If the run with this `run_id` is restarted with the same source, it continues."""

    def __init__(self, client: Client, s3: S3Client | None, request: Import, run_id: str) -> None:
        self.client = client
        self.s3 = s3
        self.request = request
        self.stop = threading.Event()
        self._run_id = run_id

    def run(self) -> Report:
        """Create the dataset if it does not exist, and write the remaining slabs.

        Raises:
            HsdsInputError: the source cannot be read or does not match the dataset, or HSDS refuses.
            HsdsTransientError: HSDS or S3 is unreachable or busy.
            HsdsCancelled: the import was stopped.
        """
        begin = time.monotonic()
        with self._source() as source:
            dataset = self._dataset(source)
            variable = source.dtype.hasobject
            slabs = plan(
                tuple(range(length) for length in dataset.shape),
                dataset.chunks,
                VARIABLE_BYTES if variable else source.dtype.itemsize,
                self.request.slab_bytes,
                whole_rows=isinstance(source, ParquetSource),
            )
            mark = digest([self._run_id, source.identity, slabs.block])
            done = self._progress(dataset).get(mark, 0)
            written = self._write(dataset, source, islice(slabs, done, None), mark, done)
        count = int(np.prod(dataset.shape, dtype=np.int64))
        return Report(len(slabs), done, count, written, time.monotonic() - begin)

    def _write(
        self, dataset: Dataset, source: Hdf5Source | ParquetSource, slabs: Iterator[Slab], mark: str, done: int
    ) -> int:
        written, noted = 0, time.monotonic()
        with ThreadPoolExecutor(self.request.workers, "hsds") as pool:
            # Threads work on a few slabs at a time, in order, so that one number describes the progress.
            while together := list(islice(slabs, _TOGETHER)):
                written += sum(pool.map(lambda slab: self._one(dataset, source, slab), together))
                if self.stop.is_set():
                    break  # some of these slabs were skipped
                done += len(together)
                if time.monotonic() - noted > CHECKPOINT_SECONDS:
                    self._note(dataset, mark, done)
                    noted = time.monotonic()
                    log.info("%s: %d slabs, %.1f MB written", dataset, done, written / 1e6)
        if written:
            self._note(dataset, mark, done)
        if self.stop.is_set():
            raise HsdsCancelled(f"{dataset}: the import was stopped: start it again to continue")
        return written

    def _one(self, dataset: Dataset, source: Hdf5Source | ParquetSource, slab: Slab) -> int:
        """Write a slab, in pieces if it exceeds HSDS's request size; return the number of bytes."""
        if self.stop.is_set():
            return 0
        if dataset.dtype.hasobject and self._is_large(dataset, source, slab):
            return sum(self._one(dataset, source, half) for half in slab.halves() or ())
        values = source.read(slab)
        if not dataset.dtype.hasobject:
            wanted = dataset.dtype.base
            values = np.ascontiguousarray(values).view(wanted) if values.dtype.kind == "c" else values
            content = np.ascontiguousarray(values, wanted)
            view = content.reshape(-1).view(np.uint8).data
            self.client.write(dataset, slab, view)
            return len(view)
        elements = values.astype(dataset.dtype, copy=False).view(dataset.dtype)
        if size_of(elements, dataset, slab) >= dataset.most_bytes:
            halves = slab.halves()
            if halves is None:
                raise HsdsInputError(
                    f"{dataset}: the element at {slab.select} is larger than HSDS's maximum request,"
                    f" {dataset.most_bytes} bytes: raise its max_request_size"
                )
            return sum(self._one(dataset, source, half) for half in halves)
        body = encoded(elements, dataset, slab)
        self.client.write(dataset, slab, body)
        return len(body)

    def _is_large(self, dataset: Dataset, source: Hdf5Source | ParquetSource, slab: Slab) -> bool:
        """Return whether a slab of variable-length elements has to be halved, by the mean size of some of them."""
        if slab.count <= _SAMPLE or isinstance(source, ParquetSource):  # Parquet's row groups are in memory anyway
            return False
        some = slab.sample(_SAMPLE)
        elements = source.read(some).astype(dataset.dtype, copy=False).view(dataset.dtype)
        mean = size_of(elements, dataset, some) / some.count
        return mean * slab.count > OVERSIZE * self.request.slab_bytes

    def _note(self, dataset: Dataset, mark: str, done: int) -> None:
        """Record the number of written slabs after HSDS has stored all of them."""
        self.client.flush(dataset.domain)
        self.client.put_attribute(dataset, PROGRESS, json.dumps({mark: done}))

    def _progress(self, dataset: Dataset) -> dict[str, int]:
        noted = self.client.attribute(dataset, PROGRESS)
        try:
            found: dict[str, int] = json.loads(noted or "{}")
        except ValueError:
            return {}
        return found

    @contextmanager
    def _source(self) -> Iterator[Hdf5Source | ParquetSource]:
        source = self.request.source
        if source.startswith("s3://"):
            bucket, _, prefix = source.removeprefix("s3://").partition("/")
            if self.s3 is None or not bucket:
                raise HsdsInputError(f"source {source!r}: write s3://bucket/prefix, and set a connection to S3")
            yield s3_parquet(self.s3, bucket, prefix, self.request.layout)
        elif source.lower().endswith(_HDF5):
            import h5py

            try:
                file = h5py.File(source, "r")
            except OSError as e:
                raise HsdsInputError(f"{source}: cannot be opened as HDF5: {e}") from e
            with file:
                yield Hdf5Source(file, self.request.source_path or self.request.path)
        else:
            yield local_parquet(Path(source), self.request.layout)

    def _dataset(self, source: Hdf5Source | ParquetSource) -> Dataset:
        """Return the destination dataset; create it if it does not exist."""
        from h5json.hdf5dtype import createDataType, getTypeItem

        request = self.request
        what = f"dataset {request.path!r} of {request.domain!r}"
        try:
            kind = getTypeItem(stored(source.dtype))
            dtype = createDataType(kind)
            wanted = description(dtype)
        except (TypeError, KeyError, ValueError) as e:
            raise HsdsInputError(f"{what}: HSDS has no type for {source.dtype}: {e}") from e
        try:
            found = self.client.dataset(request.domain, request.path)
        except HsdsInputError as e:
            if e.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                raise
            body = {"type": kind, "shape": source.shape, "creationProperties": self._properties(source)}
            self.client.create(request.domain, request.path, body)
            found = self.client.dataset(request.domain, request.path)
        # NumPy ignores the bases of variable-length types and the names of enums.
        has = description(found.dtype)
        if found.shape != source.shape or has != wanted:
            types = (has, wanted) if found.dtype == dtype and has != wanted else (found.dtype, dtype)
            raise HsdsInputError(
                f"{what}: exists with {types[0]} {found.shape}, but the source has {types[1]} {source.shape}:"
                " choose another path, or delete the dataset"
            )
        return found

    def _properties(self, source: Hdf5Source | ParquetSource) -> dict[str, object]:
        if not source.shape:
            return {}
        layout = {"class": "H5D_CHUNKED", "dims": source.chunks}
        gzip = {"class": "H5Z_FILTER_DEFLATE", "id": 1, "name": "deflate", "level": self.request.gzip}
        return {"layout": layout, **({"filters": [gzip]} if self.request.gzip else {})}


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which HDF5 stores elements; complex numbers become pairs."""
    if dtype.kind != "c":
        return dtype
    part = dtype.str.replace("c", "f").replace(str(dtype.itemsize), str(dtype.itemsize // 2))
    return np.dtype([("r", part), ("i", part)])
