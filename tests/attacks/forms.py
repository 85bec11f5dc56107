"""The shipped DAGs, started by a user who may only trigger them: a run from a form, up to its load."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.definitions.param import process_params

from storeside.stack.settings import CHECKOUT
from storeside.transfer.run.engine import Prepared, Transfer
from tests.transfers import Loading


def _module_of(dag: str) -> ModuleType:
    """Execute a DAG's file: a run writes into the fields of its DAG, so that each needs its own."""
    spec = spec_from_file_location(dag, CHECKOUT / "dags" / f"{dag}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task_of(dag: str, name: str, **fields: Any) -> Any:
    """Return a task of a shipped DAG as a run from its form with these fields renders it."""
    module = _module_of(dag)
    params = {key: param.value if param.has_value else "" for key, param in module.PARAMS.items()} | fields
    task = module.dag.get_task(name)
    task.render_template_fields({"params": params})
    return task


def tasks_of(dag: str) -> list[str]:
    """Return the ids of a shipped DAG's tasks."""
    return list(_module_of(dag).dag.task_ids)


def started(dag: str, name: str, conf: dict[str, Any]) -> Any:
    """Do what a worker does before it executes a task of a run that the API started with `conf`; return the task.

    Raises what Airflow raises for fields that do not fit their schema, and the errors of `pre_execute`.
    """
    made = _module_of(dag).dag
    task = made.get_task(name)
    context: Any = {"dag": made, "task": task, "ti": SimpleNamespace(xcom_pull=lambda task_id: {"effect": ""})}
    context["params"] = process_params(made, task, conf, suppress_exception=False)
    task.render_template_fields(context)
    task.pre_execute(context)
    return task


def load(task: Any, loading: Loading) -> Prepared:
    """Prepare the load of a task of `task_of`."""
    request = task.request(
        Connection(conn_id="aws_default", conn_type="aws", extra='{"clickhouse_collection": "storeside_s3"}')
    )
    return Transfer(request, loading.client(), loading.s3, "attack").prepare()
