"""A user who may only trigger the shipped DAGs sends fields that the owner's lists do not allow.

Each attack is tried on every task of its DAG, because a later task must not trust an earlier one. Needs no server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException

from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.request.named_options import named_options
from storeside.transfer.request.options import TableOptions
from storeside.transfer.tables.creation import ddl
from tests.attacks.forms import started, task_of, tasks_of
from tests.statements import Engine

OWNER: dict[str, list[str]] = {
    "read": ["s3://shared", "s3://own", "ais://own", "ais://scratch"],
    "write": ["s3://own", "ais://own", "ais://scratch"],
    "delete": ["s3://own", "ais://scratch"],
    "tables": ["data.own_*"],
    "databases": [],
    "clusters": ["shards"],
    "connections": ["aws_default"],
    "queues": ["own"],
    "domains": ["/own.h5"],
    "after_load": ["none", "delete", "move", "tag"],
    "tags": ["loaded=*"],
}
TABLE = "data.own_rows"
# Fields that the owner's lists allow, by DAG.
ALLOWED: dict[str, dict[str, Any]] = {
    "s3_to_clickhouse": {"bucket": "shared", "table": TABLE},
    "preview_load": {"bucket": "shared", "table": TABLE},
    "s3_events_to_clickhouse": {"bucket": "shared", "table": TABLE, "queue": "own"},
    "s3_replication": {"bucket": "shared", "table": TABLE, "queue": "own"},
    "hsds_export": {"domain": "/own.h5", "dataset": "/v", "bucket": "own", "prefix": "a", "table": TABLE},
    "transform_bucket": {"source": "s3://shared", "destination": "ais://own"},
    "transform_to_clickhouse": {"source": "s3://shared", "destination": "ais://own", "table": TABLE},
    "speech_pipeline": {"source": "s3://shared"},
    "speech_utterances": {"source": "s3://shared", "table": TABLE},
    "transform_benchmark": {"source": "s3://shared"},
    "ingest": {"source": "s3://shared", "destination": "ais://own"},
    "cluster_throughput": {"bucket": "ais://scratch"},
    "check_connections": {"bucket": "own"},
    "backend_benchmark": {"backends": ["s3://own", "ais://scratch"]},
    "sqs_redrive": {"queue": "own"},
}
LOADS = [dag for dag, conf in ALLOWED.items() if "table" in conf]
BY_NAME = ("s3_to_clickhouse", "s3_events_to_clickhouse", "s3_replication", "transform_to_clickhouse")
WITH_ACTIONS = ("s3_to_clickhouse", "s3_replication")
MOVE = {"after_load": "move", "move_to": "s3://own/a/"}
TAG = {"after_load": "tag", "tags": "loaded=true"}
ENGINE = "ReplicatedMergeTree('/clickhouse/tables/payroll', 'attacker')"
ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    # tables of others, in a listed database and in another
    *((dag, {"table": table}, table) for dag in LOADS for table in ("data.payroll", "hr.own_rows", "data.Own_rows")),
    # buckets that may only be read
    ("ingest", {"destination": "s3://shared"}, "s3://shared"),
    ("transform_bucket", {"destination": "s3://shared"}, "s3://shared"),
    ("transform_bucket", {"quarantine": "s3://shared"}, "s3://shared"),
    ("transform_to_clickhouse", {"destination": "ais://shared"}, "ais://shared"),
    ("hsds_export", {"bucket": "shared"}, "s3://shared"),
    ("check_connections", {"bucket": "shared"}, "s3://shared"),
    ("cluster_throughput", {"chart": "s3://aws_default@shared/a.svg"}, "s3://shared"),
    ("backend_benchmark", {"chart": "s3://shared/a.png"}, "s3://shared"),
    *((dag, {**MOVE, "bucket": "own", "move_to": "s3://shared/a/"}, "s3://shared") for dag in WITH_ACTIONS),
    # buckets whose objects may not be deleted
    *((dag, {"after_load": "delete"}, "s3://shared") for dag in WITH_ACTIONS),
    *((dag, MOVE, "s3://shared") for dag in WITH_ACTIONS),
    ("cluster_throughput", {"bucket": "ais://own"}, "ais://own"),
    ("backend_benchmark", {"backends": ["s3://own", "ais://own"]}, "ais://own"),
    ("backend_benchmark", {"through_aistore": ["s3://shared"]}, "s3://shared"),
    # tags, which policies and life cycles of a bucket may refer to
    *((dag, TAG, "s3://shared") for dag in WITH_ACTIONS),
    *(
        (dag, {**TAG, "bucket": "own", "tags": f"loaded=true, {tag}"}, tag)
        for dag in WITH_ACTIONS
        for tag in ("public=true", "Loaded=true", "loaded2=")
    ),
    # other servers
    *((dag, {"options": {"table.cluster": "payroll"}}, "payroll") for dag in BY_NAME),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps(OWNER))


@pytest.mark.parametrize(("dag", "fields", "named"), ATTACKS)
def test_a_form_uses_no_name_that_is_not_listed_for_this_use(dag: str, fields: dict[str, Any], named: str) -> None:
    """The attacker may trigger this DAG."""
    for task in tasks_of(dag):
        with pytest.raises(AirflowFailException, match="storeside_forms") as refused:
            started(dag, task, {**ALLOWED[dag], **fields})
        assert f"{named!r} is not one of" in str(refused.value)


@pytest.mark.parametrize("dag", BY_NAME)
def test_a_form_gives_an_engine_no_arguments(dag: str) -> None:
    """The attacker may trigger this DAG, whose fields are checked before the task, and by its request of a load."""
    options = {"table.engine": ENGINE}
    (task,) = (name for name in tasks_of(dag) if name.startswith(("load", "follow")))
    with pytest.raises(AirflowFailException, match=r"options: option table\.engine"):
        started(dag, task, {**ALLOWED[dag], "options": options})
    rendered = task_of(dag, task, **ALLOWED[dag], options=options)
    with pytest.raises(TransferInputError, match=r"option table\.engine"):
        rendered.request(None) if dag == "transform_to_clickhouse" else rendered.request(_aws())


# An expression in the place of a type; and texts of which ClickHouse, which skips comments, counts other brackets.
_ROWS = "ENGINE = MergeTree ORDER BY () AS SELECT 'b', note FROM data.payroll"
_MORE = f"{_ROWS} PARALLEL WITH CREATE TABLE data.taken"
TYPES = {
    "default": "DEFAULT (upper('canary'))",
    "materialized": "materialized(upper('canary'))",
    "alias": "ALIAS (upper('canary'))",
    "ephemeral": "EPHEMERAL ('canary')",
    "default in a comment": "FixedString(9 --(\n) DEFAULT upper('canary' --)\n)",
    "rows of another table": f"FixedString(9 --((\n)) {_MORE} (v Tuple(n String --))\n)",
    "quote in a comment": f"FixedString(9 --'\n)) {_MORE} (v String, --'\n--)",
}


@pytest.mark.parametrize(
    ("dag", "name", "text"),
    [
        *((dag, name, TYPES["default"]) for dag in BY_NAME for name in ("table.columns", "columns.cast")),
        *((BY_NAME[0], "table.columns", text) for text in list(TYPES.values())[1:]),
    ],
)
def test_a_form_writes_no_sql_as_a_type(dag: str, name: str, text: str) -> None:
    """The attacker may trigger this DAG, and wants the rows of tables that ClickHouse's user of loads may read."""
    (task,) = (task for task in tasks_of(dag) if task.startswith(("load", "follow")))
    rendered = started(dag, task, {**ALLOWED[dag], "options": {name: {"v": text}}})
    with pytest.raises(TransferInputError, match="column 'v' has the type"):
        rendered.request(None) if dag == "transform_to_clickhouse" else rendered.request(_aws())


