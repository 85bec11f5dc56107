from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import airflow.models
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset
from airflow.sdk.definitions._internal.types import is_arg_set
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from storeside.aistore.buckets import PROVIDERS
from storeside.aistore.spec import COMMUNICATION_TYPES
from storeside.operators import restrictions
from storeside.stack.settings import CHECKOUT
from storeside.transformers.audio.formats import CODECS, LAYOUTS, SAMPLE_RATES


def own_dags() -> tuple[str, ...]:
    """Return the project's DAGs; a user's own DAG in the folder follows no policy of ours."""
    tracked = subprocess.run(
        ["git", "ls-files", "dags/*.py"], cwd=CHECKOUT, check=False, capture_output=True, text=True
    )
    paths = map(Path, tracked.stdout.split()) if tracked.stdout else (CHECKOUT / "dags").glob("*.py")
    return tuple(sorted(path.stem for path in paths))


DAGS = own_dags()
PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
BANNED = set(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"])


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(CHECKOUT / "dags")


@pytest.fixture(params=DAGS)
def dag(bag: DagBag, request: pytest.FixtureRequest) -> Any:
    return bag.dags[request.param]


def test_every_dag_can_be_read(bag: DagBag) -> None:
    assert {path: e for path, e in bag.import_errors.items() if Path(path).stem in DAGS} == {}
    assert set(DAGS) <= set(bag.dags)


def test_dag_can_be_stored(dag: Any) -> None:
    """As the DAG processor stores it; this detects, for example, arguments that are BaseOperator's own."""
    DagSerialization.to_dict(dag)


def test_dag_says_what_it_is(dag: Any) -> None:
    assert dag.doc_md
    assert dag.description
    assert dag.tags
    if dag.dag_id != "s3_to_clickhouse":  # its runs are safe beside each other
        assert dag.max_active_runs == 1, "two runs would transform the same bucket pair, which AIStore refuses"
    assert dag.catchup is False


def test_doc_names_every_task_in_order(dag: Any) -> None:
    # ingest is described as **ingest**, and so on
    places = [dag.doc_md.find(f"**{task.task_id}**") for task in dag.topological_sort()]
    assert -1 not in places
    assert places == sorted(places)


def test_tasks_are_owned_retried_and_ours(dag: Any) -> None:
    assert dag.tasks
    for task in dag.tasks:
        assert task.owner not in ("", "airflow"), task.task_id
        assert task.retries >= 1, task.task_id
        assert type(task).__module__.split(".")[:2] == ["storeside", "operators"], task.task_id


def test_assets_are_called_as_those_who_wait_for_them_call_them(dag: Any) -> None:
    """Airflow has one active asset per URI: a DAG that waits for the asset under another name would never run."""
    ours = [outlet for task in dag.tasks for outlet in task.outlets if isinstance(outlet, Asset)]
    condition = dag.timetable.asset_condition
    waited_for = condition.objects if condition else []
    for asset in (*ours, *waited_for):
        assert asset.uri.rstrip("/") == asset.name


def test_tasks_are_one_chain(dag: Any) -> None:
    assert len(dag.roots) == len(dag.leaves) == 1
    teardowns = {task.task_id for task in dag.tasks if task.is_teardown}
    assert all(len(task.downstream_task_ids - teardowns) <= 1 for task in dag.tasks)


def test_no_field_hides_why_it_refuses_an_entry(dag: Any) -> None:
    """Airflow's page shows "Bad Request" for a pattern, and limits the fields for choices and numbers itself."""
    for name in dag.params:
        schema = dag.params.get_param(name).schema
        assert not {"pattern", "propertyNames", "additionalProperties", "properties"} & schema.keys(), name
        assert "pattern" not in schema.get("items", {}), name


def test_params_are_described_and_typed(dag: Any) -> None:
    assert dag.params
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.description, name
        assert param.schema.get("title"), name
        assert param.schema.get("type"), name
        if is_arg_set(param.value):
            param.resolve()  # the default is valid


# Names of fields that give access to everything that a connection of Airflow reaches.
LENDING = re.compile(
    r"source|destination|bucket|quarantine|backends|domain|queue|chart|transformer|existing_etl|suite|after_load|move_to"
    r"|through_aistore|\w+_connection|table|options|tags"
)
# Other fields that take any text: it selects or describes objects and rows in the places that those fields name.
FREE = re.compile(
    r"prefix|keys|dataset|selection|members|extensions|snapshot|modified_after|message_ids|delimiter|schema|message"
    r"|order_by|partition_by|\w+_columns|object_size|dataset_size|write_limit"
)


def test_fields_that_lend_are_limited_to_listed_names(dag: Any) -> None:
    for name in dag.params:
        param = dag.params.get_param(name)
        if not LENDING.fullmatch(name):
            assert restrictions._MARK not in param.schema, name
            continue
        kind = param.schema[restrictions._MARK]
        assert (kind == "connection") == name.endswith("_connection"), name
        if param.has_value:
            for names, wanted in restrictions._Field(name, kind, restrictions.USES, param.value).wanted():
                assert restrictions.is_listed(names, wanted, restrictions.DEFAULTS[names]), (name, wanted)


def test_every_field_for_text_is_limited_or_known_to_need_no_limit(dag: Any) -> None:
    for name in dag.params:
        schema = dag.params.get_param(name).schema
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        is_open = "enum" not in schema and "enum" not in schema.get("items", {})
        if is_open and {"string", "array", "object"} & {*types}:
            assert LENDING.fullmatch(name) or FREE.fullmatch(name), name


# Fields that name data: a default would be the bucket, queue or table of another user, or exist only in the demo.
DATA = re.compile(r"source|destination|bucket|quarantine|backends|domain|dataset|queue|chart|table|existing_etl")


def test_forms_name_no_data_by_default(dag: Any) -> None:
    assert [name for name in dag.params if DATA.fullmatch(name) and dag.params.get_param(name).has_value] == []
    demo = {
        name.rpartition("://")[2] for kind in ("read", "queues", "domains") for name in restrictions.DEFAULTS[kind]
    }
    for name in dag.params:
        assert str(dag.params.get_param(name).value).rpartition("://")[2] not in {*demo, "data.trips"}, name


def test_fields_without_a_default_must_be_filled_in(dag: Any) -> None:
    for name in dag.params:
        param = dag.params.get_param(name)
        if not is_arg_set(param.value):
            assert "null" not in param.schema["type"], name
            with pytest.raises(ParamValidationError):
                param.resolve(None)


def test_no_dag_has_a_schedule_without_its_variable(dag: Any) -> None:
    """A user who starts a DAG from its form also unpauses it: neither a timetable nor an event starts more runs."""
    assert type(dag.timetable).__name__ == "NullTimetable"
    assert not dag.timetable.asset_condition


def test_every_operator_checks_the_form(dag: Any) -> None:
    assert all(isinstance(task, restrictions.FormOperator) for task in dag.tasks)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", None),
        ("prefix", 5),
        ("codec", "vorbis"),
        ("sample_rate", 3_999),
        ("sample_rate", 192_001),
        ("sample_rate", "16000"),
        ("sample_rate", 16_000.5),
        ("channels", 0),
        ("channels", 9),
        ("communication", "tcp"),
        ("on_failure", "ignore"),
        ("retry_failed", "yes"),
        ("retry_failed", None),
        ("max_seconds", 0),
    ],
)
def test_params_refuse(bag: DagBag, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        bag.dags["speech_pipeline"].params.get_param(name).resolve(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("source", f"{scheme}://recordings") for scheme in PROVIDERS),
        ("prefix", None),
        ("prefix", ""),
        ("prefix", "in/2026/"),
        ("sample_rate", 4_000),
        ("sample_rate", 192_000),
        ("channels", 2),
        ("retry_failed", True),
        ("max_seconds", 1),
    ],
)
def test_params_take(bag: DagBag, name: str, value: Any) -> None:
    assert bag.dags["speech_pipeline"].params.get_param(name).resolve(value) == value


