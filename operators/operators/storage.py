"""The operator that copies objects between endpoints through the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.selecting import SelectingArguments, SelectingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.storage import check_endpoint, connection_of, profile, store
from storeside.operators.movement import MovementOperator
from storeside.operators.outcome import check_policy, finish
from storeside.operators.shared import as_bool, clickhouse, run_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.copying.job import CopyJob
    from storeside.copying.multipart import PartSettings
    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class StorageCopyBucketOperator(MovementOperator, SelectingOperator):
    """Copies a bucket through the worker, in parallel ranges and parts; each object version is copied once.

    Use it if no service can copy between the two endpoints, such as from OCI's native API to AIStore or between S3
    services of two providers. For buckets that AIStore can read, use `AISCopyBucketOperator`, which moves no data
    through the worker.

    A retry continues a killed try: it aborts unfinished uploads and does not copy objects again. The log and
    ``storeside.objects`` list failed objects with their reasons. Returns the copy's `Summary` as a dictionary.

    :param source: bucket URI: ``s3://``, ``oci://`` or ``ais://``
    :param destination: bucket URI with one of the same schemes; a missing ``ais://`` bucket is created
    :param prefix: copy only objects whose names start with this
    :param prepend: prefix for the names of all objects at the destination
    :param on_failed_objects: ``fail`` the task when objects failed, now or for good in earlier runs, or ``report``
        them and succeed
    :param retry_failed: also try objects that failed for good in an earlier run
    :param multipart: ``threshold`` and ``part_size`` in bytes, and ``concurrency``; by default the values in the
        extra ``multipart`` of the destination's connection, otherwise the results of `StorageTuneOperator`
    :param source_conn_id: by default the connection for the source's scheme, such as ``aws_default``
    :param destination_conn_id: by default the connection for the destination's scheme
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = (
        "source",
        "destination",
        "prefix",
        "prepend",
        "on_failed_objects",
        "on_nothing",
        "retry_failed",
        "multipart",
        "source_conn_id",
        "destination_conn_id",
    )
    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        source: str,
        destination: str,
        prefix: str = "",
        prepend: str = "",
        on_failed_objects: OnFailed | Template = "fail",
        retry_failed: bool | str = False,
        multipart: PartSettings | None = None,
        source_conn_id: str | None = None,
        destination_conn_id: str | None = None,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[SelectingArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.prefix = prefix
        self.prepend = prepend
        self.on_failed_objects = on_failed_objects
        self.retry_failed = retry_failed
        self.multipart = multipart
        self.source_conn_id = source_conn_id
        self.destination_conn_id = destination_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._job: CopyJob | None = None
        check_literals(
            self, source=check_endpoint, destination=check_endpoint, on_failed_objects=check_policy,
            retry_failed=flag("retry_failed"),
        )  # fmt: skip

    def job(self, context: Context) -> CopyJob:
        """Build the engine's job from the rendered arguments. Raises BadInput for invalid arguments."""
        from storeside.copying.job import CopyJob
        from storeside.ledger.copies import CopyLedger

        check_policy(self.on_failed_objects)
        client = clickhouse(self.clickhouse_conn_id)
        connection = connection_of(self.destination, self.destination_conn_id or None)
        destination = store(self.destination, connection)
        return CopyJob(
            store(self.source, connection_of(self.source, self.source_conn_id or None)),
            destination,
            CopyLedger(client),
            run_id=run_key(context),
            profile=profile(client, destination, connection, self.multipart),
            prefix=self.prefix,
            prepend=self.prepend,
            retry_failed=as_bool(self.retry_failed, "retry_failed"),
            report=lambda progress: self.log.info("%s", progress),
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Copy, reconcile and report."""
        with airflow_errors():
            self._job = self.job(context)
            summary = self._job.run()
        told = {"source": self.source, "destination": self.destination}  # without the server
        result = finish(self, context, self._job.ledger, "copy", summary, self.on_failed_objects, "copied", **told)
        if not summary.listed:
            self.end_without(f"no object of {self.source} matches the prefix {self.prefix!r}")
        return result

    def on_kill(self) -> None:
        """Stop the copy, which then aborts its open uploads."""
        if self._job is not None:
            self._job.stop.set()
