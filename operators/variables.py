"""Values of Airflow Variables, in every process that parses DAG files."""

from __future__ import annotations

import os
import sys
from typing import cast

from airflow.sdk import Variable


def variable(name: str) -> str | None:
    """Return the text of an Airflow Variable, or None if there is none.

    In the process of a command, such as ``airflow dags test``, the SDK reads only the environment and secrets
    backends. But the command stores the DAGs of all files as it parsed them: a DAG without its settings would lose
    its schedule, its queue and the tasks of active runs. So such a process reads Airflow's database.
    """
    text = cast("str | None", Variable.get(name, default=None))
    if text is None and not _has_supervisor():
        from airflow.models import Variable as StoredVariable

        text = StoredVariable.get(name, None)
    return text


def _has_supervisor() -> bool:
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return hasattr(runner, "SUPERVISOR_COMMS") or "_AIRFLOW_PROCESS_CONTEXT" in os.environ
