"""Reports of moved data: the row in ``storeside.runs``, Airflow's metrics, asset events and OpenLineage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias, BaseOperatorLink

from storeside.operators.links import RunPageLink
from storeside.operators.restrictions import FormOperator
from storeside.operators.shared import run_columns

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from storeside.ledger.objects import Ledger

# Stands for a task's destination in the DAG, because the destination's asset is known only after the task has run.
DESTINATION = AssetAlias("storeside")


@dataclass(frozen=True)
class Movement:
    """The data that a task moved.

    :param kind: kind of work, such as ``load`` or ``copy``
    :param source: URI of the source
    :param destination: URI of the destination
    :param done: objects moved
    :param failed: objects that failed
    :param bytes_in: bytes read
    :param bytes_out: bytes written
    :param seconds: duration of the task
    :param rows: rows loaded; only for tables
    :param rejected: rows rejected; only for tables
    """

    kind: str
    source: str
    destination: str
    done: int
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    rows: int | None = None
    rejected: int | None = None


class MovementOperator(FormOperator):
    """Base class of operators that move data and report it to ``storeside.runs``, metrics, assets and OpenLineage.

    Unless the operator has `outlets`, the task emits an asset event after it has changed its destination. The asset
    has the destination's name: ``ais://speech``, ``s3://data/prefix``, ``clickhouse://analytics/trips``. A subclass
    calls `record_end`, or `tell` if it has no row in ``storeside.runs``.
    """

    operator_extra_links: tuple[BaseOperatorLink, ...] = (RunPageLink(),)

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("outlets", [DESTINATION])
        super().__init__(**kwargs)
        self._moved: Movement | None = None
        self._clickhouse = ""

    def record_end(self, context: Context, tables: Ledger, row: Mapping[str, Any], **told: Any) -> None:
        """Record the end of the task in ``storeside.runs`` and report it; `told` overrides columns in the reports."""
        tables.record_run({**run_columns(context), **row})
        facts = {**row, **told}
        moved = Movement(**{name: facts[name] for name in Movement.__dataclass_fields__.keys() & facts.keys()})
        self.tell(context, moved, urlsplit(tables.client.url).netloc)

    def tell(self, context: Context, moved: Movement, clickhouse: str = "") -> None:
        """Report to metrics, assets and OpenLineage; `clickhouse` is the host and port in OpenLineage's table names.

        The data are already moved, so an invalid report, such as an asset with more than 1,500 characters, is logged
        and does not fail the task.
        """
        self._moved, self._clickhouse = moved, clickhouse
        instance = context["ti"]
        try:
            count(moved, {"dag_id": instance.dag_id, "task_id": instance.task_id})
            self._tell_assets(context, moved)
        except ValueError as e:
            self.log.warning("this movement is missing in Airflow's metrics or asset events: %s", e)

    def _tell_assets(self, context: Context, moved: Movement) -> None:
        asset = asset_of(moved.destination)
        extra = {name: value for name, value in vars(moved).items() if value is not None}
        for outlet in self.outlets:
            if isinstance(outlet, AssetAlias) and moved.done:
                context["outlet_events"][outlet].add(asset, extra=extra)
            elif isinstance(outlet, Asset) and outlet.uri == asset.uri:
                context["outlet_events"][outlet].extra.update(extra)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage | None:
        """Return the lineage of the moved data; Airflow's OpenLineage provider calls this if it is installed."""
        if (moved := self._moved) is None:
            return None
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
        from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

        read = InputStatisticsInputDatasetFacet(size=moved.bytes_in, fileCount=moved.done)
        written = OutputStatisticsOutputDatasetFacet(
            rowCount=moved.rows,
            size=moved.bytes_out or None,
            fileCount=None if moved.destination.startswith("clickhouse:") else moved.done,
        )
        source, destination = (dataset_of(uri, self._clickhouse) for uri in (moved.source, moved.destination))
        return OperatorLineage(
            inputs=[InputDataset(*source, inputFacets={"inputStatistics": read})],
            outputs=[OutputDataset(*destination, outputFacets={"outputStatistics": written})],
        )


def count(moved: Movement, tags: dict[str, str]) -> None:
    """Add the movement to Airflow's metrics ``storeside.<kind>.…``; docs/observability.md lists them."""
    from airflow.sdk.observability import stats

    counts = {
        "objects": moved.done,
        "failed": moved.failed,
        "bytes_in": moved.bytes_in,
        "bytes_out": moved.bytes_out,
        "rows": moved.rows,
        "rejected": moved.rejected,
    }
    for name, value in counts.items():
        if value is not None:
            stats.incr(f"storeside.{moved.kind}.{name}", value, tags=tags)
    stats.timing(f"storeside.{moved.kind}.duration", timedelta(seconds=moved.seconds), tags=tags)


def asset_of(uri: str) -> Asset:
    """Return the asset of a bucket, prefix or table. Its name is its URI, as in ``Asset("ais://speech")``."""
    scheme, _, rest = uri.partition("://")
    if scheme == "clickhouse":
        rest = rest.replace(".", "/", 1)
    return Asset(uri=f"{scheme}://{quote(rest, safe='/:@')}")


def dataset_of(uri: str, clickhouse: str) -> tuple[str, str]:
    """Return the namespace and name of a dataset by OpenLineage's naming rules for S3 and for databases."""
    scheme, _, rest = uri.partition("://")
    if scheme == "clickhouse":
        return f"clickhouse://{clickhouse}", rest
    bucket, _, name = rest.partition("/")
    return f"{scheme}://{bucket}", name or "/"
