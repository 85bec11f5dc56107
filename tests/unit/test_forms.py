"""Names that forms accept: the lists of the Variable, and the check before each task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import AirflowFailException

import storeside.operators as public
from storeside.operators import AISPrefetchBucketOperator, forms
from storeside.operators.errors import OperatorInputError


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(value: Any) -> None:
        monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", value if isinstance(value, str) else json.dumps(value))

    return give


def run(conf: dict[str, Any], task_params: dict[str, Any] | None = None, **params: Param) -> None:
    """Do what a worker does before `execute`: validate the run's conf against the DAG, and call `pre_execute`."""
    with DAG("d", schedule=None, params=params) as dag:
        task = AISPrefetchBucketOperator(task_id="t", bucket="s3://constant", params=task_params or {})
    found = process_params(dag, task, conf, suppress_exception=False)
    task.pre_execute({"dag": dag, "task": task, "params": found})  # type: ignore[typeddict-item]


def field(kind: str, default: Any = None) -> Param:
    kinds: dict[type, str | list[str]] = {list: "array", str: "string"}
    types = kinds.get(type(default), ["null", "string", "array"])
    return Param(default, type=types, **forms.form_choices(kind))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bucket", "s3://recordings"),
        ("s3 bucket", "recordings"),
        ("source bucket", "recordings"),
        ("source bucket", "ais://benchmark"),
        ("backend", ["ais://benchmark", "s3://recordings@aws_default"]),
        ("chart", "s3://aws_default@recordings/a/b.svg"),
        ("chart", "s3://recordings/b.svg"),
        ("connection", "aws_default"),
        ("queue", "tables-events"),
        ("domain", "/home/storeside/demo.h5"),
        ("transformer", "text_facts"),
        ("after load", "none"),
        ("place", "s3://trips/done/x"),
        ("bucket", None),
        ("backend", []),
    ],
)
def test_listed_names_are_taken(kind: str, value: Any) -> None:
    run({"x": value}, x=field(kind))


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("bucket", "s3://payroll", "s3://payroll"),
        ("bucket", "s3://recordings\n", "s3://recordings\\n"),
        ("bucket", "ais://@other/recordings", "ais://@other/recordings"),
        ("s3 bucket", "payroll", "s3://payroll"),
        ("s3 bucket", "ais://benchmark", "s3://ais://benchmark"),
        ("source bucket", "payroll", "s3://payroll"),
        ("source bucket", "ais://payroll", "ais://payroll"),
        ("backend", ["ais://benchmark", "s3://recordings@payroll_s3"], "payroll_s3"),
        ("backend", ["s3://payroll@aws_default"], "s3://payroll"),
        ("backend", ["s3://recordings s3://payroll"], "s3://recordings s3://payroll"),
        ("chart", "s3://aws_default@payroll/a.svg", "s3://payroll"),
        ("chart", "s3://aws_default@recordings@payroll/a.svg", "s3://payroll"),
        ("chart", "s3://payroll_s3@recordings/a.svg", "payroll_s3"),
        ("chart", "s3://recordings?x/a.svg", "s3://recordings?x"),
        ("chart", "http://recordings/a.svg", "http://recordings"),
        ("connection", "payroll_s3", "payroll_s3"),
        ("queue", "payroll-events", "payroll-events"),
        ("queue", "http://attacker/0/tables-events", "http://attacker/0/tables-events"),
        ("domain", "/home/payroll.h5", "/home/payroll.h5"),
        ("transformer", "os:system", "os:system"),
        ("etl", "payroll-etl", "payroll-etl"),
    ],
)
def test_other_names_fail_the_task_for_good_and_say_what_to_do(kind: str, value: Any, named: str) -> None:
    with pytest.raises(AirflowFailException) as failed:
        run({"x": value}, x=field(kind))
    assert f"x: '{named}' is not one of" in str(failed.value)
    assert "Airflow Variable storeside_forms" in str(failed.value)


def test_what_the_api_gives_is_not_taken_for_the_default() -> None:
    """Airflow writes a run's conf into the DAG's own Param objects."""
    with pytest.raises(AirflowFailException):
        run({"x": "s3://payroll"}, x=field("bucket", "s3://recordings"))


