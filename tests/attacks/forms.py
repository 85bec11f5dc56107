"""The shipped DAGs, started by a user who may only trigger them: a run from a form, up to its load."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from airflow.sdk import Connection

from storeside.stack.settings import CHECKOUT
from storeside.transfer.engine import Prepared, Transfer
from tests.transfers import Loading


def task_of(dag: str, name: str, **fields: Any) -> Any:
    """Return a task of a shipped DAG as a run from its form with these fields renders it."""
    spec = spec_from_file_location(dag, CHECKOUT / "dags" / f"{dag}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    params = {key: param.value if param.has_value else "" for key, param in module.PARAMS.items()} | fields
    task = module.dag.get_task(name)
    task.render_template_fields({"params": params})
    return task


def load(task: Any, loading: Loading) -> Prepared:
    """Prepare the load of a task of `task_of`."""
    request = task.request(
        Connection(conn_id="aws_default", conn_type="aws", extra='{"clickhouse_collection": "storeside_s3"}')
    )
    return Transfer(request, loading.client(), loading.s3, "attack").prepare()
