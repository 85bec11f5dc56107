"""Operators that export HSDS datasets to Parquet on S3, and import files into HSDS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

from storeside.amounts import counted, others, size
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.hsds import HSDSHook
from storeside.operators.hooks.transfer import s3_client_of
from storeside.operators.movement import Movement, MovementOperator
from storeside.operators.shared import ledger, plain, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.hsds.export import Compression
    from storeside.hsds.mapping import Layout
    from storeside.hsds.sources import TableLayout
    from storeside.transfer.request.template import Template

SLAB_BYTES = 8 << 20


class HSDSExportDatasetOperator(MovementOperator):
    """Exports an HSDS dataset, or a hyperslab of it, to Parquet on S3: one object per slab.

    A slab consists of whole chunks and has a bounded size, so HSDS and the worker hold only a few slabs at a time. A
    task that is killed and retried continues after the slabs that it has already written. Another run exports all
    slabs again; unchanged data give identical objects, and `S3ToClickHouseOperator` loads only objects that differ.
    Returns the engine's `Report` as a dictionary.

    :param domain: HSDS domain, such as ``/home/ada/weather.h5``
    :param dataset: path of the dataset in the domain, such as ``/2026/temperature``
    :param bucket: bucket for the Parquet objects, without ``s3://``
    :param prefix: prefix for the objects, which are named ``part-….parquet``; no other objects may have this prefix
    :param selection: hyperslab such as ``0:1000, :, ::2``; empty exports the whole dataset
    :param layout: ``long``: one row per element; ``wide``: one row per first index and one column per second index;
        ``array``: one row per first index, with arrays
    :param compression: Parquet compression: ``zstd``, ``lz4``, ``snappy``, ``gzip`` or ``none``
    :param slab_bytes: maximum bytes of a slab
    :param workers: number of slabs in flight
    :param clickhouse_conn_id: connection for ``storeside.runs``; None records nothing there
    :param hsds_conn_id: connection to HSDS
    :param aws_conn_id: connection to S3 and SQS
    """

    template_fields: Sequence[str] = (
        "domain",
        "dataset",
        "bucket",
        "prefix",
        "selection",
        "layout",
        "compression",
    )
    ui_color = "#dfe7f5"

    def __init__(
        self,
        *,
        domain: str,
        dataset: str,
        bucket: str,
        prefix: str,
        selection: str = "",
        layout: Layout | Template = "long",
        compression: Compression | Template = "zstd",
        slab_bytes: int = SLAB_BYTES,
        workers: int = 2,
        hsds_conn_id: str = "hsds_default",
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str | None = "clickhouse_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.domain = domain
        self.dataset = dataset
        self.bucket = bucket
        self.prefix = prefix
        self.selection = selection
        self.layout = layout
        self.compression = compression
        self.slab_bytes = slab_bytes
        self.workers = workers
        self.hsds_conn_id = hsds_conn_id
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._running: Any = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Export the slabs that this run has not exported yet."""
        from storeside.hsds.export import Export, Exporter

        with airflow_errors():
            export = Export(
                self.domain,
                self.dataset,
                self.bucket,
                self.prefix,
                selection=self.selection,
                layout=self.layout,
                compression=self.compression,
                slab_bytes=self.slab_bytes,
                workers=self.workers,
            )
            client = HSDSHook(self.hsds_conn_id).client
            self._running = Exporter(client, s3_client_of(self.aws_conn_id), export, run_key(context))
            report = asdict(self._running.run())
        source, destination = f"hsds:/{self.domain}{self.dataset}", f"s3://{export.bucket}/{export.prefix}"
        self.log.info(
            "%s -> %s: %s%s, %s, %s read, %s written, %.1f s", source, destination, counted(report["parts"], "part"),
            others((report["present"], "of them from an earlier try")), counted(report["elements"], "element"),
            size(report["bytes_read"]), size(report["bytes_written"]), report["seconds"],
        )  # fmt: skip
        record(self, self.clickhouse_conn_id, context, "export", source, destination, report, report["parts"])
        return dict(plain(report))

    def on_kill(self) -> None:
        """Stop after the slabs in flight."""
        if self._running is not None:
            self._running.stop.set()


