from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from jinja2 import Template

from storeside.operators import params
from storeside.operators.entries import faults
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import source
from storeside.operators.operators import clickhouse
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv, MessageSchema
from storeside.transfer.request.options import Batches, Expectations, LoadLimits, ReadOptions, TableOptions
from storeside.transfer.request.request import CHOICES, Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.upsert import Upsert
from storeside.transfer.run.engine import Report

AWS = Connection(conn_id="aws", conn_type="aws", login="key", password="secret")


def aws(**extra: Any) -> Connection:
    return Connection(conn_id="aws", conn_type="aws", login="key", password="secret", extra=json.dumps(extra))


def operator(**arguments: Any) -> S3ToClickHouseOperator:
    return S3ToClickHouseOperator(**{"task_id": "load", "bucket": "trips", "table": "d.t", **arguments})


@pytest.mark.guarantee("load-secrets")
@pytest.mark.parametrize(
    ("extra", "endpoint", "collection"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com", ""),
        ({"region_name": "eu-west-3"}, "https://s3.eu-west-3.amazonaws.com", ""),
        ({"endpoint_url": "http://minio:9000"}, "http://minio:9000", ""),
        (
            {"endpoint_url": "http://localhost:9000", "clickhouse_endpoint": "http://minio:9000"},
            "http://minio:9000",
            "",
        ),
        ({"clickhouse_collection": "trips"}, "https://s3.us-east-1.amazonaws.com", "trips"),
    ],
)
def test_clickhouse_finds_s3_by_the_connection(extra: dict[str, Any], endpoint: str, collection: str) -> None:
    found = source(aws(**extra), "trips", "2026/")
    assert found == Source("trips", "2026/", collection, endpoint)
    assert found.cluster == ""
    assert source(aws(clickhouse_cluster="all"), "trips", "").objects(["a"], "CSV").startswith("s3Cluster('all', ")
    assert "secret" not in found.objects(["a"], "CSV") + found.probe()


def test_arguments_reach_the_engine() -> None:
    given = {
        "keys": "2026/**", "format": "msgpack", "loader": "push",
        "read": ReadOptions(
            Csv(";", names=("a", "b")), "json", "empty", False, 7, 3, 12, ("year",), Columns(("a",)),
            MessageSchema(names=("a",)), "refuse", joined=True,
        ),
        "table_options": TableOptions({"a": "UInt8"}, ["_object"], "ReplacingMergeTree", "a", "b", "c", "d", "e"),  # type: ignore[arg-type]
        "on_drift": "rest", "on_bad_rows": "keep", "on_overwrite": "replace", "batch_bytes": 11,
        "limits": LoadLimits(1, 2, 3, 4, 5),
    }  # fmt: skip
    more: dict[str, Any] = {
        "all_or_nothing": True, "retry_failed": True, "overlap_seconds": 9.0,
        "expectations": Expectations("package.module:suite", "quarantine", by_object=True),
        "after_load": AfterLoad("tag", tags={"loaded": "true"}, rejected=True),
    }  # fmt: skip
    made = operator(**given)
    made._creates_database = False
    request = made.request(AWS, **more)
    default = Request(Source("trips"), "d.t")
    # of no argument, or refused together with `replace` or `overlap_seconds`
    kept = ("table", "remove_deleted", "replace_partition", "key_column", "upsert")
    for field in dataclasses.fields(Request):
        is_changed = getattr(request, field.name) != getattr(default, field.name)
        assert is_changed == (field.name not in kept), field.name
    for options in ("read", "table_options", "limits", "expectations"):
        for field in dataclasses.fields(getattr(request, options)):
            changed, unchanged = (getattr(getattr(r, options), field.name) for r in (request, default))
            assert (changed != unchanged) == (field.name not in kept), field.name
    assert request.batches == Batches(bytes=11)
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request


def test_options_that_remove_rows_reach_the_engine() -> None:
    made = operator(remove_deleted="5 %")
    assert made.request(AWS, remove_deleted=made.remove_deleted).most_removed == 0.05
    assert operator().request(AWS, replace_partition="2026-01-05").all_or_none