@pytest.mark.parametrize("text", TYPES.values(), ids=TYPES)
def test_control_clickhouse_takes_such_a_type_for_more(text: str) -> None:
    """Otherwise the attacks above could fail for another reason."""
    engine = Engine()
    try:
        engine.command("CREATE OR REPLACE TABLE data.payroll (note String) ENGINE = Memory AS SELECT 'canary'")
        engine.command(ddl("data.own_rows", [Column("n", "String"), Column("v", text)], TableOptions()))
        copied = engine.query("SELECT count() FROM data.own_rows WHERE toString(v) LIKE 'canary%'").result_rows
        kinds = engine.query(
            "SELECT default_kind FROM system.columns WHERE database = 'data' AND table = 'own_rows' AND name = 'v'"
        ).result_rows
        assert copied == [(1,)] or kinds[0][0]
    finally:
        for table in ("payroll", "own_rows", "taken"):
            engine.command(f"DROP TABLE IF EXISTS data.{table}")
        engine.close()


LIMITS = [name for name, option in named_options().items() if option.range and name != "csv.skip_rows"]


@pytest.mark.parametrize("dag", BY_NAME)
@pytest.mark.parametrize("name", LIMITS)
def test_a_form_raises_no_limit(dag: str, name: str) -> None:
    """The attacker may trigger this DAG, and wants to fill the memory, the threads or the disk of others."""
    (task,) = (task for task in tasks_of(dag) if task.startswith(("load", "follow")))
    _, most = named_options()[name].range or (0, 0)
    with pytest.raises(AirflowFailException, match=rf"'{name}={most}' is not one of the options that forms may use"):
        started(dag, task, {**ALLOWED[dag], "options": {name: most}})
    with pytest.raises(AirflowFailException, match=f"options: {name} {most + 1}: needs to be {most} or less"):
        started(dag, task, {**ALLOWED[dag], "options": {name: most + 1}})