class HSDSImportDatasetOperator(MovementOperator):
    """Imports a local HDF5 file or Parquet into an HSDS dataset; a missing dataset is created.

    A task that is killed and retried continues after the data that HSDS has already stored. The task flushes all
    writes before it ends, so this task fails if HSDS cannot store the data. Returns the engine's `Report` as a
    dictionary.

    :param source: HDF5 file on the worker, Parquet file or folder of Parquet files on the worker, or
        ``s3://bucket/prefix``
    :param domain: HSDS domain; a missing domain is created, but its folder must exist
    :param dataset: path of the dataset in the domain; missing groups are created
    :param source_dataset: path of the dataset in the HDF5 file, if it differs
    :param layout: for Parquet: ``table`` makes compound elements, ``wide`` makes rows from columns of one type,
        ``array`` reads a single column of lists
    :param gzip: compression level in HSDS; 0 stores uncompressed data
    :param slab_bytes: maximum bytes of a slab
    :param workers: number of slabs in flight
    :param clickhouse_conn_id: connection for ``storeside.runs``; None records nothing there
    :param hsds_conn_id: connection to HSDS
    :param aws_conn_id: connection to S3 and SQS
    """

    template_fields: Sequence[str] = ("source", "domain", "dataset", "source_dataset", "layout")
    ui_color = "#dfe7f5"

    def __init__(
        self,
        *,
        source: str,
        domain: str,
        dataset: str,
        source_dataset: str = "",
        layout: TableLayout | Template = "table",
        gzip: int = 0,
        slab_bytes: int = SLAB_BYTES,
        workers: int = 2,
        hsds_conn_id: str = "hsds_default",
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str | None = "clickhouse_default",
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.domain = domain
        self.dataset = dataset
        self.source_dataset = source_dataset
        self.layout = layout
        self.gzip = gzip
        self.slab_bytes = slab_bytes
        self.workers = workers
        self.hsds_conn_id = hsds_conn_id
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._running: Any = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Import the slabs that this run has not imported yet."""
        from storeside.hsds.imports import Import, Importer

        with airflow_errors():
            request = Import(
                self.source,
                self.domain,
                self.dataset,
                source_path=self.source_dataset,
                layout=self.layout,
                gzip=self.gzip,
                slab_bytes=self.slab_bytes,
                workers=self.workers,
            )
            s3: Any = s3_client_of(self.aws_conn_id) if self.source.startswith("s3://") else None
            self._running = Importer(HSDSHook(self.hsds_conn_id).client, s3, request, run_key(context))
            report = asdict(self._running.run())
        destination = f"hsds:/{self.domain}{self.dataset}"
        self.log.info(
            "%s -> %s: %s%s, %s, %s, %.1f s", self.source, destination, counted(report["slabs"], "slab"),
            others((report["present"], "of them from an earlier try")), counted(report["elements"], "element"),
            size(report["bytes_written"]), report["seconds"],
        )  # fmt: skip
        record(self, self.clickhouse_conn_id, context, "import", self.source, destination, report, report["slabs"])
        return dict(plain(report))

    def on_kill(self) -> None:
        """Stop after the slabs in flight."""
        if self._running is not None:
            self._running.stop.set()


def record(
    operator: MovementOperator,
    conn_id: str | None,
    context: Context,
    kind: str,
    source: str,
    destination: str,
    report: dict[str, Any],
    slabs: int,
) -> None:
    """Record the run in ``storeside.runs`` unless `conn_id` is None; report it to metrics, assets and OpenLineage."""
    row = {
        "kind": kind,
        "source": source,
        "destination": destination,
        "done": slabs - report["present"],
        "bytes_in": report.get("bytes_read", report["bytes_written"]),
        "bytes_out": report["bytes_written"],
        "seconds": report["seconds"],
    }
    if conn_id is None:
        operator.tell(context, Movement(**row))
        return
    tables = ledger(conn_id)
    tables.create()
    detail = json.dumps({"elements": report["elements"]})
    more = {"state": "done", "listed": slabs, "skipped": report["present"], "detail": detail}
    operator.record_end(context, tables, {**row, **more})
