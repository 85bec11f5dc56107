"""Operators that load objects from S3 into ClickHouse, each version of an object exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import BaseHook

from storeside.operators.arguments import check_instant, check_literals, literal_errors
from storeside.operators.bases.load import LoadArguments, LoadOperator
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import (
    catalog,
    clickhouse_client,
    folder_in_catalog,
    ledger_client,
    ledger_connection,
    other_servers,
    s3_client,
)
from storeside.operators.outcome import (
    fail_for_objects,
    known_detail,
    log_load,
    log_preview,
    with_short_verdict,
)
from storeside.operators.shared import as_bool, ledger, plain, run_columns, run_key
from storeside.transfer.base.errors import ExpectationsError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.source import Source, in_aistore, in_catalogue, place_of, table_of, unmatched

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

    from storeside.transfer.request.options import OnFailedExpectations
    from storeside.transfer.request.template import Template
    from storeside.transfer.run.engine import Prepared


class S3ToClickHouseOperator(LoadOperator):
    """Loads new objects of an S3 or AIStore bucket into a table.

    Objects are Parquet, CSV, JSON Lines, Avro, ORC, Arrow, Protobuf or MsgPack; text may be compressed.

    ClickHouse reads the objects itself (*pull*) while the task is deferred; if ClickHouse cannot reach them, the
    worker streams them (*push*). A task with up to 100 objects of
    8 MiB in total is not deferred, because a deferral would take longer than the load. A task that is killed and
    retried, cleared or run again loads nothing twice: ``storeside.loads`` records the outcome of each object version.
    When the task is killed or cleared, it stops its queries. Returns the engine's `Report` as a dictionary.

    With ``{table}`` in the keys and in `table`, each object goes into the table that its key names, and the task
    returns the engine's `TablesReport` as a dictionary, see docs/transfer/many-tables.md.

    :param source: URI of bucket and keys, instead of `bucket` and `keys`: ``s3://trips/2026/{01..06}/**.csv.gz``, or
        ``ais://results/2026/`` for a bucket of AIStore, or ``iceberg://lakehouse/sales.orders`` for an Iceberg table
        in the catalogue of the connection ``lakehouse``, see docs/transfer/snapshots.md
    :param bucket: bucket, without ``s3://``
    :param aistore_conn_id: connection to AIStore for an ``ais://`` source, whose user may list and read the bucket
    :param all_or_nothing: publish all objects of the run in one step, or none of them
    :param retry_failed: also try objects that failed for good in earlier runs
    :param suite: Great Expectations suite that checks the rows before they are published:
        ``package.module:function``, the path of a YAML or JSON file, or the content of such a file as a mapping.
        Write it in the DAG, or let a form choose from a list (``form_choices("suite")``), because the function's
        module is imported. The task does not defer
    :param on_failed_expectations: if rows break expectations of severity critical: ``fail`` the task and publish
        nothing, or ``quarantine`` these rows in ``<table>_quarantine`` and publish the others
    :param overlap_seconds: for keys that grow with time: list only keys after those that were loaded more than this
        many seconds before the newest one. None lists the whole bucket or prefix
    :param modified_after: load only objects that were last modified at this instant or later, such as
        ``2026-01-01T00:00:00Z``
    :param inventory: URI of a folder of S3 Inventory, such as ``s3://inventories/trips/daily/``, or of a manifest:
        the task reads the newest inventory instead of listing the bucket, and loads no newer objects
    :param snapshot: with `format` ``iceberg`` or ``delta``: the snapshot to load instead of the current one: an
        Iceberg snapshot's id, the URI of an Iceberg metadata file (``metadata_location`` of a catalog), or a version
    :param remove_deleted: remove the rows of objects that the bucket no longer has, if they are at most this share of
        the loaded ones, such as ``5 %``. If more are gone, the task fails and removes none
    :param replace_partition: replace the table's partition of this value by the rows of the objects that the keys
        select, in one step, such as ``{{ ds }}``
    :param after_load: `AfterLoad`: delete, move or tag objects after their load; without it they stay as they are
    :param plan_only: load nothing: log and return what would be loaded, the statements for the table, and the first
        rows, see docs/preview.md. Returns the engine's `Preview` as a dictionary. The task does not defer
    """

    template_fields = (
        *LoadOperator.template_fields, "source", "retry_failed", "suite", "on_failed_expectations", "after_load",
        "modified_after", "inventory", "snapshot", "remove_deleted", "replace_partition",
        "plan_only",
    )  # fmt: skip
    ui_color = "#fff4c2"

    def __init__(
        self,
        *,
        source: str = "",
        bucket: str = "",
        all_or_nothing: bool = False,
        retry_failed: bool | str = False,
        suite: str | Mapping[str, object] = "",
        on_failed_expectations: OnFailedExpectations | Template = "fail",
        overlap_seconds: float | None = None,
        remove_deleted: str = "",
        replace_partition: str = "",
        after_load: AfterLoad | None = None,
        modified_after: str = "",
        inventory: str = "",
        snapshot: str = "",
        plan_only: bool | str = False,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        **kwargs: Unpack[LoadArguments],
    ) -> None:
        super().__init__(bucket=bucket, **kwargs)
        self.source = source
        self.aistore_conn_id = aistore_conn_id
        self.all_or_nothing = all_or_nothing
        self.retry_failed = retry_failed
        self.suite: str | Mapping[str, object] = suite
        self.on_failed_expectations = on_failed_expectations
        self.overlap_seconds = overlap_seconds
        self.remove_deleted = remove_deleted
        self.replace_partition = replace_partition
        self.after_load = after_load or AfterLoad()
        self.modified_after = modified_after
        self.inventory = inventory
        self.snapshot = snapshot
        self.plan_only = plan_only
        with literal_errors(self):
            if bool(source) == bool(bucket or self.keys):
                raise OperatorInputError("source: set it, or bucket and keys, but not both")
        check_literals(
            self,
            source=lambda uri: table_of(uri) if in_catalogue(uri) else Source(*place_of(uri)),
            suite=lambda name: Expectations(name).check(),
            after_load=lambda options: options.check(),
            modified_after=check_instant,
            plan_only=lambda chosen: as_bool(chosen, "plan_only"),
            inventory=lambda uri: Source("bucket", inventory=uri),
            on_failed_expectations=lambda policy: Expectations(on_failed=policy).check(),
        )

    def place(self) -> tuple[str, str]:
        """Return the source's bucket and keys as the engine takes them. Raises BadInput if they are invalid.

        For a table in a catalogue, this is the table's folder. Raises Transient if the catalogue does not answer.
        """
        if in_catalogue(self.source):
            return folder_in_catalog(self.source, BaseHook.get_connection(self.aws_conn_id))
        return place_of(self.source) if self.source else super().place()

    @property
    def origin(self) -> str:
        """The URI of the source, for the log, the pages and assets: for a table in a catalogue, that URI."""
        return self.source if in_catalogue(self.source) else super().origin

    def execute(self, context: Context) -> dict[str, Any]:
        """List and plan; defer while ClickHouse pulls, unless the load is brief, or push from the worker."""
        started = time.time()
        with airflow_errors():
            given = self._given()
            if as_bool(self.plan_only, "plan_only"):
                return self._preview(*given)
            if given[0].names_tables:
                return self._load_tables(context, given[:5])
            prepared = self._planned(context, given)
            request = given[0]
            if prepared.planned:
                self._loader = "push" if prepared.push else "pull"
                self._record_running(
                    context, "load", started, self._transfer.request.table, objects=prepared.planned,
                    bytes=prepared.bytes,
                )  # fmt: skip
            # A triggerer has neither the suite's file nor its module, and does not know which rows are deleted.
            stays = prepared.push or prepared.is_brief or prepared.is_edited or self.suite
            if prepared.planned and self.deferrable and not stays:
                from storeside.operators.triggers.clickhouse import S3ToClickHouseTrigger

                trigger = S3ToClickHouseTrigger(
                    request.to_dict(), asdict(prepared), run_key(context), started,
                    self.aws_conn_id, self.clickhouse_conn_id, self.aistore_conn_id,
                )  # fmt: skip
                self.defer(trigger=trigger, method_name="finish")
            try:
                report = self._transfer.run(prepared)
            except ExpectationsError as e:
                ledger(self.clickhouse_conn_id).record_run({
                    **run_columns(context), "kind": "load", "state": "failed", "source": self.origin,
                    "destination": f"clickhouse://{self.table}", "listed": prepared.listed,
                    "skipped": prepared.listed - prepared.planned, "failed": prepared.planned,
                    "seconds": time.time() - started, "detail": json.dumps({"verdict": e.verdict}),
                })  # fmt: skip
                raise
        return self._report(context, asdict(report))

    def is_idle(self, context: Context) -> bool:
        """Return whether no object has to be loaded; record it then. See `Foreseeing`.

        A task that would fail, or end as `on_nothing` says, has something to do.
        """
        if as_bool(self.plan_only, "plan_only"):
            return False
        with airflow_errors():
            given = self._given()
            if given[0].names_tables:
                return False
            prepared = self._planned(context, given)
            if prepared.planned or not (prepared.listed or self.on_nothing == "succeed"):
                return False
            report = asdict(self._transfer.run(prepared))
        if report["known_bad"] and self.on_failed_objects == "fail":
            return False
        self._report(context, report)
        return True

    def _given(self) -> tuple[Any, ...]:
        """Return the request, and the clients and servers for the engine, of the rendered arguments."""
        clickhouse = self._connection()
        is_named = in_catalogue(self.source)
        aistore = None if is_named or not in_aistore(self.place()[0]) else AIStoreHook(self.aistore_conn_id)
        aws = None if aistore else BaseHook.get_connection(self.aws_conn_id)
        request = self.request(
            aws,
            {
                **{name: str(getattr(self, name)) for name in ("modified_after", "inventory", "snapshot")},
                "catalogued": self.source if is_named else "",
            },
            aistore=aistore,
            all_or_nothing=self.all_or_nothing,
            retry_failed=as_bool(self.retry_failed, "retry_failed"),
            overlap_seconds=self.overlap_seconds,
            remove_deleted=self.remove_deleted,
            replace_partition=self.replace_partition,
            expectations=self._expectations(),
            after_load=self.after_load,
        )
        reader = s3_client(aws) if aws else AIStoreHook(self.aistore_conn_id).get_conn()
        client = clickhouse_client(clickhouse)
        own_tables = ledger_client(ledger_connection(clickhouse), clickhouse)
        tables = catalog(self.source, aws) if aws and is_named else None
        return request, client, reader, own_tables, other_servers(clickhouse), tables

    def _expectations(self) -> Expectations:
        """Return the check of the rows."""
        return Expectations(self.suite, self.on_failed_expectations)

    def _connection(self) -> Connection:
        """Return the connection of the user that loads."""
        return BaseHook.get_connection(self.clickhouse_conn_id)

    def _planned(self, context: Context, given: tuple[Any, ...]) -> Prepared:
        from storeside.transfer.run.engine import Transfer

        request, client, reader, own_tables, servers, tables = given
        self._transfer = Transfer(
            request, client, reader, run_key(context), ledger=own_tables, servers=servers, catalog=tables
        )
        prepared: Prepared = self._transfer.prepare()
        return prepared

    def _preview(self, *arguments: Any) -> dict[str, Any]:
        """Log and return what a load would do; `arguments` are those of `Previewing`."""
        from storeside.transfer.run.preview import Previewing

        self._transfer = previewing = Previewing(*arguments)
        return log_preview(self.log, previewing.run())

    def _report(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        verdict = report.get("verdict")
        detail = {name: report[name] for name in ("rows", "rejected", "filtered", "handled", "left")}
        detail |= {**known_detail(report), "loader": self._loader, **({"verdict": verdict} if verdict else {})}
        if report["snapshot"]:
            detail["snapshot"] = report["snapshot"]
        if report["snapshot"] or self.remove_deleted or self.replace_partition:
            detail["removed"] = report["removed"]
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        row = {
            "kind": "load", "source": self.origin, "destination": f"clickhouse://{self.table}",
            "state": "partial" if report["failed"] or report["known_bad"] else "done", "listed": report["listed"],
            "skipped": report["skipped"], "done": report["loaded"], "failed": report["failed"],
            "bytes_in": report["bytes"], "seconds": report["seconds"], "detail": json.dumps(detail),
        }  # fmt: skip
        self.record_end(context, tables, row, rows=report["rows"], rejected=report["rejected"])
        log_load(self.log, self.origin, self.table, report)
        if self.on_failed_objects == "fail":
            fail_for_objects(report, run_key(context))
        # an earlier try may have deleted or moved all objects that it loaded
        if not (report["listed"] or report["loaded"] or report["handled"]):
            self.end_without(unmatched(self.origin))
        return dict(plain(with_short_verdict(report)))
