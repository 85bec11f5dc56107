"""Entries of all shipped forms: the spellings that fields take, and the entries that tasks refuse at their start."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import AirflowFailException

from storeside.operators import AISPrefetchBucketOperator, check_form, entries, form_choices, must_match, restrictions
from storeside.operators.errors import OperatorInputError
from storeside.transfer.base.errors import TransferInputError
from tests.attacks import forms
from tests.attacks.test_form_lists import ALLOWED, MOVE, OWNER, _aws

# Entries that the tasks accept, by DAG: those of all fields that lend access, and of all fields with an expression.
FILLED: dict[str, dict[str, Any]] = {
    **ALLOWED,
    "s3_to_clickhouse": {**ALLOWED["s3_to_clickhouse"], **MOVE, "bucket": "own"},
    "s3_replication": {**ALLOWED["s3_replication"], **MOVE, "bucket": "own"},
    "transform_bucket": {**ALLOWED["transform_bucket"], "quarantine": "ais://own"},
    "cluster_throughput": {
        **ALLOWED["cluster_throughput"],
        "object_size": "10MiB",
        "dataset_size": "1 GiB",
        "write_limit": "10GiB",
        "chart": "s3://own/a.svg",
    },
    "backend_benchmark": {**ALLOWED["backend_benchmark"], "chart": "s3://own/a.png", "through_aistore": ["s3://own"]},
}


@pytest.fixture(autouse=True)
def _owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps(OWNER))


def spellings(kind: str, bare: str, text: str) -> list[str]:
    """Return what users type for an entry that operators take as it is."""
    found = [text, f" {text}", f"{text}\n"]
    if kind in ("bucket", "backend"):
        found += [f"{text}/", f" {text}// "]
        found += [text.removeprefix(f"{bare}://"), f"{text.removeprefix(f'{bare}://')}/ "]
    elif kind in ("s3 bucket", "source bucket"):
        found += [f"s3://{text}", f"s3://{text}/", f"{text}/", f"\ts3://{text} "]
    elif kind == "place":
        found += [text.removeprefix("s3://")]
    return found


@cache
def last_task(dag: str) -> str:
    return forms.tasks_of(dag)[-1]


def fields() -> list[tuple[str, str, str, str, Any]]:
    """Return each limited field of a shipped form: its DAG, its name, its kind, the bare scheme and an entry."""
    found = []
    for dag, conf in FILLED.items():
        schemas = {name: dict(schema) for name, schema in restrictions._schemas([forms._module_of(dag).dag.params])}
        for name, value in conf.items():
            kind = schemas[name].get(restrictions._MARK, "")
            if kind or entries.PATTERN in schemas[name]:
                found.append((dag, name, kind, schemas[name].get(entries.BARE, "s3"), value))
    return found


CASES = [
    (dag, name, value, [text] if isinstance(value, list) else text)
    for dag, name, kind, bare, value in fields()
    for text in spellings(kind, bare, value[0] if isinstance(value, list) else value)
    if kind != "after load"
]


@pytest.mark.parametrize(("dag", "name", "value", "typed"), CASES)
def test_a_field_takes_what_people_type(dag: str, name: str, value: Any, typed: Any) -> None:
    """The fields that lend access reach the operator, and the check of the owner's lists, in one spelling."""
    wanted = [value[0]] if isinstance(value, list) else value
    made = forms.started(dag, last_task(dag), {**FILLED[dag], name: typed})
    assert all(field.value == wanted for field in made.checked_form.fields if field.name == name)


def test_all_kinds_of_fields_are_tried() -> None:
    kinds = {kind for _, _, kind, _, _ in fields()}
    buckets = {"bucket", "s3 bucket", "source bucket", "backend", "place", "chart"}
    assert kinds >= {*buckets, "table", "queue", "domain", ""}


