from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException

from storeside.operators import AISGetObjectOperator
from storeside.operators.bases.charts import chart_at, object_at
from storeside.operators.entries import faults
from storeside.operators.operators import storage, throughput
from storeside.operators.operators.storage_measurements import StorageBenchmarkOperator
from storeside.operators.operators.throughput import AISMeasureThroughputOperator
from storeside.stack.settings import CHECKOUT

# {} is the ending of the chart
REFUSED = (
    "/opt/airflow/dags/mine.{}", "chart.{}", "reports@chart.{}", "file:///tmp/a.{}", "file:/tmp/a.{}",
    "FILE:///tmp/a.{}", "local:///tmp/a.{}", "simplecache::file:///tmp/a.{}", "s3://reports/plugin.py",
    "s3://reports/a.{}.py", "s3://.{}",
)  # fmt: skip
TAKEN = ("s3://reports/a.{}", "s3://aws_default@reports/2026/a.{}", "gs://reports/a.{}", "abfs://reports/a.{}")
FORMS = (("cluster_throughput", "svg"), ("backend_benchmark", "png"))


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(CHECKOUT / "dags")


@pytest.mark.parametrize("url", REFUSED)
@pytest.mark.parametrize(
    ("operator", "ending"),
    [
        (AISMeasureThroughputOperator(task_id="measure", bucket="ais://bench"), "svg"),
        (StorageBenchmarkOperator(task_id="measure", backends=["ais://bench"]), "png"),
    ],
)
def test_a_chart_is_no_file_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operator: Any, ending: str, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (storage, throughput):
        monkeypatch.setattr(module, "clickhouse", lambda conn_id: pytest.fail("it has begun"))
    operator.chart = url.format(ending)
    with pytest.raises(AirflowFailException, match=rf"not a URL of object storage that ends in \.{ending}.*such as"):
        operator.execute({})


@pytest.mark.parametrize("url", TAKEN[:2])
def test_a_chart_goes_to_object_storage(url: str) -> None:
    assert str(chart_at(url.format("svg"), "svg")) == url.format("svg")


@pytest.mark.parametrize("url", ["file:///tmp/a", "local:///tmp/a", "simplecache::file:///tmp/a"])
def test_a_downloaded_object_is_no_file_at_a_url(url: str) -> None:
    operator = AISGetObjectOperator(task_id="get", source="ais://a", name="n", path=url)
    with pytest.raises(AirflowFailException, match=r"is not a URL of object storage: use a URL such as s3://"):
        operator.execute({})
    assert str(object_at("s3://samples/a")) == "s3://samples/a"


@pytest.mark.parametrize(("dag", "ending"), FORMS)
def test_fields_of_forms_have_the_same_check(bag: DagBag, dag: str, ending: str) -> None:
    schema = bag.dags[dag].params.get_param("chart").schema
    for url in (None, *TAKEN):
        assert not list(faults("chart", "chart", schema, url and url.format(ending)))
    for url in REFUSED:
        assert list(faults("chart", "chart", schema, url.format(ending)))