def test_an_upsert_reaches_the_engine() -> None:
    assert operator(upsert=Upsert(("id",), "v", "op")).request(AWS).upsert == Upsert(("id",), "v", "op")


def test_defaults_are_the_engines() -> None:
    request = operator().request(AWS)
    assert request == Request(source(AWS, "trips", ""), "d.t")


def test_a_source_in_aistore_needs_no_connection_to_s3() -> None:
    made = operator(bucket="", source="ais://results/2026/*.json")
    assert made.request(None).source == Source("ais://results", "2026/*.json")
    assert operator(bucket="", source="s3://trips/a/").request(AWS).source == source(AWS, "trips", "a/")


def test_clickhouse_finds_aistore_by_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_AISTORE_DEFAULT",
        '{"conn_type": "aistore", "host": "proxy", "port": 51080, "extra": {"clickhouse_url_collection": "objects"}}',
    )
    made = operator(bucket="", source="ais://results/2026/*.json")
    found = made.request(None, aistore=AIStoreHook()).source
    assert found == Source("ais://results", "2026/*.json", "objects", "http://proxy:51080")


@pytest.mark.parametrize(
    ("bucket", "keys", "source"),
    [
        ("trips", None, "s3://trips/"),
        ("trips", "2026/*.csv", "s3://trips/2026/*.csv"),
        ("ais://results", "", "ais://results/"),
    ],
)
def test_a_form_loads_from_s3_or_aistore(bucket: str, keys: str | None, source: str) -> None:
    assert Template(params.LOAD_SOURCE).render(params={"bucket": bucket, "keys": keys}) == source
    assert not list(faults("bucket", "source bucket", params.SOURCE_BUCKET.schema, bucket))


@pytest.mark.parametrize("bucket", ["s3://trips/a", "ais://@other/results", "ais://results/a", "gs://trips", "a/b"])
def test_a_form_takes_no_other_buckets(bucket: str) -> None:
    assert list(faults("bucket", "source bucket", params.SOURCE_BUCKET.schema, bucket))


def rendered(**arguments: Any) -> S3ToClickHouseOperator:
    """Return an operator with these arguments as if templates had become them."""
    made = operator()
    for name, value in arguments.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("name", "error"), [*((name, TransferInputError) for name in CHOICES), ("on_failed_objects", ValueError)]
)
def test_unknown_choices_are_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{name} 'no such'"):
        rendered(**{name: "no such"}).request(AWS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bucket": "s3://trips"}, "bucket 's3://trips'"),
        ({"table": "a.b.c"}, "table 'a.b.c'"),
        ({"keys": "a{b"}, "keys 'a{b'"),
        ({"table_options": TableOptions(system_columns=("_etag",))}, "system columns _etag"),
        ({"batch_bytes": 0}, "batches.bytes 0"),
        ({"read": ReadOptions(sample_objects=0)}, "sample_objects 0"),
        ({"read": ReadOptions(csv=Csv(delimiter=""))}, "csv delimiter ''"),
        ({"read": ReadOptions(nested="no such")}, "nested 'no such'"),
        ({"read": ReadOptions(on_null_nested="no such")}, "on_null_nested 'no such'"),
    ],
)
def test_arguments_that_make_no_request_say_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(TransferInputError) as error:
        rendered(**arguments).request(AWS)
    assert said in str(error.value)


@pytest.mark.parametrize(("again", "kind"), [(True, AirflowException), (False, AirflowFailException)])
def test_an_error_in_the_triggerer_is_retried_when_that_helps(again: bool, kind: type[Exception]) -> None:
    with pytest.raises(AirflowException, match="it says why") as error:
        operator().finish({}, {"error": "it says why", "again": again})  # type: ignore[typeddict-item]
    assert type(error.value) is kind