@pytest.mark.parametrize(
    ("dag", "task", "typed", "argument", "expected"),
    [
        ("s3_to_clickhouse", "load", {"bucket": "own"}, "source", "s3://own/"),
        ("s3_to_clickhouse", "load", {"bucket": " s3://own/ "}, "source", "s3://own/"),
        ("s3_to_clickhouse", "load", {"bucket": "ais://own/"}, "source", "ais://own/"),
        ("hsds_export", "export", {"bucket": "s3://own"}, "bucket", "own"),
        ("speech_pipeline", "ingest", {"source": "shared"}, "source", "s3://shared"),
        ("transform_bucket", "transform", {"destination": "own"}, "destination", "ais://own"),
        ("transform_bucket", "transform", {"source": "shared"}, "latest", "True"),
        ("ingest", "copy", {"destination": "scratch/"}, "destination", "ais://scratch"),
        ("backend_benchmark", "measure", {"backends": ["own", "", "ais://scratch/"]}, "backends", "s3://own ais://scratch"),
        ("cluster_throughput", "measure", {"object_size": " 1MiB"}, "object_size", "1MiB"),
    ],
)  # fmt: skip
def test_an_operator_gets_one_spelling(
    dag: str, task: str, typed: dict[str, Any], argument: str, expected: str
) -> None:
    assert getattr(forms.started(dag, task, {**ALLOWED[dag], **typed}), argument) == expected


