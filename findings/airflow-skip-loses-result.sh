#!/usr/bin/env bash
# Airflow: a task that skips others has no result, although its function returns one.
#
# Airflow 2 stored what the function of a branch or of a short circuit returned, and a task after it could pull the
# name of the branch, or the list that was empty. One would expect the same of Airflow 3, where the operators still end
# with `return`. But skipping is an exception now, DownstreamTasksSkipped, and Airflow stores no result of a task that
# ends with an exception. A short circuit that continues has its result; one that skips has none, and neither has any
# branch, which skips the tasks that it does not choose. An operator that skips has to push its result itself.
#
# Seen with apache-airflow 3.3.2, its Task SDK 1.3.2 and provider standard 1.21.0 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check apache-airflow==3.3.2 apache-airflow-core==3.3.2 \
    apache-airflow-task-sdk==1.3.2 apache-airflow-providers-standard==1.21.0
export AIRFLOW_HOME="$folder/airflow" AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__CORE__DAGS_FOLDER="$folder/dags"
mkdir "$folder/dags"
cat >"$folder/dags/skips.py" <<'PYTHON'
from importlib.metadata import version

from airflow.sdk import DAG, task

with DAG("skips") as dag:

    @task.branch
    def branch():
        return "chosen"

    @task.short_circuit
    def stops():
        return []

    @task.short_circuit
    def continues():
        return ["a.csv"]

    @task
    def chosen(): ...

    @task
    def other(): ...

    branch() >> [chosen(), other()]
    stops() >> other.override(task_id="after_stops")()
    continues() >> other.override(task_id="after_continues")()

if __name__ == "__main__":
    run = dag.test()
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    for name in ("apache-airflow", "apache-airflow-task-sdk", "apache-airflow-providers-standard"):
        print(name, version(name))
    with create_session() as session:
        results = dict(
            session.execute(select(XComModel.task_id, XComModel.value).where(XComModel.key == "return_value")).all()
        )
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    for name in ("branch", "stops", "continues"):
        print(f"{name}: {states[name]}, result: {results.get(name, 'none')}")
    assert {states[name] for name in ("branch", "stops", "continues")} == {"success"}, states
    assert [*results] == ["continues"], f"the behaviour has changed: {results}"
PYTHON
"$folder/venv/bin/airflow" db migrate >"$folder/migrated.txt" 2>&1
"$folder/venv/bin/python" "$folder/dags/skips.py" 2>"$folder/errors.txt" | grep -E '^(apache-airflow|branch|stops|continues)'