def test_params_offer_what_the_engine_can_do(bag: DagBag) -> None:
    params = bag.dags["speech_pipeline"].params
    of = {codec: container for container, codecs in CODECS.items() for codec in codecs}
    assert params.get_param("codec").schema["enum"] == list(of)
    transcode = bag.dags["speech_pipeline"].get_task("transcode")
    for codec, container in of.items():
        task = copy.copy(transcode)
        task.render_template_fields({"params": {**params.dump(), "codec": codec, "sample_rate": 48_000}})
        assert task.audio().container == container
    rate = params.get_param("sample_rate").schema
    assert range(rate["minimum"], rate["maximum"] + 1) == SAMPLE_RATES
    assert params.get_param("channels").schema["enum"] == list(LAYOUTS)
    assert set(params.get_param("communication").schema["enum"]) < set(COMMUNICATION_TYPES)
    for name in ("codec", "communication", "on_failure"):
        schema = params.get_param(name).schema
        assert list(schema["values_display"]) == schema["enum"]


def test_templates_name_params_that_exist(bag: DagBag) -> None:
    dag = bag.dags["speech_pipeline"]
    used = {
        name
        for task in dag.tasks
        for field in task.template_fields
        for name in re.findall(r"params\.(\w+)", str(getattr(task, field)))
    }
    assert used == set(dag.params)


