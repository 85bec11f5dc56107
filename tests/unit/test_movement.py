from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from storeside.operators.links import BenchmarksPageLink, QueuePageLink, RunPageLink
from storeside.operators.movement import DESTINATION, Movement, MovementOperator, asset_of, dataset_of
from storeside.operators.operators.aistore import AISCopyBucketOperator
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.operators.operators.hsds import HSDSExportDatasetOperator, HSDSImportDatasetOperator
from storeside.operators.operators.lease_events import SqsLeaseS3EventsOperator
from storeside.operators.operators.prefetch import AISPrefetchBucketOperator
from storeside.operators.operators.redrive import SqsRedriveDeadLettersOperator
from storeside.operators.operators.s3_events import S3EventsToClickHouseOperator
from storeside.operators.operators.speech import SqsSettleSpeechEventsOperator
from storeside.operators.operators.speech_manifest import ClickHouseLoadManifestOperator
from storeside.operators.operators.storage import StorageCopyBucketOperator
from storeside.operators.operators.storage_measurements import StorageBenchmarkOperator, StorageTuneOperator
from storeside.operators.operators.throughput import AISMeasureThroughputOperator
from storeside.operators.operators.transform_benchmark import AISMeasureTransformsOperator


def told(operator: MovementOperator, moved: Movement) -> OutletEventAccessors:
    events = OutletEventAccessors()
    context: Any = {"ti": SimpleNamespace(dag_id="d", task_id="t"), "outlet_events": events}
    operator.tell(context, moved)
    return events


def copy(**arguments: Any) -> AISCopyBucketOperator:
    return AISCopyBucketOperator(task_id="t", source="s3://in", destination="ais://out", **arguments)


@pytest.mark.parametrize(
    "kind",
    [
        AISCopyBucketOperator, AISPrefetchBucketOperator, StorageCopyBucketOperator, S3ToClickHouseOperator,
        S3EventsToClickHouseOperator, HSDSExportDatasetOperator, HSDSImportDatasetOperator,
        ClickHouseLoadManifestOperator,
    ],
)  # fmt: skip
def test_whatever_moves_data_says_so(kind: type[Any]) -> None:
    assert issubclass(kind, MovementOperator)
    assert any(isinstance(link, RunPageLink) for link in kind.operator_extra_links)


def test_a_change_is_an_event_of_the_destination_and_none_is_none() -> None:
    assert copy().outlets == [DESTINATION]
    moved = Movement("copy", "s3://in", "ais://out", done=2, failed=1, bytes_in=9)
    (event,) = told(copy(), moved)[AssetAlias("storeside")].asset_alias_events
    assert event.dest_asset_key.to_asset() == Asset("ais://out")
    assert event.extra["source"] == "s3://in"
    assert (event.extra["done"], event.extra["failed"], event.extra["bytes_in"]) == (2, 1, 9)
    assert "rows" not in event.extra
    assert told(copy(), Movement("copy", "s3://in", "ais://out", done=0))[DESTINATION].asset_alias_events == []


def test_the_outlets_of_an_author_are_his() -> None:
    same, other = Asset(name="speech", uri="ais://out"), Asset("report")
    events = told(copy(outlets=[same, other]), Movement("copy", "s3://in", "ais://out", done=0))
    assert len(events) == 1
    assert events[same].extra["destination"] == "ais://out"
    assert events[other].extra == {}


def test_what_cannot_be_told_fails_nothing() -> None:
    moved = Movement("copy", "s3://in", "ais://" + "x" * 2000, done=1)
    assert told(copy(), moved)[DESTINATION].asset_alias_events == []


@pytest.mark.parametrize(
    ("uri", "asset", "dataset"),
    [
        ("clickhouse://db.t", "clickhouse://db/t", ("clickhouse://ch:8123", "db.t")),
        ("ais://speech", "ais://speech/", ("ais://speech", "/")),
        ("s3://data/a?b#c/\u00fc", "s3://data/a%3Fb%23c/%C3%BC", ("s3://data", "a?b#c/\u00fc")),
        ("hsds://home/a.h5/x", "hsds://home/a.h5/x", ("hsds://home", "a.h5/x")),
    ],
)
def test_names_of_places(uri: str, asset: str, dataset: tuple[str, str]) -> None:
    assert asset_of(uri).uri == asset
    assert asset_of(uri).name.rstrip("/") == asset.rstrip("/")
    assert dataset_of(uri, "ch:8123") == dataset


@pytest.mark.parametrize(
    ("kind", "link", "address"),
    [
        (SqsLeaseS3EventsOperator, QueuePageLink, "/storeside/queues?queue=q"),
        (SqsSettleSpeechEventsOperator, QueuePageLink, "/storeside/queues?queue=q"),
        (SqsRedriveDeadLettersOperator, QueuePageLink, "/storeside/queues?queue=q"),
        (S3EventsToClickHouseOperator, QueuePageLink, "/storeside/queues?queue=q"),
        (StorageTuneOperator, BenchmarksPageLink, "/storeside/benchmarks"),
        (StorageBenchmarkOperator, BenchmarksPageLink, "/storeside/benchmarks"),
        (AISMeasureThroughputOperator, BenchmarksPageLink, "/storeside/benchmarks"),
        (AISMeasureTransformsOperator, BenchmarksPageLink, "/storeside/benchmarks"),
        (AISMeasureThroughputOperator, RunPageLink, "/storeside/run?dag=d&run=r&task=t"),
    ],
)
def test_links_lead_to_the_pages(kind: type[Any], link: type[Any], address: str) -> None:
    (found,) = (one for one in kind.operator_extra_links if isinstance(one, link))
    key: Any = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    operator: Any = SimpleNamespace(sqs_queue="http://sqs/000000000000/q")
    assert found.get_link(operator, ti_key=key) == address


def test_the_link_of_a_mapped_task_leads_to_its_own_page() -> None:
    key: Any = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=3)
    assert RunPageLink().get_link(None, ti_key=key) == "/storeside/run?dag=d&run=r&task=t&map_index=3"  # type: ignore[arg-type]
