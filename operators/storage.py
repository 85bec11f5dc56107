"""Operators that copy objects into a cluster or between endpoints, and measure the endpoints."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.operators.charts import chart_at
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.storage import backend, check_endpoint, connection_of, profile, store
from storeside.operators.links import BenchmarksPageLink
from storeside.operators.literals import check_literals, flag
from storeside.operators.movement import MovementOperator
from storeside.operators.outcome import check_policy, finish
from storeside.operators.shared import as_bool, as_list, as_number, clickhouse, ledger, plain, run_key, task_key
from storeside.operators.triggers.aistore import AISJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.copying.job import CopyJob
    from storeside.copying.prefetch import Missing, Prefetch
    from storeside.copying.store import Store
    from storeside.measure.tuner import Measurement

MIB = 1 << 20
# Maximum jobs per try of a prefetch; each must leave fewer missing objects than the one before.
ROUNDS = 3


class StorageCopyBucketOperator(MovementOperator):
    """Copies a bucket through the worker, in parallel ranges and parts; each object version is copied once.

    Use it if no service can copy between the two endpoints itself, such as from OCI's native API to AIStore or
    between S3 services of two providers. For buckets that AIStore can read, `AISCopyBucketOperator` copies without
    the worker.

    A retry continues a killed try: objects that were copied are not copied again, and unfinished uploads are aborted.
    Objects that fail are listed with their reasons in the log and in ``storeside.objects``. Returns the copy's
    `Summary` as a dictionary.

    :param source: bucket URI: ``s3://``, ``oci://`` or ``ais://``
    :param destination: bucket URI with one of the same schemes; a missing ``ais://`` bucket is created
    :param prefix: copy only objects whose names start with this
    :param prepend: prefix for the names of all objects at the destination
    :param on_failed_objects: ``fail`` the task when objects failed, or ``report`` them and succeed
    :param retry_failed: also try objects that failed for good in an earlier run
    :param multipart: ``threshold``, ``part_size`` and ``concurrency``; by default the values of the destination
        connection's extra ``multipart``, or those that the tuner found
    :param source_conn_id: by default the connection for the source's scheme, such as ``aws_default``
    :param destination_conn_id: by default the connection for the destination's scheme
    """

    template_fields: Sequence[str] = (
        "source",
        "destination",
        "prefix",
        "prepend",
        "on_failed_objects",
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
        on_failed_objects: str = "fail",
        retry_failed: bool | str = False,
        multipart: Mapping[str, Any] | None = None,
        source_conn_id: str | None = None,
        destination_conn_id: str | None = None,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
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
        from storeside.copying.ledger import CopyLedger

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
        return finish(self, context, self._job.ledger, "copy", summary, self.on_failed_objects, "copied", **told)

    def on_kill(self) -> None:
        """Stop, and abort uploads in progress."""
        if self._job is not None:
            self._job.stop.set()


class AISPrefetchBucketOperator(MovementOperator):
    """Has AIStore fetch a remote bucket's objects into the cluster, so later reads use the cluster's disks.

    The task is deferred meanwhile. Afterwards it compares the cluster with the backend and lists missing objects with
    their reasons. Objects that are already in the cluster are not fetched again.

    :param bucket: bucket URI of a remote bucket, such as ``s3://recordings``
    :param prefix: fetch only objects whose names start with this
    :param latest: also fetch objects that have changed in the backend
    :param on_failed_objects: ``fail`` the task when objects are still missing at the end, or ``report`` them and
        succeed
    :param workers: concurrent workers per target; 0 lets AIStore choose
    :param blob_threshold: minimum bytes of an object that AIStore fetches in parallel chunks; 0 means never
    :param stall_seconds: seconds without progress after which the job is aborted; the task then continues with what
        is missing
    """

    template_fields: Sequence[str] = ("bucket", "prefix", "latest", "on_failed_objects")
    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str = "",
        latest: bool | str = False,
        on_failed_objects: str = "fail",
        workers: int = 0,
        blob_threshold: int = 0,
        stall_seconds: float = 300,
        poll_interval: float = 1.0,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.prefix = prefix
        self.latest = latest
        self.on_failed_objects = on_failed_objects
        self.workers = workers
        self.blob_threshold = blob_threshold
        self.stall_seconds = stall_seconds
        self.poll_interval = poll_interval
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        check_literals(self, bucket=Bucket.parse, on_failed_objects=check_policy, latest=flag("latest"))

    def prefetch(self) -> Prefetch:
        """Return the engine's prefetch. Raises BadInput for a bucket that is not remote."""
        from storeside.copying.prefetch import Prefetch

        check_policy(self.on_failed_objects)
        return Prefetch(AIStoreHook(self.aistore_conn_id).get_conn(), Bucket.parse(self.bucket), self.prefix)

    def execute(self, context: Context) -> dict[str, Any]:
        """Look for missing objects, submit and defer; end at once when there is nothing to fetch."""
        with airflow_errors():
            prefetch = self.prefetch()
            prefetch.check()
            missing = prefetch.missing()
            self.log.info("%s: %d objects, %.1f MB to fetch", self.bucket, missing.objects, missing.bytes / 1e6)
            if not missing.objects and not as_bool(self.latest, "latest"):
                return self._finish(context, missing, missing, time.time())
        self._submit(prefetch, {"objects": missing.objects, "size": missing.bytes, "started": time.time()}, missing)

    def _submit(self, prefetch: Prefetch, begun: dict[str, Any], missing: Missing, rounds: int = 1) -> NoReturn:
        """Submit a job for the missing objects, and defer."""
        with airflow_errors():
            job_id = prefetch.submit(
                latest=as_bool(self.latest, "latest"), workers=self.workers, blob_threshold=self.blob_threshold
            )
        self.defer(
            trigger=AISJobTrigger(
                aistore_conn_id=self.aistore_conn_id,
                job_id=job_id,
                started=time.time(),
                total=missing.objects,
                poll_interval=self.poll_interval,
                stall_seconds=self.stall_seconds,
            ),
            method_name="resume",
            kwargs={**begun, "before": missing.objects, "rounds": rounds},
        )

    def resume(
        self,
        context: Context,
        event: dict[str, Any],
        objects: int,
        size: int,
        started: float,
        before: int = 0,
        rounds: int = ROUNDS,
    ) -> dict[str, Any]:
        """Compare the cluster with the backend after the job; submit another job if it may fetch more.

        `objects`, `size` and `started` are those of the first job; `before` objects were missing when the last of
        `rounds` was submitted.
        """
        from storeside.copying.prefetch import Missing

        self.log.info("job %s: %s", event["job_id"], event["progress"])
        with airflow_errors():
            prefetch = self.prefetch()
            left = prefetch.missing(reasons=True)
        begun = {"objects": objects, "size": size, "started": started}
        if self._may_come(event["error"], left):
            if left.objects < before and rounds < ROUNDS:
                self.log.info("%d objects are missing yet: trying these again", left.objects)
                self._submit(prefetch, begun, left, rounds + 1)
            raise AirflowException(self._told(event["error"], left))
        return self._finish(context, Missing(objects, size), left, started)

    def _may_come(self, error: str, left: Missing) -> bool:
        """Tell whether another job may fetch what this job, which ended with `error`, did not fetch."""
        unasked = left.objects > len(left.examples)
        return left.passing > 0 or (bool(error) and (unasked or as_bool(self.latest, "latest")))

    def _told(self, error: str, left: Missing) -> str:
        what = "what has changed there may not be fetched"
        if left.examples:
            name, reason = left.examples[0]
            what = f"{left.objects} objects are not fetched yet, such as {name!r}: {reason}"
        ended = f" (the job ended with: {error})" if error else ""
        return f"{self.bucket}: {what}{ended}. The others are in the cluster; a retry goes on with these"

    def _finish(self, context: Context, missing: Missing, left: Missing, started: float) -> dict[str, Any]:
        summary = {
            "source": self.bucket,
            "destination": self.bucket,
            "done": max(missing.objects - left.objects, 0),
            "failed": left.objects,
            "bytes_in": max(missing.bytes - left.bytes, 0),
            "seconds": round(time.time() - started, 3),
        }
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        state = "partial" if left.objects else "done"
        self.record_end(context, tables, {"kind": "prefetch", "state": state, "listed": missing.objects, **summary})
        for name, reason in left.examples:
            self.log.warning("not fetched: %r: %s", name, reason, object=name)
        if left.objects and self.on_failed_objects == "fail":
            raise AirflowFailException(
                f"{left.objects} objects of {self.bucket} were not fetched, such as {left.examples[0][0]!r}:"
                f" {left.examples[0][1]}. The others are in the cluster; clear this task to fetch the rest."
            )
        return {**summary, "examples": plain(left.examples)}