def test_parameters_of_a_task_are_checked_as_well() -> None:
    with pytest.raises(AirflowFailException, match="payroll"):
        run({"x": "s3://payroll"}, {"x": field("bucket", "s3://recordings")})


def test_constants_of_the_author_are_not_limited() -> None:
    run({}, plain=Param("s3://anything", type="string"))  # and its task names s3://constant


def test_the_variable_replaces_one_list_and_leaves_the_others(variable: Any) -> None:
    variable({"buckets": ["s3://team-*"]})
    run({"x": "s3://team-audio", "y": "tables-events"}, x=field("bucket"), y=field("queue"))
    for name in ("s3://recordings", "s3://team-a@payroll_s3", "s3://team-a/b", "s3://team-a s3://b", "s3://team"):
        with pytest.raises(AirflowFailException):
            run({"x": name}, x=field("bucket"))


@pytest.mark.parametrize("value", ["{", "[]", '{"buckets": "s3://*"}', '{"bucket": []}', '{"buckets": [1]}'])
def test_a_variable_that_cannot_be_read_allows_nothing(variable: Any, value: str) -> None:
    variable(value)
    with pytest.raises(AirflowFailException, match="storeside_forms is not a JSON object"):
        run({"x": "s3://recordings"}, x=field("bucket"))


def test_one_message_names_all_refused_names_and_the_value_that_allows_them(variable: Any) -> None:
    variable({"queues": ["own"]})
    conf = {"x": "s3://a", "y": ["ais://b", "ais://benchmark"], "z": "c"}
    fields = {"x": field("bucket"), "y": field("bucket"), "z": field("connection")}
    with pytest.raises(AirflowFailException, match=r"x: 's3://a'.*; y: 'ais://b'.*; z: 'c'") as failed:
        run(conf, **fields)
    variable(str(failed.value).partition(" to {")[2].join(["{", ""]))
    run(conf, **fields)
    run({"q": "own"}, q=field("queue"))


def test_an_empty_list_allows_nothing(variable: Any) -> None:
    variable({"queues": []})
    with pytest.raises(AirflowFailException, match="forms may use: none"):
        run({"x": "tables-events"}, x=field("queue"))


def test_the_form_suggests_listed_names(variable: Any) -> None:
    variable({"buckets": ["s3://one", "s3://team-*", "ais://two"]})
    forms._suggestions.cache_clear()
    try:
        assert forms.form_choices("bucket")["examples"] == ["s3://one", "ais://two"]
        assert forms.form_choices("s3 bucket")["examples"] == ["one"]
        assert forms.form_choices("source bucket")["examples"] == ["one", "ais://two"]
        for kind in ("chart", "backend"):
            assert "examples" not in forms.form_choices(kind)
        with pytest.raises(OperatorInputError, match="choose from bucket"):
            forms.form_choices("table")
    finally:
        forms._suggestions.cache_clear()


def test_every_public_operator_checks() -> None:
    operators = [getattr(public, name) for name in public.__all__ if name.endswith("Operator")]
    assert len(operators) > 20
    assert all(issubclass(operator, forms.FormOperator) for operator in operators)


def test_other_operators_can_check() -> None:
    with DAG("d", schedule=None, params={"x": field("bucket", "s3://recordings")}) as dag:
        task = AISPrefetchBucketOperator(task_id="t", bucket="s3://b")
    context: Any = {"dag": dag, "task": task, "params": {"x": "s3://payroll"}}
    with pytest.raises(OperatorInputError):
        public.check_form(context)


@pytest.mark.parametrize("written", ["oci://recordings", "oc://recordings"])
def test_aistores_own_scheme_for_oci_means_the_listed_bucket(variable: Any, written: str) -> None:
    variable({"buckets": ["oci://recordings"]})
    run({"source": written}, source=field("bucket"))
    with pytest.raises(AirflowFailException, match="oci://payroll"):
        run({"source": "oc://payroll"}, source=field("bucket"))
