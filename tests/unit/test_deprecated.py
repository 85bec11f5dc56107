"""Arguments of 0.1.0 work, warn at the DAG's line, and are refused together with their replacements."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Connection

from docs import make_reference
from storeside.operators import AISMeasureThroughputOperator, S3EventsToClickHouseOperator, S3ToClickHouseOperator
from storeside.operators.errors import OperatorInputError
from storeside.operators.operators import throughput as throughput_module
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.options import ReadOptions, TableOptions

AWS = Connection(conn_id="aws", conn_type="aws", login="key", password="secret")
OLD: dict[str, tuple[Any, ReadOptions | TableOptions]] = {
    "csv": ({"delimiter": ";", "names": ["a"]}, ReadOptions(csv=Csv(";", names=("a",)))),
    "nested": ("json", ReadOptions(nested="json")),
    "max_bad_rows": (0, ReadOptions(max_bad_rows=0)),
    "sample_objects": (2, ReadOptions(sample_objects=2)),
    "sample_bytes": (99, ReadOptions(sample_bytes=99)),
    "columns": ({"a": "UInt8"}, TableOptions(columns={"a": "UInt8"})),
    "system_columns": (["_object"], TableOptions(system_columns=("_object",))),
    "engine": ("ReplacingMergeTree", TableOptions(engine="ReplacingMergeTree")),
    "order_by": ("(a, b)", TableOptions(order_by="(a, b)")),
    "partition_by": ("toYYYYMM(a)", TableOptions(partition_by="toYYYYMM(a)")),
    "ttl": ("a + INTERVAL 1 DAY", TableOptions(ttl="a + INTERVAL 1 DAY")),
}  # fmt: skip


def group_of(options: ReadOptions | TableOptions) -> str:
    return "read" if isinstance(options, ReadOptions) else "table_options"


def load(**arguments: Any) -> S3ToClickHouseOperator:
    return S3ToClickHouseOperator(task_id="load", bucket="trips", table="d.t", **arguments)


def events(**arguments: Any) -> S3EventsToClickHouseOperator:
    return S3EventsToClickHouseOperator(task_id="load", sqs_queue="q", bucket="trips", table="d.t", **arguments)


@pytest.mark.parametrize("operator", [load, events])
@pytest.mark.parametrize("name", OLD)
def test_an_old_argument_works_and_warns(name: str, operator: Any) -> None:
    value, options = OLD[name]
    group = group_of(options)
    with pytest.warns(DeprecationWarning, match="deprecated") as warnings:
        request = operator(**{name: value}).request(AWS)
    assert getattr(request, group) == options
    assert request == operator(**{group: options}).request(AWS)
    [warning] = warnings
    field = "csv=Csv(…)" if name == "csv" else f"{name}=…"
    said = f"({name}=…) is deprecated: use {group}={type(options).__name__}({field})"
    assert str(warning.message).endswith(said)
    assert Path(warning.filename) == Path(__file__)


@pytest.mark.parametrize("name", OLD)
def test_an_old_argument_beside_its_replacement_is_refused(name: str) -> None:
    value, options = OLD[name]
    group = group_of(options)
    with pytest.raises(OperatorInputError) as error:
        load(**{name: value, group: options})
    text = str(error.value)
    assert text.startswith(f"S3ToClickHouseOperator 'load' sets {group} together with {name}")
    assert f"write {group}={type(options).__name__}(" in text


def test_several_old_arguments_make_one_group() -> None:
    with pytest.warns(DeprecationWarning, match=r"TableOptions\(engine=…, order_by=…\)") as warnings:
        task = load(order_by="a", engine="ReplacingMergeTree", read=ReadOptions(nested="json"))
    assert len(warnings) == 2
    assert task.table_options == TableOptions(order_by="a", engine="ReplacingMergeTree")
    assert task.read == ReadOptions(nested="json")


def test_templates_in_old_arguments_are_rendered() -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        task = load(csv={"delimiter": "{{ d }}"}, order_by="{{ k }}", partition_by="{{ p }}")
    task.render_template_fields({"d": ";", "k": "a", "p": "b"})  # type: ignore[arg-type]
    assert task.read.csv.delimiter == ";"
    assert task.table_options == TableOptions(order_by="a", partition_by="b")


def test_old_arguments_in_default_args_and_of_mapped_tasks_work() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1), default_args={"order_by": "a"}):
        with pytest.warns(DeprecationWarning, match="order_by"):
            assert load().table_options == TableOptions(order_by="a")
        mapped = S3ToClickHouseOperator.partial(task_id="m", bucket="trips", engine="ReplacingMergeTree")
        task = mapped.expand(table=["d.t", "d.u"])
        with pytest.warns(DeprecationWarning, match="engine"):
            one: Any = task.unmap({"table": "d.t"})
    assert one.table_options == TableOptions(order_by="a", engine="ReplacingMergeTree")


@pytest.mark.filterwarnings("error")
def test_the_new_arguments_do_not_warn() -> None:
    assert load(read=ReadOptions(), table_options=TableOptions()).read == ReadOptions()
    assert (load().read, load().table_options) == (ReadOptions(), TableOptions())


@pytest.mark.parametrize("name", ["retry_failed", "overlap_seconds"])
def test_arguments_that_events_always_ignored_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"\({name}=…\) is deprecated: remove it, it has no effect"):
        assert events(**{name: 1}).request(AWS) == events().request(AWS)


def test_the_loaders_path_as_an_argument_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_module, "clickhouse", lambda conn_id: None)
    monkeypatch.setattr("storeside.measure.throughput.cluster.Measurement", lambda *_, **given: given)
    monkeypatch.setattr("storeside.measure.throughput.group.LocalLoaders", lambda _, loader: loader)
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", '{"conn_type": "aistore", "host": "127.0.0.1", "port": 9}')
    context: Any = {
        "dag_run": SimpleNamespace(dag_id="d", run_id="r"),
        "ti": SimpleNamespace(task_id="m", map_index=-1, try_number=1),
    }
    with pytest.warns(DeprecationWarning, match="loader=…. is deprecated: set the extra aisloader"):
        task = AISMeasureThroughputOperator(task_id="m", bucket="ais://bench", loader="/opt/aisloader")
    measurement: Any = task.measurement(context)
    assert measurement["loaders"] == "/opt/aisloader"


def test_the_documents_name_each_deprecated_argument() -> None:
    text = (make_reference.ROOT / "docs" / "versions.md").read_text()
    assert [name for name in (*OLD, "retry_failed", "overlap_seconds", "loader") if f"`{name}" not in text] == []
    assert "| `order_by` | `None`" not in make_reference.page()