@pytest.mark.parametrize("dag", LOADS)
def test_a_form_creates_no_database(dag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker may trigger this DAG, whose owner listed tables of a database that does not exist."""
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps({**OWNER, "tables": ["*.*"]}))
    conf = {**ALLOWED[dag], "table": "absent.rows"}
    loads = [task for name in tasks_of(dag) if hasattr(task := started(dag, name, conf), "request")]
    assert loads
    for task in loads:
        aws = None if getattr(task, "source", "").startswith("ais://") else _aws()
        assert not task.request(aws).create_database


def test_control_a_listed_database_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_STORESIDE_FORMS", json.dumps({**OWNER, "databases": ["da*"]}))
    assert started("s3_to_clickhouse", "load", ALLOWED["s3_to_clickhouse"]).request(_aws()).create_database


@pytest.mark.parametrize("dag", ALLOWED)
def test_control_what_the_lists_allow_is_started(dag: str) -> None:
    """Otherwise the attacks above could fail for another reason."""
    more: list[dict[str, Any]] = [{}]
    if dag in WITH_ACTIONS:
        more += [
            {"bucket": "own", "after_load": "delete"},
            {**MOVE, "bucket": "own"},
            {**TAG, "bucket": "own"},
        ]
    if dag in BY_NAME:
        more += [{"options": {"table.cluster": "shards", "table.engine": "ReplicatedMergeTree"}}]
        more += [{"options": {"limits.rows": 1000, "read.sample_bytes": 1000}}]
    for fields in more:
        for task in tasks_of(dag):
            started(dag, task, {**ALLOWED[dag], **fields})


def test_every_shipped_dag_is_attacked() -> None:
    assert set(ALLOWED) == {path.stem for path in (CHECKOUT / "dags").glob("*.py")}


def _aws() -> Connection:
    return Connection(conn_id="aws_default", conn_type="aws", extra='{"clickhouse_collection": "storeside_s3"}')
