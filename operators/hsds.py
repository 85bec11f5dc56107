"""Operators that bring datasets of HSDS to Parquet on S3, and files to HSDS."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from operators.hooks.hsds import HSDSHook
from operators.movement import Movement, MovementOperator
from operators.shared import ledger, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

SLAB_BYTES = 8 << 20


class HSDSExportDatasetOperator(MovementOperator):
    """Exports a dataset of HSDS, or a hyperslab of it, to Parquet on S3: an object for each slab.

    Slabs are whole chunks of bounded size, so that neither HSDS nor the worker holds more than some of them. A task
    that is killed and retried goes on behind the slabs that it has written. A run of its own exports anew; where the
    data are the same, so are the objects, and `S3ToClickHouseOperator` loads only those that differ. Returns the
    engine's `Report` as a dictionary.

    :param domain: domain of HSDS, such as ``/home/ada/weather.h5``
    :param dataset: path of the dataset in it, such as ``/2026/temperature``
    :param bucket: bucket for the Parquet objects, without ``s3://``
    :param prefix: prefix of its own for the objects, which are called ``part-….parquet``
    :param selection: hyperslab such as ``0:1000, :, ::2``; empty takes all
    :param layout: ``long`` has a row for each element, ``wide`` a row for each first index with a column for each
        second one, ``array`` a row for each first index with arrays
    :param compression: of Parquet: ``zstd``, ``lz4``, ``snappy``, ``gzip`` or ``none``
    :param slab_bytes: bytes of a slab at the most
    :param workers: slabs that are on their way at a time
    :param clickhouse_conn_id: for ``storeside.runs``; None notes nothing there
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
        layout: str = "long",
        compression: str = "zstd",
        slab_bytes: int = SLAB_BYTES,
        workers: int = 2,
        hsds_conn_id: str = "hsds_default",
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str | None = "clickhouse_default",
        **kwargs: Any,
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
        """Export what this run has not exported yet."""
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook

        from include.hsds.export import Export, Exporter

        with hsds_errors():
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
            self._running = Exporter(
                client, S3Hook(aws_conn_id=self.aws_conn_id).get_conn(), export, run_key(context)
            )
            report = asdict(self._running.run())
        source, destination = f"hsds:/{self.domain}{self.dataset}", f"s3://{export.bucket}/{export.prefix}"
        self.log.info(
            "%s -> %s: %d parts, %d of them there before, %d elements, %.1f MB read, %.1f MB written, %.1f s",
            source, destination, report["parts"], report["present"], report["elements"], report["bytes_read"] / 1e6,
            report["bytes_written"] / 1e6, report["seconds"],
        )  # fmt: skip
        record(self, self.clickhouse_conn_id, context, "export", source, destination, report, report["parts"])
        return report

    def on_kill(self) -> None:
        """Stop behind the slabs that are on their way."""
        if self._running is not None:
            self._running.stop.set()


class HSDSImportDatasetOperator(MovementOperator):
    """Imports a local HDF5 file or Parquet into a dataset of HSDS, which is created where it is missing.

    A task that is killed and retried goes on behind what HSDS has in its storage. What HSDS cannot store fails this
    task, not a later one: everything is flushed before it ends. Returns the engine's `Report` as a dictionary.

    :param source: HDF5 file on the worker, Parquet file or folder of such on the worker, or ``s3://bucket/prefix``
    :param domain: domain of HSDS; created where it is missing, its folder is not
    :param dataset: path of the dataset in it; its groups are created where missing
    :param source_dataset: path of the dataset in the HDF5 file, where it differs
    :param layout: of Parquet: ``table`` makes compound elements, ``wide`` rows of columns of one type, ``array``
        takes the one column of lists
    :param gzip: level of compression in HSDS; 0 for none
    :param slab_bytes: bytes of a slab at the most
    :param workers: slabs that are on their way at a time
    :param clickhouse_conn_id: for ``storeside.runs``; None notes nothing there
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
        layout: str = "table",
        gzip: int = 0,
        slab_bytes: int = SLAB_BYTES,
        workers: int = 2,
        hsds_conn_id: str = "hsds_default",
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str | None = "clickhouse_default",
        **kwargs: Any,
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
        """Import what this run has not imported yet."""
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook

        from include.hsds.imports import Import, Importer

        with hsds_errors():
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
            s3: Any = S3Hook(aws_conn_id=self.aws_conn_id).get_conn() if self.source.startswith("s3://") else None
            self._running = Importer(HSDSHook(self.hsds_conn_id).client, s3, request, run_key(context))
            report = asdict(self._running.run())
        destination = f"hsds:/{self.domain}{self.dataset}"
        self.log.info(
            "%s -> %s: %d slabs, %d of them there before, %d elements, %.1f MB, %.1f s",
            self.source, destination, report["slabs"], report["present"], report["elements"],
            report["bytes_written"] / 1e6, report["seconds"],
        )  # fmt: skip
        record(self, self.clickhouse_conn_id, context, "import", self.source, destination, report, report["slabs"])
        return report

    def on_kill(self) -> None:
        """Stop behind the slabs that are on their way."""
        if self._running is not None:
            self._running.stop.set()


@contextmanager
def hsds_errors() -> Iterator[None]:
    """Turn the engine's errors into Airflow's: what cannot get better by itself is not retried."""
    from include.hsds.errors import RequestError, TransientError

    try:
        yield
    except TransientError as e:
        raise AirflowException(str(e)) from e
    except (RequestError, ValueError) as e:
        raise AirflowFailException(str(e)) from e


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
    """Write the run to ``storeside.runs``, where there is one, and tell of it."""
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
