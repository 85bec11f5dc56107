"""Base class of the operators that load objects of S3 into ClickHouse, and their arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Required

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.operators.arguments import check_load, check_s3_bucket
from storeside.operators.bases.deferring import WaitingArguments, WaitingOperator
from storeside.operators.bases.deprecated import FlatArguments, FlatLoadArguments
from storeside.operators.bases.selecting import SelectingArguments, SelectingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import source
from storeside.operators.outcome import TableRuns, check_policy, fail_for_tables, transfer_of
from storeside.operators.shared import as_object, ledger, plain, record_running, run_columns, run_key
from storeside.transfer.request.options import Batches, LoadLimits
from storeside.transfer.request.source import unmatched, uri_of
from storeside.transfer.request.upsert import Upsert

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.named_options import NamedOptions
    from storeside.transfer.request.options import ReadOptions, TableOptions
    from storeside.transfer.request.request import (
        Loader,
        LoadFormat,
        OnBadRows,
        OnDrift,
        OnOverwrite,
        Request,
    )
    from storeside.transfer.request.template import Template


class LoadArguments(WaitingArguments, SelectingArguments, FlatArguments, total=False):
    """Arguments of the operators that load into ClickHouse."""

    table: Required[str]
    """``database.table``; a missing table is created from the inferred columns"""
    keys: str
    """prefix, or a pattern with ``*``, ``**``, ``?``, ``{a,b}``, ``{0..9}``"""
    format: LoadFormat | Template
    """``auto``, ``parquet``, ``csv``, ``tsv``, ``jsonl``, ``avro``, ``orc``, ``arrow``, ``arrowstream``,
    ``protobuf``, ``protobufsingle``, ``protobuflist`` or ``msgpack``; in `S3ToClickHouseOperator` also ``iceberg`` or
    ``delta`` for a table in S3, with the table's folder as `keys`, see docs/transfer/snapshots.md
    """
    loader: Loader | Template
    """``auto``, ``pull`` or ``push``"""
    on_drift: OnDrift | Template
    """if an object's columns differ from the table's: ``fail`` the object, ``add`` new columns, ``widen`` types too,
    or store unknown columns in ``_rest`` (``rest``)
    """
    on_bad_rows: OnBadRows | Template
    """if rows cannot be parsed: ``fail`` the object, ``skip`` and count the rows, or ``keep`` them in
    ``<table>_rejected``
    """
    on_overwrite: OnOverwrite | Template
    """if an object was overwritten: ``append`` the new rows, or ``replace`` the rows of the earlier version"""
    on_failed_objects: OnFailed | Template
    """if objects cannot be loaded: ``fail`` the task, or ``report`` them and succeed; the other objects are loaded in
    both cases
    """
    read: ReadOptions | None
    """`ReadOptions`: the CSV dialect, nested JSON, NULLs in lists, strict JSON, samples, columns"""
    table_options: TableOptions | None
    """`TableOptions`: how a new table is created, types of columns, system columns"""
    batch_bytes: int
    """bytes of objects in one batch, which is loaded and published together"""
    upsert: Upsert | None
    """`Upsert`: the rows are changes, and the row with the highest version of a key counts, see
    docs/transfer/upsert.md
    """
    limits: LoadLimits | None
    """`LoadLimits`: limits for a single object; an object that exceeds one fails, and the others are loaded"""
    options: NamedOptions | str | None
    """options by name, such as ``{"csv.quote": "'"}``, which replace those of the other arguments; for forms, see
    docs/transfer/arguments.md
    """
    aws_conn_id: str
    """connection to S3. Its extras describe S3 to ClickHouse: ``clickhouse_collection`` is a named collection with
    the endpoint and its keys, ``clickhouse_endpoint`` is the endpoint if it differs from the worker's. Without a
    collection ClickHouse uses its own environment or role. With ``clickhouse_cluster`` all replicas of that cluster
    read. For roles, public buckets and requester pays see docs/transfer/clusters.md
    """
    clickhouse_conn_id: str
    """connection to ClickHouse"""


class LoadOperator(FlatLoadArguments, WaitingOperator, SelectingOperator):
    """Base class of the operators that load into ClickHouse: common arguments and the end of the task."""

    template_fields: Sequence[str] = (
        "bucket",
        "keys",
        "table",
        "format",
        "loader",
        "on_drift",
        "on_bad_rows",
        "on_overwrite",
        "on_failed_objects",
        "on_nothing",
        "read",
        "table_options",
        "upsert",
        "options",
    )

    def __init__(
        self,
        *,
        bucket: str,
        table: str,
        keys: str = "",
        format: LoadFormat | Template = "auto",
        loader: Loader | Template = "auto",
        on_drift: OnDrift | Template = "fail",
        on_bad_rows: OnBadRows | Template = "fail",
        on_overwrite: OnOverwrite | Template = "append",
        on_failed_objects: OnFailed | Template = "fail",
        read: ReadOptions | None = None,
        table_options: TableOptions | None = None,
        upsert: Upsert | None = None,
        batch_bytes: int = 1 << 30,
        limits: LoadLimits | None = None,
        options: NamedOptions | str | None = None,
        aws_conn_id: str = "aws_default",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(read=read, table_options=table_options, **kwargs)
        self.bucket = bucket
        self.keys = keys
        self.table = table
        self.format = format
        self.loader = loader
        self.on_drift = on_drift
        self.on_bad_rows = on_bad_rows
        self.on_overwrite = on_overwrite
        self.on_failed_objects = on_failed_objects
        self.upsert = upsert or Upsert()
        self.batch_bytes = batch_bytes
        self.limits = limits or LoadLimits()
        self.options = options or {}
        self.aws_conn_id = aws_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._transfer: Any = None
        self._creates_database = True
        self._fault: Callable[[str, str], str] | None = None
        self._loader = "pull"
        check_load(self)

    def pre_execute(self, context: Context) -> None:
        """Check the run's parameters, and whether the load may create a database. Raises AirflowFailException."""
        super().pre_execute(context)
        with airflow_errors():
            self._fault = self.checked_form.fault
            self._creates_database = self.checked_form.may_create_database(self.table)
            self.checked_form.check_limits({"read.": self.read, "batches.": self._batches(), "limits.": self.limits})

    def _batches(self) -> Batches:
        return Batches(bytes=self.batch_bytes)

    def place(self) -> tuple[str, str]:
        """Return the source's bucket and keys as the engine takes them. Raises BadInput if they are invalid."""
        check_s3_bucket(self.bucket)
        return self.bucket, self.keys

    def request_type(self) -> type[Request]:
        """Return the class of the request."""
        from storeside.transfer.request.request import Request

        return Request

    @property
    def origin(self) -> str:
        """The URI of the source, for the log, the pages and assets."""
        return uri_of(*self.place())

    def request(
        self, aws: Connection | None, of_source: Mapping[str, Any] | None = None, aistore: AIStoreHook | None = None,
        **more: Any,
    ) -> Request:  # fmt: skip
        """Return the engine's request for the rendered arguments; `more` adds fields, `of_source` to its source.

        `aws` is the connection to S3, or None for a source in AIStore, whose hook is `aistore`.

        Raises:
            BadInput: the arguments are invalid.
        """
        from storeside.transfer.request.named_options import with_options
        from storeside.transfer.request.request import CHOICES

        check_policy(self.on_failed_objects)
        request = self.request_type()(
            replace(source(aws, *self.place(), aistore), **(of_source or {})),
            self.table,
            **{name: getattr(self, name) for name in CHOICES},
            read=self.read,
            table_options=replace(self.table_options, upsert=self.upsert or self.table_options.upsert),
            batches=self._batches(),
            limits=self.limits,
            create_database=self._creates_database,
            **more,
        )
        return with_options(request, as_object(self.options, "options"))

    def _load_tables(self, context: Context, given: tuple[Any, ...]) -> dict[str, Any]:
        """Load the tables that keys name, and return the totals; `given` is the request with clients for it."""
        started = time.time()
        fault = self._fault
        self._transfer = transfer_of(given, run_key(context), lambda table: fault(self.table, table) if fault else "")
        self._record_running(context, "load", started, self.table)
        runs = TableRuns(ledger(self.clickhouse_conn_id), run_columns(context))
        try:
            report = self._transfer.run(runs.add)
        finally:
            runs.flush()
        self.record_end(
            context, runs.ledger, runs.rest(self.origin, self.table, report), rows=report.rows,
            rejected=report.rejected, listed=report.listed, skipped=report.skipped, done=report.loaded,
            failed=report.failed, bytes_in=report.bytes,
        )  # fmt: skip
        runs.log(self.log, report)
        fail_for_tables(report, run_key(context), must_be_complete=self.on_failed_objects == "fail")
        if not report.listed:
            self.end_without(unmatched(self.origin))
        return dict(plain(asdict(report)))

    def finish(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Report the result in the trigger's event.

        Raises AirflowException if the event has an error that a retry may cure, otherwise AirflowFailException.
        """
        if "error" in event:
            raise (AirflowException if event["again"] else AirflowFailException)(event["error"])
        return self._report(context, event["report"])

    def _report(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        """Record, log and return the result of the load.

        Raises AirflowFailException when objects failed and `on_failed_objects` is ``fail``.
        """
        raise NotImplementedError

    def on_kill(self) -> None:
        """Kill the queries of a transfer that runs in the worker."""
        if self._transfer is not None:
            self._transfer.cancel()

    def _record_running(self, context: Context, kind: str, started: float, table: str, **totals: int) -> None:
        """Record in ``storeside.runs`` that the task is running; `totals` are those of the plan if it exists."""
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        destination = f"clickhouse://{table}"
        record_running(tables, context, kind, self.origin, destination, started=started, **totals)
