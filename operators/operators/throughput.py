"""The operator that measures how fast an AIStore cluster reads and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowFailException

from storeside.operators.bases.charts import ChartArguments, ChartOperator, chart_at
from storeside.operators.bases.deprecated import warn_of
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import BenchmarksPageLink, RunPageLink
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_number, clickhouse, ledger, plain, run_columns, task_key

if TYPE_CHECKING:
    from airflow.sdk import Context, ObjectStoragePath

    from storeside.measure.throughput.cluster import Measurement
    from storeside.measure.throughput.load import Load, Workload
    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class ThroughputArguments(ChartArguments, total=False):
    """Further arguments of `AISMeasureThroughputOperator`."""

    loader: str
    """path of the load generator; deprecated: set the extra ``aisloader`` of the AIStore connection"""


class AISMeasureThroughputOperator(ChartOperator):
    """Measures a cluster with one or more of AIStore's own load generators, `aisloader`.

    With ``kube_config`` and ``aisloader_image`` in the extras of the connection, the loaders run as one Kubernetes
    Job, with one pod per loader. Otherwise they run on the worker: the extra ``aisloader`` is the loader's path;
    without it the loader must be on the PATH.

    While the load runs, the task reads each target's counters every second. It writes them to
    ``storeside.throughput`` and the result to ``storeside.throughput_runs``, and compares the mean with earlier runs
    of the same load. If one loader fails, the task ends the others and fails with its reason. A task that is killed
    ends its loaders and removes the objects that it wrote. After a
    ``kill -9``, the next try removes them. Returns the engine's `Report` as a dictionary.

    :param bucket: URI of an existing bucket, such as ``ais://bench``
    :param workload: ``read``, ``write``, or ``mixed`` (half reads, half writes)
    :param object_size: size of each object, such as ``10MiB``
    :param concurrency: number of workers of each loader
    :param seconds: duration of the load in seconds
    :param dataset_size: size of the data that the task writes before a read load and removes afterwards; empty reads
        the bucket's existing objects
    :param prefix: without `dataset_size`, read only objects whose names start with this
    :param write_limit: size at which a load that writes stops early; each loader writes an equal part
    :param loaders: number of loaders that run at the same time, 1 to 64
    :param nic_gbit: a target's network bandwidth, in Gbit/s; 0 means unknown
    :param disk_gb_per_second: bandwidth of all disks of a target, in 10^9 bytes per second; 0 means unknown
    :param compare_runs: number of earlier runs to compare the mean with; 0 starts a new series of runs
    :param tolerance: percentage by which the mean may be below the median of these runs
    :param on_regression: if the mean is lower than that: ``fail`` the task, or ``report`` it in the log
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = (
        "bucket",
        "workload",
        "object_size",
        "concurrency",
        "seconds",
        "dataset_size",
        "prefix",
        "write_limit",
        "nic_gbit",
        "disk_gb_per_second",
        "compare_runs",
        "tolerance",
        "on_regression",
        "chart",
        "loaders",
    )
    ui_color = "#d7e9f7"
    operator_extra_links = (RunPageLink(), BenchmarksPageLink())

    def __init__(
        self,
        *,
        bucket: str,
        workload: Workload | Template = "read",
        object_size: str = "10MiB",
        concurrency: int | str = 16,
        seconds: int | str = 60,
        dataset_size: str = "",
        prefix: str = "",
        write_limit: str = "10GiB",
        nic_gbit: float | str = 0,
        disk_gb_per_second: float | str = 0,
        compare_runs: int | str = 5,
        tolerance: float | str = 10,
        on_regression: OnFailed | Template = "fail",
        loaders: int | str = 1,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[ThroughputArguments],
    ) -> None:
        loader = kwargs.pop("loader", "")
        if loader:
            warn_of(type(self), "loader", "set the extra aisloader of the AIStore connection")
        super().__init__(**kwargs)
        self.loader = loader
        self.bucket = bucket
        self.workload = workload
        self.object_size = object_size
        self.concurrency = concurrency
        self.seconds = seconds
        self.dataset_size = dataset_size
        self.prefix = prefix
        self.write_limit = write_limit
        self.nic_gbit = nic_gbit
        self.disk_gb_per_second = disk_gb_per_second
        self.compare_runs = compare_runs
        self.tolerance = tolerance
        self.on_regression = on_regression
        self.loaders = loaders
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        self._measurement: Measurement | None = None

    def load(self) -> Load:
        """Return the load for the rendered arguments. Raises BadInput for invalid arguments."""
        from storeside.aistore.buckets import Bucket
        from storeside.measure.throughput.load import Load, size

        return Load(
            Bucket.parse(self.bucket),
            self.workload,
            size(self.object_size),
            as_number(self.concurrency, "concurrency", int),
            as_number(self.seconds, "seconds", int),
            size(self.dataset_size) if self.dataset_size else 0,
            self.prefix,
            size(self.write_limit),
            as_number(self.loaders, "loaders", int),
        )

    def measurement(self, context: Context) -> Measurement:
        """Build the engine's measurement. Raises BadInput for invalid arguments and for a missing loader."""
        from storeside.measure.throughput.bounds import node_bound
        from storeside.measure.throughput.cluster import Comparison, Measurement
        from storeside.measure.throughput.group import LocalLoaders

        check_policy(self.on_regression, "on_regression")
        load = self.load()
        bound = node_bound(
            as_number(self.nic_gbit, "nic_gbit", float),
            as_number(self.disk_gb_per_second, "disk_gb_per_second", float),
        )
        comparison = Comparison(
            as_number(self.compare_runs, "compare_runs", int), as_number(self.tolerance, "tolerance", float)
        )
        hook = AIStoreHook(self.aistore_conn_id)
        scope = task_key(context)
        return Measurement(
            hook.cluster,
            clickhouse(self.clickhouse_conn_id),
            load,
            loaders=LocalLoaders(hook.cluster, self.loader) if self.loader else hook.loaders(scope),
            name=f"{scope}/{context['ti'].try_number}",
            scope=scope,
            bound=bound,
            comparison=comparison,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Measure, draw the chart, record, and compare with earlier runs."""
        with airflow_errors():
            chart = chart_at(self.chart, "svg") if self.chart else None
            self._measurement = self.measurement(context)
            report = self._measurement.run()
        for line in report.lines(self._measurement.load):
            self.log.info(line)
        if chart:
            self._draw(chart, report.bound and report.bound / report.nodes)
        self._record(context, report)
        verdict, mean = report.verdict, report.figures.mean
        if verdict.name == "regression" and verdict.baseline is not None:
            text = (
                f"{self.bucket}: {mean / 1e6:.1f} MB/s is {100 - 100 * mean / verdict.baseline:.1f} % less than the"
                f" {verdict.baseline / 1e6:.1f} MB/s of {verdict.runs} earlier runs, and the tolerance is"
                f" {self.tolerance} %. To accept this speed as the new baseline, run with compare_runs 0"
            )
            if self.on_regression == "fail":
                raise AirflowFailException(text)
            self.log.warning(text)
        return dict(plain(asdict(report)))

    def on_kill(self) -> None:
        """End the loaders; `execute` then removes the objects that it wrote."""
        if self._measurement is not None:
            self._measurement.cancel()

    def _draw(self, chart: ObjectStoragePath, bound: float | None) -> None:
        from storeside.measure.throughput.chart import draw

        assert self._measurement is not None  # noqa: S101 - it was run
        title = f"{self.workload}, {self.object_size} objects, {self._measurement.load.generators}, {self.bucket}"
        tables, name = self._measurement.tables, self._measurement.name
        chart.write_text(draw(title, tables.rates(name), bound, tables.seconds(name)))
        self.log.info("chart: %s", chart)

    def _record(self, context: Context, report: Any) -> None:
        assert self._measurement is not None  # noqa: S101 - it was run
        load = self._measurement.load
        detail = {"mean": report.figures.mean, "measurement": report.measurement, "loaders": load.loaders}
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        tables.record_run(
            {
                **run_columns(context),
                "kind": "throughput",
                "source": self.bucket,
                "destination": "",
                "state": report.verdict.name,
                "done": report.outcome.requests,
                "bytes_out": report.outcome.bytes,
                "seconds": report.outcome.seconds,
                "detail": json.dumps(detail),
            }
        )
