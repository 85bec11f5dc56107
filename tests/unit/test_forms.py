"""Names that forms accept: the lists of the Variable, and the check before each task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG, Param, Variable
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import AirflowFailException

import storeside.operators as public
from storeside.operators import AISPrefetchBucketOperator, S3ToClickHouseOperator, restrictions
from storeside.operators.errors import OperatorInputError
from storeside.transfer.request.named_options import named_options
from storeside.transfer.request.options import Batches, LoadLimits, ReadOptions


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


def field(kind: str, default: Any = None, uses: str = "") -> Param:
    kinds: dict[type, str | list[str]] = {list: "array", str: "string"}
    types = kinds.get(type(default), ["null", "string", "array", "object"])
    return Param(default, type=types, **restrictions.form_choices(kind, *uses.split()))


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
        ("table", "data.trips"),
        ("table", "data.my table"),
        ("load options", {"csv.quote": "'"}),
        ("load options", '{"table.engine": "MergeTree"}'),
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
        ("bucket", "s3://recordings\nx", "s3://recordings\\nx"),
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
        ("place", "s3://payroll/done/x", "s3://payroll"),
        ("table", "payroll.data", "payroll.data"),
        ("table", "data.a.b", "data.a.b"),
        ("table", "mydata.trips", "mydata.trips"),
        ("load options", {"table.cluster": "payroll"}, "payroll"),
        ("load options", '{"table.cluster": "payroll"}', "payroll"),
        ("tags", "loaded=true", "loaded=true"),
        ("tags", " a = b ,c", "a=b"),
        ("tags", "{{ x }}", "{{ x }}="),
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
    variable({use: ["s3://team-*"] for use in restrictions.USES})
    run({"x": "s3://team-audio", "y": "tables-events"}, x=field("bucket"), y=field("queue"))
    for name in ("s3://recordings", "s3://team-a@payroll_s3", "s3://team-a/b", "s3://team-a s3://b", "s3://team"):
        with pytest.raises(AirflowFailException):
            run({"x": name}, x=field("bucket"))


@pytest.mark.parametrize("value", ["{", "[]", '{"read": "s3://*"}', '{"bucket": []}', '{"buckets": [1]}'])
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
    names = ["s3://one", "s3://team-*", "ais://two"]
    variable({"read": [*names, "s3://three"], "write": [*names, "s3://team-1"], "delete": names, "tables": ["a.b"]})
    restrictions._listed_names.cache_clear()
    try:
        assert restrictions.form_choices("bucket")["examples"] == ["s3://one", "ais://two"]
        assert restrictions.form_choices("s3 bucket")["examples"] == ["one"]
        assert restrictions.form_choices("source bucket")["examples"] == ["one", "ais://two"]
        for kind in ("chart", "backend"):
            assert "examples" not in restrictions.form_choices(kind)
        assert restrictions.form_choices("bucket", "read")["examples"] == ["s3://one", "ais://two", "s3://three"]
        assert restrictions.form_choices("bucket", "read", "write")["examples"] == ["s3://one", "ais://two"]
        assert restrictions.form_choices("table")["examples"] == ["a.b"]
        with pytest.raises(OperatorInputError, match="choose from bucket"):
            restrictions.form_choices("tables")
        with pytest.raises(OperatorInputError, match="no use 'append': choose from read, write, delete"):
            restrictions.form_choices("bucket", "read", "append")
    finally:
        restrictions._listed_names.cache_clear()


def test_every_public_operator_checks() -> None:
    operators = [getattr(public, name) for name in public.__all__ if name.endswith("Operator")]
    assert len(operators) > 20
    assert all(issubclass(operator, restrictions.FormOperator) for operator in operators)


def test_other_operators_can_check() -> None:
    with DAG("d", schedule=None, params={"x": field("bucket", "s3://recordings")}) as dag:
        task = AISPrefetchBucketOperator(task_id="t", bucket="s3://b")
    context: Any = {"dag": dag, "task": task, "params": {"x": "s3://payroll"}}
    with pytest.raises(OperatorInputError):
        public.check_form(context)


@pytest.mark.parametrize("written", ["oci://recordings", "oc://recordings"])
def test_aistores_own_scheme_for_oci_means_the_listed_bucket(variable: Any, written: str) -> None:
    variable({use: ["oci://recordings"] for use in restrictions.USES})
    run({"source": written}, source=field("bucket"))
    with pytest.raises(AirflowFailException, match="oci://payroll"):
        run({"source": "oc://payroll"}, source=field("bucket"))


USED = {"read": ["s3://r", "s3://all"], "write": ["s3://w", "s3://all"], "delete": ["s3://d", "s3://all"]}


@pytest.mark.parametrize("use", restrictions.USES)
def test_each_use_of_a_bucket_has_its_own_list(variable: Any, use: str) -> None:
    variable(USED)
    run({"x": f"s3://{use[0]}"}, x=field("bucket", uses=use))
    run({"x": "s3://all"}, x=field("bucket"))
    for other in sorted({*restrictions.USES} - {use}):
        with pytest.raises(AirflowFailException, match=f"is not one of the buckets that forms may {other}: "):
            run({"x": f"s3://{use[0]}"}, x=field("bucket", uses=other))
        with pytest.raises(AirflowFailException, match=f"may {other}: "):
            run({"x": f"s3://{use[0]}"}, x=field("bucket"))  # without uses: all of them


def test_a_described_field_keeps_no_use_of_the_other(variable: Any) -> None:
    """A field for a destination is made from that for a source."""
    variable(USED)
    restrictions._listed_names.cache_clear()
    try:
        source = field("bucket", uses="read")
        assert "s3://r" in source.schema["examples"]
        copied = restrictions.described(source, "x", **restrictions.form_choices("bucket"))
        assert copied.schema["examples"] == ["s3://all"]
        assert restrictions.described(source, "x").schema["examples"] == source.schema["examples"]
        with pytest.raises(AirflowFailException, match="may write"):
            run({"x": "s3://r"}, x=copied)
    finally:
        restrictions._listed_names.cache_clear()


@pytest.mark.parametrize(("action", "lacking"), [("delete", "delete"), ("move", "delete"), ("tag", "write")])
def test_an_action_after_the_load_needs_its_own_right(variable: Any, action: str, lacking: str) -> None:
    variable({**USED, "after_load": ["none", "delete", "move", "tag"]})
    fields = {
        "x": field("bucket", uses="read"),
        "y": field("bucket", uses="write"),
        "do": field("after load", "none"),
    }
    run({"x": "s3://r", "y": "s3://w"}, **fields)
    run({"x": "s3://all", "y": "s3://w", "do": action}, **fields)
    with pytest.raises(AirflowFailException, match=f"x: 's3://r' is not one of the buckets that forms may {lacking}"):
        run({"x": "s3://r", "y": "s3://w", "do": action}, **fields)


def test_tags_are_listed(variable: Any) -> None:
    variable({"tags": ["loaded=*", "by=storeside"]})
    run({"x": "loaded=2026/11 @ a=b, by=storeside"}, x=field("tags"))
    run({"x": "loaded"}, x=field("tags"))  # with an empty value
    for text in ("by=other", "loaded =1, x=loaded=1", "{{ loaded=1 }}"):
        with pytest.raises(AirflowFailException, match="is not one of the tags"):
            run({"x": text}, x=field("tags"))


# Values that forms could have with the Variable of earlier versions, by kind.
BEFORE: dict[str, Any] = {
    "bucket": "s3://team-a",
    "place": "s3://team-a/done/",
    "table": "any thing.what/ever",
    "load options": {"table.cluster": "any one"},
    "tags": "any=thing, x=a/b=c",
}


@pytest.mark.parametrize("kind", BEFORE)
def test_the_variable_of_earlier_versions_allows_what_it_allowed(
    variable: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = {"buckets": ["s3://team-*"], "after_load": ["none", "tag"], "etls": ["a"]}
    variable(earlier)
    run({"x": BEFORE[kind]}, x=field(kind))
    (warning,) = (record for record in caplog.records if record.name == restrictions.__name__)
    with pytest.raises(AirflowFailException, match="may read"):
        run({"x": "s3://other"}, x=field("bucket"))
    renewed = json.loads(warning.getMessage().partition("): ")[2])
    assert renewed == {
        **dict.fromkeys(restrictions.USES, earlier["buckets"]), "after_load": ["none", "tag"], "etls": ["a"],
        "tables": ["*.*"], "databases": ["*"], "clusters": ["*"], "options": ["*"], "tags": ["*"],
    }  # fmt: skip
    caplog.clear()
    variable(renewed)
    run({"x": BEFORE[kind]}, x=field(kind))
    assert not caplog.records


def test_an_earlier_variable_without_buckets_keeps_the_default_buckets(variable: Any) -> None:
    variable({"queues": ["own"]})
    run({"x": "s3://recordings", "y": "any.table"}, x=field("bucket"), y=field("table"))
    with pytest.raises(AirflowFailException, match="own-2"):
        run({"x": "own-2"}, x=field("queue"))


def test_one_new_list_beside_buckets_ends_what_was_unlimited(variable: Any) -> None:
    variable({"buckets": ["s3://team-*"], "tables": ["data.a"]})
    run({"x": "s3://team-a", "y": "data.a"}, x=field("bucket"), y=field("table"))
    for kind, value in (("table", "data.b"), ("load options", {"table.cluster": "a"}), ("tags", "a=b")):
        with pytest.raises(AirflowFailException, match="is not one of the"):
            run({"x": value}, x=field(kind))


def test_a_refused_name_changes_no_default(variable: Any) -> None:
    """Every process of a worker checks many runs."""
    variable({"queues": ["own"]})
    for _ in range(2):
        with pytest.raises(
            AirflowFailException, match=r"'a\.b\.c' is not one of the tables that forms may use: \*\.\*\. "
        ):
            run({"x": "a.b.c"}, x=field("table"))


def test_only_a_table_of_the_form_limits_its_database(variable: Any) -> None:
    variable({"tables": ["*.*"], "databases": ["own*"]})
    with DAG("d", schedule=None, params={"x": field("table", "own.a"), "y": Param("other.b", type="string")}) as dag:
        task = AISPrefetchBucketOperator(task_id="t", bucket="s3://b")
    context: Any = {"dag": dag, "task": task, "params": {"x": "other.a", "y": "other.b"}}
    form = restrictions.check_form(context)
    assert not form.may_create_database("other.a")
    assert form.may_create_database("other.b")  # of a field without `form_choices`, or of the DAG's author
    context["params"]["x"] = "owned.a"
    assert restrictions.check_form(context).may_create_database("owned.a")


def load(options: Any, **arguments: Any) -> None:
    """Do what a worker does before `execute` of a load whose form has the field `options`."""
    with DAG("d", schedule=None, params={"options": field("load options", {})}) as dag:
        task = S3ToClickHouseOperator(
            task_id="t", bucket="trips", table="data.t", options="{{ params.options }}", **arguments
        )
    context: Any = {"dag": dag, "task": task, "params": {"options": options}}
    task.pre_execute(context)


LIMITS = {name: option.range for name, option in named_options().items() if option.range and name != "csv.skip_rows"}


def test_every_number_has_a_range_and_all_but_these_are_limits() -> None:
    numbers = {name for name, option in named_options().items() if option.kind in ("integer", "number")}
    assert numbers == {*LIMITS, "csv.skip_rows", "overlap_seconds"}


@pytest.mark.parametrize("name", LIMITS)
def test_a_form_lowers_a_limit_and_raises_none(name: str) -> None:
    prefix, _, last = name.partition(".")
    own = getattr({"read": ReadOptions(), "batches": Batches(), "limits": LoadLimits()}[prefix], last)
    load({name: own})
    load(json.dumps({name: LIMITS[name][0]}))
    for options in ({name: own + 1}, json.dumps({name: own + 1})):
        with pytest.raises(AirflowFailException) as refused:
            load(options)
        assert f"options: '{name}={own + 1}' is not one of the options that forms may use: none" in str(refused.value)
        assert str(refused.value).endswith(f'to {{"options": ["{name}={own + 1}"]}}')


def test_the_variable_allows_higher_limits(variable: Any) -> None:
    variable({"options": ["limits.rows=20000000000", "read.sample_bytes=wrong"]})
    load({"limits.rows": 20_000_000_000})
    for options in ({"limits.rows": 20_000_000_001}, {"limits.bytes": 1 << 41}, {"read.sample_bytes": 1 << 19}):
        with pytest.raises(AirflowFailException, match=r"use: limits\.rows=20000000000, read\.sample_bytes=wrong"):
            load(options)


@pytest.mark.parametrize("options", [{"remove_deleted": "5 %"}, {"replace_partition": "2026-01-05"}])
def test_a_form_removes_rows_of_earlier_loads_only_if_the_variable_says_so(
    variable: Any, options: dict[str, str]
) -> None:
    (name,) = options
    with pytest.raises(AirflowFailException, match=f"'{name}' is not one of the options that forms may use: none"):
        load(options)
    variable({"options": [f"{name}=5", "limits.rows=1"]})
    with pytest.raises(AirflowFailException, match=f"'{name}' is not one"):
        load(options)
    variable({"options": [name]})
    load(options)


def test_the_code_of_a_dag_states_what_its_form_may_lower() -> None:
    own = {"limits": LoadLimits(rows=10), "read": ReadOptions(sample_bytes=1 << 20), "batch_bytes": 1 << 31}
    load({"limits.rows": 9, "read.sample_bytes": 1 << 20, "batches.bytes": 1 << 31}, **own)
    with pytest.raises(AirflowFailException, match=r"limits\.rows=11"):
        load({"limits.rows": 11}, **own)


def test_a_task_reads_the_variable_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(Variable, "get", lambda name, **_: reads.append(name))
    load({"limits.rows": 9})
    assert reads == [restrictions.VARIABLE]
