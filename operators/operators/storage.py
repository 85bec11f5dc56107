"""Operators that copy objects between endpoints through the worker, and measure the endpoints."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.charts import ChartArguments, ChartOperator, chart_at
from storeside.operators.bases.selecting import SelectingArguments, SelectingOperator
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.storage import backend, check_endpoint, connection_of, profile, store, through
from storeside.operators.links import BenchmarksPageLink
from storeside.operators.movement import MovementOperator
from storeside.operators.outcome import check_policy, finish
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import as_bool, as_list, as_number, clickhouse, plain, run_key, task_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.copying.job import CopyJob
    from storeside.copying.multipart import PartSettings
    from storeside.copying.store import Store
    from storeside.measure.tuner import Measurement
    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template

MIB = 1 << 20


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


class StorageTuneOperator(FormOperator):
    """Measures the fastest transfer settings of each endpoint by object size, and stores them for later copies.

    The task writes objects below ``storeside-measurements/`` in the buckets and deletes them afterwards. Returns its
    recommendations. For ``oci://`` buckets, the log also has the variables (``OCI_MAX_UPLOAD_SEGMENT_SIZE`` and
    others) with which AIStore's targets use the same parts.

    :param backends: a list of ``<bucket URI>`` or ``<bucket URI>@<connection id>``, such as ``s3://data@oci_s3``
    :param seconds: maximum seconds for one direction of one backend
    :param megabytes: maximum MiB to move for one direction of one backend
    :param clickhouse_conn_id: connection to ClickHouse
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
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.backends = backends
        self.seconds = seconds
        self.megabytes = megabytes
        self.clickhouse_conn_id = clickhouse_conn_id
        self._stop: threading.Event | None = None

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Measure both directions of each backend, record and return the best settings."""
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
        self._recommend_to_aistore(found)
        return [{"endpoint": there.endpoint, **plain(one.to_dict())} for there, one in found]

    def _recommend_to_aistore(self, found: Sequence[tuple[Store, Measurement]]) -> None:
        """Log the variables with which AIStore's targets reach OCI's endpoints as fast as the worker did."""
        from storeside.measure.oci_settings import is_oci, targets_environment

        for endpoint in dict.fromkeys(there.endpoint for there, _ in found if is_oci(there.endpoint)):
            variables = targets_environment([one for there, one in found if there.endpoint == endpoint])
            if variables:
                text = " ".join(f"{name}={value}" for name, value in variables.items())
                self.log.info("%s: for AIStore's targets, set %s and restart them", endpoint, text)
            else:
                self.log.info("%s: AIStore's own settings suit the measured sizes", endpoint)

    def on_kill(self) -> None:
        """Stop the measurement; `execute` then deletes its objects."""
        if self._stop is not None:
            self._stop.set()


class StorageBenchmarkOperator(ChartOperator):
    """Compares backends with the requests of AIStore's published comparison of OCI's APIs.

    The task writes each measurement to ``storeside.backend_benchmark``, the medians to the log, and a chart of the
    medians to `chart`. Returns the medians. `storeside.measure.backends` describes the requests.

    :param backends: a list of ``<bucket URI>`` or ``<bucket URI>@<connection id>``, such as ``s3://data@oci_s3``
    :param through_aistore: cloud buckets that an AIStore cluster reads and writes through its own backends: a list of
        ``<bucket URI>`` or ``<bucket URI>@<AIStore connection id>``, such as ``oci://bench``. Each round measures a
        cold GET of 10 MB, and a cold GET and a PUT of `megabytes`
    :param change_parts: through AIStore, measure PUTs to ``s3://`` buckets in one piece, in few and in many parts.
        The task sets the bucket's property ``extra.aws.multipart_size`` for each of them, and restores it
    :param rounds: measurements per backend; the backends take turns
    :param megabytes: size in MB (10^6 bytes) of the object that PUTs write
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = (
        "backends", "through_aistore", "change_parts", "rounds", "megabytes", "chart",
    )  # fmt: skip
    ui_color = "#e6e1f4"
    operator_extra_links = (BenchmarksPageLink(),)

    def __init__(
        self,
        *,
        backends: Sequence[str] | str,
        through_aistore: Sequence[str] | str = (),
        change_parts: bool | str = False,
        rounds: int | str = 3,
        megabytes: int | str = 64,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[ChartArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.backends = backends
        self.through_aistore = through_aistore
        self.change_parts = change_parts
        self.rounds = rounds
        self.megabytes = megabytes
        self.clickhouse_conn_id = clickhouse_conn_id
        self._stop: threading.Event | None = None

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Measure the backends, record the measurements and draw the chart."""
        from storeside.measure.backends import Benchmark, draw, record, require_charts, table
        from storeside.measure.through import benchmark as measure_through

        self._stop = threading.Event()
        with airflow_errors():
            chart = chart_at(self.chart, "png") if self.chart else None
            if chart:
                require_charts()
            stores = [backend(text) for text in as_list(self.backends)]
            subjects = [
                through(text, change_parts=as_bool(self.change_parts, "change_parts"))
                for text in as_list(self.through_aistore)
            ]
            if not stores and not subjects:
                raise OperatorInputError("backends: name at least one bucket, here or in through_aistore")
            settings: dict[str, Any] = {
                "rounds": as_number(self.rounds, "rounds", int),
                "put_bytes": as_number(self.megabytes, "megabytes", int) * 1_000_000,
                "scope": task_key(context),
                "stop": self._stop,
            }
            results = Benchmark(stores, **settings).run() if stores else []
            results += measure_through(subjects, **settings) if subjects else []
            record(clickhouse(self.clickhouse_conn_id), run_key(context), results)
            self.log.info("medians of %s rounds, seconds:\n%s", self.rounds, table(results))
            if chart:
                with tempfile.NamedTemporaryFile(suffix=".png") as file:
                    draw(file.name, results)
                    chart.write_bytes(file.read())
        return [plain(result.to_dict()) for result in results]

    def on_kill(self) -> None:
        """Stop the benchmark; `execute` then deletes its objects."""
        if self._stop is not None:
            self._stop.set()