def test_objects_that_failed_are_named_with_where_the_others_are_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clickhouse, "ledger", lambda conn_id: SimpleNamespace(create=lambda: None))
    monkeypatch.setattr(S3ToClickHouseOperator, "record_end", lambda *_, **__: None)
    context: Any = {"dag_run": SimpleNamespace(dag_id="d", run_id="r")}

    def said(loaded: int) -> str:
        report = Report(9, 4, loaded, 2, 7, 0, 70, 1.0, (("a.csv", "no rows"), ("b.csv", "no")))
        assert operator(on_failed_objects="report").finish(context, {"report": asdict(report)})
        with pytest.raises(AirflowFailException) as error:
            operator().finish(context, {"report": asdict(report)})
        return str(error.value)

    where = "All of them: SELECT key, reason FROM storeside.loads FINAL WHERE state = 'failed' AND run_id = 'd/r'."
    assert said(3) == (
        f"2 of 5 objects failed, such as 'a.csv': no rows. {where} The others are loaded; clear this task to try the"
        " failed ones again."
    )
    assert said(0).endswith(f"{where} Clear this task to try the failed ones again.")


def test_template_fields_are_arguments() -> None:
    arguments = {n for c in S3ToClickHouseOperator.__mro__ for n in inspect.signature(c.__init__).parameters}
    assert set(S3ToClickHouseOperator.template_fields) <= arguments


def test_templates_within_options_are_rendered() -> None:
    task = operator(
        read=ReadOptions(csv=Csv(delimiter="{{ delimiter }}", null_values=("", "{{ null }}"))),
        table_options=TableOptions(columns={"a": "{{ type }}"}, order_by="{{ key }}"),
    )
    task.render_template_fields({"delimiter": ";", "null": "NA", "type": "UInt8", "key": "a"})  # type: ignore[arg-type]
    assert task.read == ReadOptions(csv=Csv(delimiter=";", null_values=("", "NA")))
    assert task.table_options == TableOptions(columns={"a": "UInt8"}, order_by="a")


def test_rendered_values_that_fit_no_option_are_not_tried_again() -> None:
    task = operator(read=ReadOptions(columns=Columns(rename="{{ names }}")))  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match="rename 'ts': write column=new name"):
        task.render_template_fields({"names": "ts"})  # type: ignore[arg-type]


def test_the_form_has_the_schema_of_protobuf() -> None:
    text = 'syntax = "proto3";\nmessage Trip { string s = 1; } // {{ ds }} \''
    fields = {name: field.resolve() for name, field in params.TABLE.items() if name not in ("table", "schema")}
    task = operator(**params.LOAD)
    given = {**fields, "table": "data.trips", "format": "protobuf", "schema": text, "message": "Trip"}
    task.render_template_fields({"params": given})  # type: ignore[arg-type]
    assert task.request(AWS).read.schema == MessageSchema(text, "Trip")
    task = operator(**params.LOAD)
    task.render_template_fields({"params": {**fields, "table": "data.trips"}})  # type: ignore[arg-type]
    assert task.request(AWS).read.schema == MessageSchema()


@pytest.mark.parametrize("table", ["", "trips", "a.b.c", ".trips", "a."])
def test_a_table_is_named_with_its_database(table: str) -> None:
    with pytest.raises(TransferInputError, match="write database"):
        Request(Source("trips"), table)


def test_new_tables_are_of_an_engine_whose_rows_stay() -> None:
    TableOptions(engine="ReplicatedReplacingMergeTree('/t', 'r', v)").check()
    with pytest.raises(TransferInputError, match=r"a new table has the engine SummingMergeTree.*materialized view"):
        TableOptions(engine="SummingMergeTree(n)").check()


def test_the_form_offers_the_engines_choices() -> None:
    form = {**params.TABLE, "format": params.FORMAT}
    offered = {name: param.schema["enum"] for name, param in form.items() if "enum" in param.schema}
    assert offered == {name: list(choices) for name, choices in CHOICES.items() if name in offered}
    assert {"format", "on_drift", "on_bad_rows", "on_overwrite"} <= offered.keys()
    for field in (*form.values(), *params.EXPECTATIONS.values(), *params.AFTER.values()):
        assert field.schema.get("enum", []) == [*field.schema.get("values_display", ())], "each choice has a label"