# --- settings in Variables


def transform_bucket(monkeypatch: pytest.MonkeyPatch, value: Any) -> Any:
    """Parse the DAG with its Variable, and return the bag."""
    text = value if isinstance(value, str) else json.dumps(value)
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_TRANSFORM_BUCKET", text)
    return DagBag(CHECKOUT / "dags" / "transform_bucket.py")


def test_a_variable_sets_schedule_and_defaults(bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(bag.dags["transform_bucket"].timetable).__name__ == "NullTimetable"
    given = {
        "schedule": "0 4 * * *", "source": "s3://papers", "destination": "ais://words", "prefix": "2026/",
        "existing_etl": "hello-world-etl", "image": "registry.example.com/papers:2",
        "environment": {"LANGUAGE": "en"}, "extensions": {"tex": "json"}, "communication": "hpush",
        "members": "*.tex",
    }  # fmt: skip
    dag = transform_bucket(monkeypatch, given).dags["transform_bucket"]
    assert dag.timetable.expression == "0 4 * * *"
    assert {name: dag.params[name] for name in given.keys() & set(dag.params)} == {
        name: value for name, value in given.items() if name not in ("schedule", "image", "environment")
    }
    task = dag.get_task("transform")
    assert (task.image, task.environment) == ("registry.example.com/papers:2", {"LANGUAGE": "en"})


def test_a_command_reads_settings_from_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """`airflow dags test` stores the DAGs of all files as it parses them, and the SDK finds no Variable in it."""
    settings = {"schedule": "0 4 * * *", "source": "s3://papers", "destination": "ais://words"}
    stored = {"storeside_transform_bucket": json.dumps(settings)}
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT", raising=False)
    monkeypatch.setitem(sys.modules, "airflow.cli.cli_parser", ModuleType("airflow.cli.cli_parser"))
    monkeypatch.setattr(airflow.models.Variable, "get", stored.get)
    dag = DagBag(CHECKOUT / "dags" / "transform_bucket.py").dags["transform_bucket"]
    assert dag.timetable.expression == "0 4 * * *"
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    dag = DagBag(CHECKOUT / "dags" / "transform_bucket.py").dags["transform_bucket"]
    assert type(dag.timetable).__name__ == "NullTimetable"


@pytest.mark.parametrize(("given", "runs"), [({}, 1), ({"parallel_runs": 4}, 4)])
def test_runs_of_the_speech_pipeline_are_parallel_if_its_setting_says_so(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, int], runs: int
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_SPEECH_PIPELINE", json.dumps(given))
    (dag,) = DagBag(CHECKOUT / "dags" / "speech_pipeline.py").dags.values()
    assert dag.max_active_runs == runs


@pytest.mark.parametrize(("schedule", "runs"), [("", 16), ("*/15 * * * *", 1)])
def test_loads_are_parallel_unless_a_schedule_could_start_one_beside_the_last(
    monkeypatch: pytest.MonkeyPatch, schedule: str, runs: int
) -> None:
    given = {"schedule": schedule, "bucket": "trips", "table": "data.trips"}
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_S3_TO_CLICKHOUSE", json.dumps(given))
    (dag,) = DagBag(CHECKOUT / "dags" / "s3_to_clickhouse.py").dags.values()
    assert dag.max_active_runs == runs


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"queue": "papers-events"}, "AssetTriggeredTimetable"),
        ({"queue": "papers-events", "schedule": "0 4 * * *"}, "AssetOrTimeSchedule"),
    ],
)
def test_a_queue_in_the_variable_starts_runs_and_is_settled(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], kind: str
) -> None:
    given = {**given, "source": "s3://papers", "destination": "ais://words"}
    dag = transform_bucket(monkeypatch, given).dags["transform_bucket"]
    DagSerialization.to_dict(dag)
    assert type(dag.timetable).__name__ == kind
    (asset,) = dag.timetable.asset_condition.objects
    assert (asset.name, asset.uri.rstrip("/")) == ("sqs://papers-events", "sqs://papers-events")
    assert asset.watchers[0].trigger.queue == "papers-events"
    assert [task.task_id for task in dag.topological_sort()] == ["lease_events", "transform", "settle_events"]
    assert dag.get_task("settle_events").is_teardown
    assert {dag.get_task(name).sqs_queue for name in ("lease_events", "settle_events")} == {"papers-events"}
    test_doc_names_every_task_in_order(dag)
    test_tasks_are_one_chain(dag)