TABLES = (
    "trips",
    "a.b.c",
    ".rows",
    "storeside.loads",
    "storeside_staging.x",
    "system.tables",
    "data.own_rows.x",
    "",
    " ",
)
BUCKETS = (
    "ftp://shared",
    "s3://shared/prefix",
    "shared/prefix",
    "s3://",
    "s3:///",
    "://shared",
    "file:///etc",
    "",
    " ",
)
NAMES = (
    "s3://own/prefix",
    "own/../shared",
    "ow n",
    "own\nshared",
    "-own",
    "o",
    "gs://own",
    "s3://",
    "",
    "{{ 7 * 7 }}",
)
REFUSED: list[tuple[str, str, tuple[Any, ...]]] = [
    *((dag, "table", TABLES) for dag, conf in ALLOWED.items() if "table" in conf),
    *((dag, "source", BUCKETS) for dag, conf in ALLOWED.items() if "source" in conf),
    ("transform_bucket", "destination", (*BUCKETS, "ais://@c/own/prefix")),
    ("transform_to_clickhouse", "destination", (*BUCKETS, "s3://own", "ais://@c/own", "ais://own#x")),
    ("ingest", "destination", ("gs://own", "ais://own/prefix", "s3://")),
    *((dag, "bucket", NAMES) for dag, conf in ALLOWED.items() if conf.get("bucket") in ("own", "shared")),
    ("s3_to_clickhouse", "bucket", ("ais://@c/own", "ais://own#x", "ais://own/prefix")),
    ("cluster_throughput", "bucket", ("", " ", "ftp://scratch", "ais://")),
    *(("cluster_throughput", size, ("10", "10MB", "0MiB", "-1MiB", "1 0MiB", "10MiB\n1")) for size in
      ("object_size", "dataset_size", "write_limit")),
    ("cluster_throughput", "chart", ("file:///a.svg", "local:///a.svg", "s3://own/a.png", "/a.svg", "a.svg")),
    ("backend_benchmark", "chart", ("file:///a.png", "s3://own/a.svg")),
    ("backend_benchmark", "backends", (["gs://own"], ["s3://own/x"], ["s3://own", "a b"], ["s3://own@a@b"])),
    ("backend_benchmark", "through_aistore", (["ais://scratch"], ["s3://own/x"])),
    ("hsds_export", "domain", ("own.h5", "http://own", "", "/")),
    ("hsds_export", "dataset", ("values", "", "/")),
    ("hsds_export", "prefix", ("/a", "q?/", "exp*", "a{1}/", "{", "")),
    *((dag, "prefix", ("q?/", "exp*", "a{1}/", "{")) for dag in ("transform_to_clickhouse", "speech_utterances")),
    *((dag, "move_to", ("gs://own/a", "s3://", "ais://own/a")) for dag in ("s3_to_clickhouse", "s3_replication")),
    *((dag, "message", ("a.b", "a b", "a;b")) for dag in ("s3_to_clickhouse", "transform_to_clickhouse")),
    *((dag, "partition_columns", ("a/b", "../x")) for dag in ("s3_to_clickhouse", "s3_replication")),
    *((dag, "extensions", ({"txt": "../x"}, {"a/b": "json"}, {"txt": "js on"}, {"txt": 5}, {"..": "x"}))
      for dag in ("transform_bucket", "transform_to_clickhouse")),
    *((dag, "queue", (" ",)) for dag, conf in ALLOWED.items() if "queue" in conf and dag != "check_connections"),
    *((dag, "transformer", (" ",)) for dag in ("transform_bucket", "transform_to_clickhouse")),
    *((dag, "options", ({"csv.quotes": "'"}, {"csv.quote": 5}, {"limits.rows": "x"}, {"limits.rows": 0},
                        {"on_drift": "x"}, {"table.columns": {"a": 1}}, {"create_database": True}))
      for dag in ("s3_to_clickhouse", "transform_to_clickhouse")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dag", "name", "typed"), [(dag, name, typed) for dag, name, some in REFUSED for typed in some]
)
def test_the_task_refuses_a_wrong_entry_and_names_the_field(dag: str, name: str, typed: Any) -> None:
    """The attacker may start this DAG. All tasks have the same check; see `test_every_operator_checks_the_form`."""
    with pytest.raises(AirflowFailException, match=f"^{name}: ") as refused:
        forms.started(dag, last_task(dag), {**FILLED[dag], name: typed})
    assert "storeside_forms" not in str(refused.value)


@pytest.mark.parametrize("dag", ["s3_to_clickhouse", "s3_replication"])
@pytest.mark.parametrize("typed", ["yesterday", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_a_time_that_airflow_does_not_check_is_refused_before_the_load(dag: str, typed: str) -> None:
    (name,) = forms.tasks_of(dag)
    task = forms.started(dag, name, {**ALLOWED[dag], "modified_after": typed})
    with pytest.raises(TransferInputError, match=r"modified_after .*: write a date and time with a time zone"):
        task.request(_aws(), {"modified_after": task.modified_after})


def test_one_message_names_all_wrong_entries() -> None:
    with pytest.raises(AirflowFailException, match=r"^bucket: 'a b': write .*; table: 'x': write database\.table"):
        forms.started("s3_to_clickhouse", "load", {"bucket": "a b", "table": "x"})


def test_a_prefix_may_begin_and_end_with_blanks() -> None:
    task = forms.started("speech_utterances", "cut", {**ALLOWED["speech_utterances"], "prefix": " [2026] +/ "})
    assert task.prefix == " [2026] +/ "


def test_other_operators_get_only_what_they_can_take() -> None:
    """Airflow renders their templates with the entry as it was typed."""
    with DAG("d", schedule=None, params={"x": Param("own", type="string", **form_choices("bucket"))}) as dag:
        task = AISPrefetchBucketOperator(task_id="t", bucket="s3://b")
    context: Any = {"dag": dag, "task": task, "params": {"x": " own"}}
    with pytest.raises(OperatorInputError, match="x: ' own': write 's3://own'"):
        check_form(context)


def test_a_mapped_task_gets_the_same_spelling() -> None:
    x = Param("scratch", type="string", **form_choices("bucket", bare="ais"))
    with DAG("d", schedule=None, params={"x": x}) as dag:
        made: Any = AISPrefetchBucketOperator.partial(task_id="t", bucket="{{ params.x }}").expand(prefix=["a", "b"])
    task = made.unmap({"prefix": "a"})
    found = process_params(dag, made, {"x": "scratch/"}, suppress_exception=False)
    context: Any = {"dag": dag, "task": task, "params": found}
    task._do_render_template_fields(task, made.template_fields, context, made.get_template_env(), set())
    assert task.bucket == "ais://scratch"
    task.pre_execute(context)


def test_a_field_says_what_the_owner_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(names: list[str]) -> str:
        monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps({"read": names}))
        restrictions._listed_names.cache_clear()
        return str(form_choices("bucket", "read", description="Any bucket")["description"])

    try:
        assert (
            described(["s3://a", "s3://b-*"])
            == "Any bucket. Only what the Variable storeside_forms lists: s3://a, s3://b-*"
        )
        assert described([f"s3://{n}" for n in range(9)]).endswith("s3://5 and 3 more")
        assert described(["s3://*", "ais://*"]) == "Any bucket"
        assert described([]) == "Any bucket. The Variable storeside_forms lists none"
        field = Param("a", type="string", **form_choices("bucket", "read", description="x"))
        assert "lists none" in str(restrictions.described(field, "y").description)
    finally:
        restrictions._listed_names.cache_clear()


def test_a_field_without_a_kind_is_checked() -> None:
    assert list(entries.faults("x", "", must_match("a+", "write a"), "b")) == ["x: 'b': write a"]
    assert list(entries.faults("x", "", {"type": ["null", "string"], **must_match("a+", "write a")}, "")) == []
