"""Operators that have ClickHouse load objects from S3, each version of each exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from operators.hooks.transfer import clients, source
from operators.movement import MovementOperator
from operators.outcome import check_policy
from operators.shared import as_bool, ledger, record_running, run_key, transfer_errors
from operators.triggers.clickhouse import S3ToClickHouseTrigger

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

    from include.transfer.engine import Prepared
    from include.transfer.request import Request


class S3ToClickHouseOperator(MovementOperator):
    """Loads the objects of an S3 bucket that are not loaded yet: Parquet, CSV or JSON Lines, compressed or not.

    ClickHouse reads the objects itself (*pull*) while the task is deferred; where it cannot reach them the worker
    streams them (*push*). A task that is killed and retried, cleared or run again loads nothing twice: what happened
    to each version of each object stands in ``storeside.loads``. A killed or cleared task stops its queries.
    Returns the engine's `Report` as a dictionary.

    :param bucket: bucket, without ``s3://``
    :param keys: prefix, or a pattern with ``*``, ``**``, ``?``, ``{a,b}``, ``{0..9}``
    :param table: ``database.table``; made from the deduced columns where it is missing
    :param format: ``auto``, ``parquet``, ``csv`` or ``jsonl``
    :param csv: options of the CSV dialect, see `include.transfer.formats.Csv`
    :param loader: ``auto``, ``pull`` or ``push``
    :param columns: ClickHouse types by column, which win over the deduced ones
    :param sample_objects: of so many objects the columns of a new table are deduced, and the format
    :param sample_bytes: of a text object, so many bytes are looked at for that
    :param order_by: ORDER BY of a new table, such as ``(city, taken_at)``
    :param partition_by: PARTITION BY of a new table
    :param ttl: TTL of a new table
    :param engine: engine of a new table: ``MergeTree`` or ``ReplacingMergeTree``, also replicated
    :param system_columns: of ``_object``, ``_row_number``, ``_version``, ``_loaded_at``
    :param on_null_nested: what happens to an object with a list, map or struct that is NULL where its column cannot
        be: ``refuse`` fails it, ``empty`` makes it ``[]``, ``{}`` or a tuple of NULLs
    :param nested: what JSON objects within JSON Lines become: ``tuple``, ``json`` or ``string``
    :param strict_json: check JSON Lines against RFC 8259, which ClickHouse's own parser does not do
    :param on_drift: objects with other columns: ``fail``, ``add``, ``widen`` or ``rest``
    :param on_bad_rows: rows that cannot be parsed: ``fail`` the object, ``skip`` or ``keep`` them
    :param max_bad_rows: of one object; over that it fails
    :param on_overwrite: rows of an earlier version: ``append`` beside them, or ``replace`` them
    :param all_or_nothing: readers see all objects of the run or none
    :param retry_failed: try objects again that failed for good in earlier runs
    :param overlap_seconds: where keys grow with time, list only those after what was loaded this long before the
        newest; without it everything is listed
    :param batch_bytes: bytes of objects that are loaded and published at once
    :param on_failed_objects: whether the task fails when objects cannot be loaded; the others are loaded either way
    :param aws_conn_id: its extras may name, for ClickHouse, the ``clickhouse_collection`` (a named collection with
        the endpoint and its keys) or the ``clickhouse_endpoint`` where that differs; without a collection it uses
        ClickHouse's own environment or role; with ``clickhouse_cluster`` all replicas of that cluster read
    """

    template_fields: Sequence[str] = (
        "bucket",
        "keys",
        "table",
        "format",
        "csv",
        "loader",
        "order_by",
        "partition_by",
        "on_drift",
        "on_bad_rows",
        "on_overwrite",
        "retry_failed",
        "on_failed_objects",
    )
    ui_color = "#fff4c2"

    def __init__(
        self,
        *,
        bucket: str,
        table: str,
        keys: str = "",
        format: str = "auto",
        csv: Mapping[str, Any] | None = None,
        loader: str = "auto",
        columns: Mapping[str, str] | None = None,
        sample_objects: int = 5,
        sample_bytes: int = 1 << 18,
        order_by: str = "tuple()",
        partition_by: str = "",
        ttl: str = "",
        engine: str = "MergeTree",
        system_columns: Sequence[str] = (),
        nested: str = "tuple",
        on_null_nested: str = "refuse",
        strict_json: bool = True,
        on_drift: str = "fail",
        on_bad_rows: str = "fail",
        max_bad_rows: int = 1000,
        on_overwrite: str = "append",
        all_or_nothing: bool = False,
        retry_failed: bool | str = False,
        overlap_seconds: float | None = None,
        batch_bytes: int = 1 << 30,
        on_failed_objects: str = "fail",
        deferrable: bool = True,
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.keys = keys
        self.table = table
        self.format = format
        self.csv = csv
        self.loader = loader
        self.columns = columns
        self.sample_objects = sample_objects
        self.sample_bytes = sample_bytes
        self.order_by = order_by
        self.partition_by = partition_by
        self.ttl = ttl
        self.engine = engine
        self.system_columns = system_columns
        self.nested = nested
        self.on_null_nested = on_null_nested
        self.strict_json = strict_json
        self.on_drift = on_drift
        self.on_bad_rows = on_bad_rows
        self.max_bad_rows = max_bad_rows
        self.on_overwrite = on_overwrite
        self.all_or_nothing = all_or_nothing
        self.retry_failed = retry_failed
        self.overlap_seconds = overlap_seconds
        self.batch_bytes = batch_bytes
        self.on_failed_objects = on_failed_objects
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._transfer: Any = None
        self._loader = "pull"

    def request(self, aws: Connection) -> Request:
        """Return the engine's request for the rendered arguments.

        Raises:
            UsageError, ValueError: the arguments make none.
        """
        from include.transfer.formats import Csv
        from include.transfer.request import Request
        from include.transfer.table import Layout

        check_policy(self.on_failed_objects)
        return Request(
            source(aws, self.bucket, self.keys),
            self.table,
            format=self.format,
            csv=Csv(**self.csv or {}),
            loader=self.loader,
            layout=Layout(self.engine, self.order_by, self.partition_by, self.ttl),
            columns=dict(self.columns or {}),
            system_columns=tuple(self.system_columns),
            nested=self.nested,
            on_null_nested=self.on_null_nested,
            strict_json=self.strict_json,
            on_drift=self.on_drift,
            on_bad_rows=self.on_bad_rows,
            max_bad_rows=self.max_bad_rows,
            on_overwrite=self.on_overwrite,
            all_or_nothing=self.all_or_nothing,
            retry_failed=as_bool(self.retry_failed, "retry_failed"),
            overlap_seconds=self.overlap_seconds,
            sample_objects=self.sample_objects,
            sample_bytes=self.sample_bytes,
            batch_bytes=self.batch_bytes,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """List and plan; defer while ClickHouse pulls, or push from here."""
        from include.transfer.engine import Transfer

        started = time.time()
        aws = BaseHook.get_connection(self.aws_conn_id)
        clickhouse = BaseHook.get_connection(self.clickhouse_conn_id)
        with transfer_errors():
            request = self.request(aws)
            self._transfer = Transfer(request, *clients(aws, clickhouse), run_key(context))
            prepared = self._transfer.prepare()
            if prepared.planned:
                self._loader = "push" if prepared.push else "pull"
                self._record_running(context, "load", started, self._transfer.request.table, prepared)
            if prepared.planned and self.deferrable and not prepared.push:
                self.defer(
                    trigger=S3ToClickHouseTrigger(
                        request.to_dict(),
                        asdict(prepared),
                        run_key(context),
                        started,
                        self.aws_conn_id,
                        self.clickhouse_conn_id,
                    ),
                    method_name="finish",
                )
            report = self._transfer.run(prepared)
        return self._report(context, asdict(report))

    def finish(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the trigger's report."""
        if "error" in event:
            raise (AirflowException if event["again"] else AirflowFailException)(event["error"])
        return self._report(context, event["report"])

    def on_kill(self) -> None:
        """Kill the queries of a transfer that runs in the worker."""
        if self._transfer is not None:
            self._transfer.cancel()

    def _record_running(
        self, context: Context, kind: str, started: float, table: str, prepared: Prepared | None = None
    ) -> None:
        """Record that the task is under way; `prepared` has its totals, where they are known before."""
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        totals = {"objects": prepared.planned, "bytes": prepared.bytes} if prepared else {}
        source, destination = f"s3://{self.bucket}/{self.keys}", f"clickhouse://{table}"
        record_running(tables, context, kind, source, destination, started=started, **totals)

    def _report(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        failures = report["failures"]
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        self.record_end(
            context,
            tables,
            {
                "kind": "load",
                "source": f"s3://{self.bucket}/{self.keys}",
                "destination": f"clickhouse://{self.table}",
                "state": "partial" if report["failed"] else "done",
                "listed": report["listed"],
                "skipped": report["skipped"],
                "done": report["loaded"],
                "failed": report["failed"],
                "bytes_in": report["bytes"],
                "seconds": report["seconds"],
                "detail": json.dumps(
                    {"rows": report["rows"], "rejected": report["rejected"], "loader": self._loader}
                ),
            },
            rows=report["rows"],
            rejected=report["rejected"],
        )
        rate = report["rows"] / report["seconds"] if report["seconds"] else 0
        self.log.info(
            "s3://%s/%s -> %s: %d objects loaded, %d failed, %d loaded before; %d rows (%d rejected), %.1f MB,"
            " %.1f s, %d rows/s",
            self.bucket, self.keys, self.table, report["loaded"], report["failed"], report["skipped"], report["rows"],
            report["rejected"], report["bytes"] / 1e6, report["seconds"], rate,
        )  # fmt: skip
        for key, reason in failures:
            self.log.warning("failed: %r: %s", key, reason, object=key)
        if report["failed"] and self.on_failed_objects == "fail":
            key, reason = failures[0]
            tried = report["loaded"] + report["failed"]
            others = "The others are loaded; clear" if report["loaded"] else "Clear"
            raise AirflowFailException(
                f"{report['failed']} of {tried} objects failed, such as {key!r}: {reason}."
                " All of them: SELECT key, reason FROM storeside.loads FINAL WHERE state = 'failed' AND run_id ="
                f" '{run_key(context)}'. {others} this task to try the failed ones again."
            )
        return report