def test_other_dags_take_buckets_queue_and_image_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "source": "s3://calls", "queue": "calls-events", "recordings": "ais://calls", "speech": "ais://call-speech",
        "facts": "ais://call-facts", "image": "registry.example.com/audio:2", "schedule": "0 5 * * *",
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_SPEECH_PIPELINE", json.dumps(given))
    dag = DagBag(CHECKOUT / "dags" / "speech_pipeline.py").dags["speech_pipeline"]
    text = json.dumps(DagSerialization.to_dict(dag))
    assert [value for value in given.values() if value not in text] == []
    assert not re.search(r'"ais://(recordings|speech|speech-facts)"', text)
    assert {task.image for task in dag.tasks if hasattr(task, "image")} == {given["image"]}
    given = {"bucket": "orders", "queue": "orders-events", "table": "shop.orders", "schedule": "0 5 * * *"}
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_S3_EVENTS_TO_CLICKHOUSE", json.dumps(given))
    dag = DagBag(CHECKOUT / "dags" / "s3_events_to_clickhouse.py").dags["s3_events_to_clickhouse"]
    assert {name: dag.params[name] for name in ("bucket", "queue", "table")} == {
        name: given[name] for name in ("bucket", "queue", "table")
    }
    assert dag.timetable.asset_condition.objects[0].name == "sqs://orders-events"
    test_doc_names_every_task_in_order(dag)


def configured(monkeypatch: pytest.MonkeyPatch, dag: str, **settings: Any) -> DagBag:
    """Parse a DAG with its Variable, and return the bag."""
    monkeypatch.setenv(f"AIRFLOW_VAR_STORESIDE_{dag.upper()}", json.dumps(settings))
    return DagBag(CHECKOUT / "dags" / f"{dag}.py")


LOAD = {"bucket": "orders", "table": "shop.orders"}


@pytest.mark.parametrize(
    ("dag", "settings", "timetable"),
    [
        ("s3_to_clickhouse", {**LOAD, "keys": "2026/", "schedule": "0 5 * * *"}, "CronTriggerTimetable"),
        ("s3_replication", {**LOAD, "queue": "orders-events", "continuous": True}, "ContinuousTimetable"),
        ("s3_events_to_clickhouse", {**LOAD, "queue": "orders-events"}, "AssetTriggeredTimetable"),
        ("speech_pipeline", {"source": "s3://calls", "queue": "calls-events"}, "AssetTriggeredTimetable"),
        ("speech_pipeline", {"source": "s3://calls", "schedule": "0 5 * * *"}, "CronTriggerTimetable"),
        (
            "speech_utterances",
            {"source": "s3://calls", "table": "data.u", "queue": "q", "manifest": "s3://datasets/u.jsonl.gz"},
            "AssetTriggeredTimetable",
        ),
    ],
)
def test_a_variable_starts_runs_without_the_form(
    monkeypatch: pytest.MonkeyPatch, dag: str, settings: dict[str, Any], timetable: str
) -> None:
    found = configured(monkeypatch, dag, **settings).dags[dag]
    DagSerialization.to_dict(found)
    assert type(found.timetable).__name__ == timetable
    found.params.validate()  # runs have no form: each field has a default
    shown = settings.keys() & set(found.params)
    assert {name: found.params[name] for name in shown} == {name: settings[name] for name in shown}
    test_doc_names_every_task_in_order(found)
    test_tasks_are_one_chain(found)


