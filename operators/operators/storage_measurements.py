"""Operators that measure endpoints: the best settings of transfers, and a comparison of backends."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from storeside.operators.bases.charts import ChartArguments, ChartOperator, chart_at
from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.storage import backend, through
from storeside.operators.links import BenchmarksPageLink
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import as_bool, as_list, as_number, clickhouse, plain, run_key, task_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.copying.store import Store
    from storeside.measure.tuner import Measurement

MIB = 1 << 20


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