class StorageTuneOperator(BaseOperator):
    """Measures which transfer settings are fastest for an endpoint, by object size, and stores them for later copies.

    It writes objects below ``storeside-measurements/`` in the buckets and deletes them again. Returns its
    recommendations.

    :param backends: a list of ``<bucket URI>`` or ``<bucket URI>@<connection id>``, such as ``s3://data@oci_s3``
    :param seconds: maximum seconds to measure one direction of one backend
    :param megabytes: maximum megabytes moved for that
    """

    template_fields: Sequence[str] = ("backends", "seconds", "megabytes")
    ui_color = "#e6e1f4"
    operator_extra_links = (BenchmarksPageLink(),)

    def __init__(
        self,
        *,
        backends: Sequence[str] | str,
        seconds: float | str = 60,
        megabytes: int | str = 2048,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.backends = backends
        self.seconds = seconds
        self.megabytes = megabytes
        self.clickhouse_conn_id = clickhouse_conn_id
        self._stop: threading.Event | None = None

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Measure both directions and record the best settings."""
        from storeside.measure.tuner import DIRECTIONS, Recommendations, Tuner

        self._stop = threading.Event()
        found: list[tuple[Store, Measurement]] = []
        with airflow_errors():
            recommendations = Recommendations(clickhouse(self.clickhouse_conn_id))
            recommendations.create()
            for there in [backend(text) for text in as_list(self.backends)]:
                for direction in DIRECTIONS:
                    tuner = Tuner(
                        there,
                        seconds=as_number(self.seconds, "seconds", float),
                        most_bytes=as_number(self.megabytes, "megabytes", int) * MIB,
                        scope=task_key(context),
                        stop=self._stop,
                    )
                    measured = tuner.sweep(direction)
                    recommendations.record(there.endpoint, measured)
                    found += [(there, one) for one in measured]
        for there, one in found:
            self.log.info("%s: %s", there.endpoint, one)
        return [{"endpoint": there.endpoint, **plain(one.to_dict())} for there, one in found]

    def on_kill(self) -> None:
        """Stop; `execute` then deletes what it wrote."""
        if self._stop is not None:
            self._stop.set()


class StorageBenchmarkOperator(BaseOperator):
    """Compares backends, with the requests of the published comparison of OCI's APIs: `storeside.measure.backends`.

    It writes each measurement to ``storeside.backend_benchmark``, the medians to the log, and a chart of the medians
    to `chart`. Returns the medians.

    :param backends: a list of ``<bucket URI>`` or ``<bucket URI>@<connection id>``, such as ``s3://data@oci_s3``
    :param rounds: measurements per backend; the backends take turns
    :param megabytes: size of the object that is written
    :param chart: URL in object storage for the chart, a PNG file, such as ``s3://aws_default@reports/backends.png``;
        empty for none
    """

    template_fields: Sequence[str] = ("backends", "rounds", "megabytes", "chart")
    ui_color = "#e6e1f4"
    operator_extra_links = (BenchmarksPageLink(),)

    def __init__(
        self,
        *,
        backends: Sequence[str] | str,
        rounds: int | str = 3,
        megabytes: int | str = 64,
        chart: str = "",
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.backends = backends
        self.rounds = rounds
        self.megabytes = megabytes
        self.chart = chart
        self.clickhouse_conn_id = clickhouse_conn_id
        self._stop: threading.Event | None = None

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Measure, record and draw."""
        from storeside.measure.backends import Benchmark, draw, record, require_charts, table

        self._stop = threading.Event()
        with airflow_errors():
            chart = chart_at(self.chart, "png") if self.chart else None
            if chart:
                require_charts()
            stores = [backend(text) for text in as_list(self.backends)]
            benchmark = Benchmark(
                stores,
                rounds=as_number(self.rounds, "rounds", int),
                put_bytes=as_number(self.megabytes, "megabytes", int) * 1_000_000,
                scope=task_key(context),
                stop=self._stop,
            )
            results = benchmark.run()
            record(clickhouse(self.clickhouse_conn_id), run_key(context), results)
            self.log.info("medians of %s rounds, seconds:\n%s", self.rounds, table(results))
            if chart:
                with tempfile.NamedTemporaryFile(suffix=".png") as file:
                    draw(file.name, results)
                    chart.write_bytes(file.read())
        return [plain(result.to_dict()) for result in results]

    def on_kill(self) -> None:
        """Stop; `execute` then deletes what it wrote."""
        if self._stop is not None:
            self._stop.set()