def test_utterances_are_exported_only_to_a_place_that_the_variable_names(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not bag.dags["speech_utterances"].has_task("export")
    dag = configured(monkeypatch, "speech_utterances", manifest="s3://datasets/u.json", manifest_format="nemo_tarred")
    export = dag.dags["speech_utterances"].get_task("export")
    assert (export.table, export.destination, export.format, export.bucket) == (
        "{{ params.table }}", "s3://datasets/u.json", "nemo_tarred", "ais://utterances",
    )  # fmt: skip
    assert export.upstream_task_ids == {"load"}


@pytest.mark.parametrize(
    ("dag", "settings", "absent"),
    [
        (
            "s3_to_clickhouse",
            {"schedule": "0 5 * * *"},
            "'schedule', which starts runs without the form: add bucket, table",
        ),
        (
            "s3_replication",
            {**LOAD, "continuous": True},
            "'continuous', which starts runs without the form: add queue",
        ),
        ("s3_events_to_clickhouse", {"queue": "orders-events"}, "'queue', .* add bucket, table"),
        ("speech_pipeline", {"queue": "calls-events"}, "'queue', .* add source"),
        ("transform_bucket", {"schedule": "0 5 * * *", "source": "s3://papers"}, "'schedule', .* add destination"),
    ],
)
def test_a_schedule_without_data_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch, dag: str, settings: dict[str, Any], absent: str
) -> None:
    bag = configured(monkeypatch, dag, **settings)
    assert not bag.dags
    (error,) = bag.import_errors.values()
    assert re.search(f"Variable storeside_{dag} has the setting {absent}", error)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "storeside_transform_bucket is not a JSON object"),
        ([], "storeside_transform_bucket is not a JSON object"),
        ({"schedulle": ""}, "has the setting 'schedulle': its settings are schedule, queue, source"),
        ({"schedule": 5}, 'schedule is 5, but has the type of ""'),
        (
            {"queue": "q", "source": "ais://papers", "destination": "ais://words"},
            "source 'ais://papers': only S3 sends events",
        ),
        ({"schedule": "often"}, "storeside_transform_bucket: schedule 'often': Exactly 5"),
    ],
)
def test_a_wrong_variable_is_an_import_error(monkeypatch: pytest.MonkeyPatch, value: Any, message: str) -> None:
    bag = transform_bucket(monkeypatch, value)
    assert not bag.dags
    assert message in next(iter(bag.import_errors.values()))


@pytest.mark.parametrize("runs", [0, -1])
def test_a_pipeline_without_a_run_is_an_import_error(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    bag = configured(monkeypatch, "speech_pipeline", parallel_runs=runs)
    assert not bag.dags
    assert f"parallel_runs is {runs}, but needs to be 1 or more" in next(iter(bag.import_errors.values()))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"source": "s3://texts"},
            {"existing_etl": "", "latest": "True", "command": "text_facts", "extensions": '{"txt": "json"}'},
        ),
        (
            {"source": "ais://in", "existing_etl": "my-etl", "extensions": {}, "transformer": "my.words:count"},
            {"existing_etl": "my-etl", "latest": "False", "command": "my.words:count", "extensions": "{}"},
        ),
    ],
)
def test_a_form_chooses_the_etl(bag: DagBag, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    dag = bag.dags["transform_bucket"]
    task = copy.copy(dag.get_task("transform"))
    task.render_template_fields({"params": {**dag.params.dump(), **fields}})
    found = {name: getattr(task, name) for name in expected}
    assert {**found, "command": found["command"][4]} == expected


# --- parsing is cheap

LOADED = "print('loaded', json.dumps(sorted(banned & {name.split('.')[0] for name in sys.modules})))"


def loaded(*steps: str) -> list[set[str]]:
    """Return the heavy modules that are loaded after each step, in a new process."""
    code = "".join(f"{step}\n{LOADED}\n" for step in steps)
    script = f"import json, sys\nbanned = set({sorted(BANNED)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    lines = (line.removeprefix("loaded ") for line in done.stdout.splitlines() if line.startswith("loaded "))
    return [set(json.loads(line)) for line in lines]


@pytest.mark.guarantee("light-dags")
def test_operators_load_no_heavy_module() -> None:
    ours = ", ".join(
        ".".join(("storeside", *path.relative_to(CHECKOUT).with_suffix("").parts))
        for path in sorted((CHECKOUT / "operators").rglob("*.py"))
        if path.name != "__init__.py"
    )
    assert loaded(f"import {ours}") == [set()]


@pytest.mark.guarantee("light-dags")
def test_dag_files_load_no_heavy_module_but_airflows_own() -> None:
    """Airflow loads the amazon provider, and so boto3, to understand the URI of an s3:// asset."""
    first = "import airflow.sdk; airflow.sdk.Asset(name='a', uri='s3://a')"
    airflow, *ours = loaded(first, *(f"import dags.{name}" for name in DAGS))
    assert airflow <= {"boto3"}
    assert dict(zip(DAGS, ours, strict=True)) == dict.fromkeys(DAGS, airflow)


def test_the_check_sees_a_heavy_module() -> None:
    assert loaded("import numpy") == [{"numpy"}]
