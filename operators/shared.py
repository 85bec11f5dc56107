"""Helpers of the operators: the run's identity, the ledger, Variables, and arguments rendered as text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowSkipException

from storeside.operators.errors import OperatorInputError
from storeside.operators.hooks.transfer import clickhouse_client, ledger_connection

if TYPE_CHECKING:
    from airflow.sdk import Context
    from clickhouse_connect.driver.httpclient import HttpClient

    from storeside.ledger.objects import Ledger

N = TypeVar("N", int, float)


def run_key(context: Context) -> str:
    """Return the name of this run in Storeside's tables: ``<dag_id>/<run_id>``."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def task_key(context: Context, task_id: str = "") -> str:
    """Return a key that all tries of a task share and no other task has; `task_id` names another task of the run."""
    instance = context["ti"]
    return f"{run_key(context)}/{task_id or instance.task_id}/{instance.map_index}"


def run_columns(context: Context) -> dict[str, str]:
    """Return the columns of ``storeside.runs`` that identify the task instance; a mapped one is ``task[index]``."""
    instance = context["ti"]
    index = "" if instance.map_index is None or instance.map_index < 0 else f"[{instance.map_index}]"
    return {"run_id": run_key(context), "dag_id": instance.dag_id, "task_id": instance.task_id + index}


def record_running(tables: Ledger, context: Context, kind: str, source: str, destination: str, **detail: Any) -> None:
    """Record for the pages that a task is running; the row that the task writes at its end replaces this row."""
    tables.record_run(
        {
            **run_columns(context),
            "kind": kind,
            "source": source,
            "destination": destination,
            "state": "running",
            "detail": json.dumps(detail),
        }
    )


def clickhouse(conn_id: str) -> HttpClient:
    """Return a clickhouse-connect client for Storeside's tables on the server of an Airflow connection."""
    return clickhouse_client(ledger_connection(BaseHook.get_connection(conn_id)))


def ledger(clickhouse_conn_id: str) -> Ledger:
    """Return the ledger behind an Airflow connection to ClickHouse."""
    from storeside.ledger.objects import Ledger

    return Ledger(clickhouse(clickhouse_conn_id))


def as_bool(value: bool | str, name: str) -> bool:
    """Parse the boolean argument `name`, which may be rendered text. Raises OperatorInputError for other values."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in ("true", "false"):
        return text == "true"
    raise OperatorInputError(f"{name} {value!r} is neither true nor false")


def as_number(value: float | str, name: str, kind: type[N]) -> N:
    """Parse the numeric argument `name`, which may be rendered text. Raises OperatorInputError for other values."""
    try:
        return kind(value)
    except (TypeError, ValueError) as e:
        raise OperatorInputError(f"{name} {value!r} is not a {'whole ' if kind is int else ''}number") from e


def as_seconds(value: int | str) -> int:
    """Read `init_timeout`, a positive number of seconds. Raises OperatorInputError for anything else."""
    if (seconds := as_number(value, "init_timeout", int)) < 1:
        raise OperatorInputError(f"init_timeout {value!r} is not a positive number of seconds")
    return seconds


def as_object(value: Mapping[str, Any] | str, name: str) -> dict[str, Any]:
    """Read the mapping `name`, which a template may have rendered as a JSON object.

    Raises OperatorInputError for anything else.
    """
    if (found := _object(value)) is None:
        raise OperatorInputError(f"{name} {value!r} is not a JSON object")
    return found


def as_mapping(value: Mapping[str, str] | str, name: str) -> dict[str, str]:
    """Read the mapping of strings `name`, as `as_object` does. Raises OperatorInputError for anything else."""
    found = _object(value)
    if found is None or not all(isinstance(part, str) for item in found.items() for part in item):
        raise OperatorInputError(f'{name} {value!r} is not a mapping of strings, such as {{"txt": "json"}}')
    return found


def _object(value: Mapping[str, Any] | str) -> dict[str, Any] | None:
    try:
        found = json.loads(value) if isinstance(value, str) else dict(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def as_list(texts: Sequence[str] | str) -> Sequence[str]:
    """Return a list of texts; text from a template is split at spaces."""
    return texts.split() if isinstance(texts, str) else texts


def plain(value: Any) -> Any:
    """Convert tuples to lists and enumerations to their values, so that every XCom is plain JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def only_when(param: str, value: str) -> Callable[[Context], None]:
    """Return a ``pre_execute`` that skips the task unless the run's parameter `param` has this value."""

    def check(context: Context) -> None:
        chosen = context["params"][param]
        if chosen != value:
            raise AirflowSkipException(f"{param} is {chosen!r}")

    return check


def variable(name: str) -> str | None:
    """Return the text of an Airflow Variable, or None if there is none.

    In the process of a command, such as ``airflow dags test``, the SDK reads only the environment and secrets
    backends. But the command stores the DAGs of all files as it parsed them: a DAG without its settings would lose
    its schedule, its queue and the tasks of active runs. So a command of Airflow reads the database.
    """
    text = cast("str | None", Variable.get(name, default=None))
    if text is None and "airflow.cli.cli_parser" in sys.modules and not _has_supervisor():
        from airflow.models import Variable as StoredVariable

        text = StoredVariable.get(name, None)
    return text


def _has_supervisor() -> bool:
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return hasattr(runner, "SUPERVISOR_COMMS") or "_AIRFLOW_PROCESS_CONTEXT" in os.environ
