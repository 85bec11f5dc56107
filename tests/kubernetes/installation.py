"""Airflow, S3, ClickHouse and PostgreSQL on a node of ours, reached through forwarded ports."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import HOST
from tests.kubernetes import airflow, stores
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.overlay import S3_PORT
from tests.kubernetes.resources import listed
from tests.kubernetes.session import Session
from tests.support import until

LOGS = "airflow-logs"  # of airflow-values.yaml
START_SECONDS = 400
_DAGS = ("cluster_throughput", "speech_pipeline", "s3_to_clickhouse", "transform_bucket")


@dataclass
class Installation:
    """Airflow and the stores; `pods` has every pod of a task that was seen, by name."""

    kubectl: Kubectl
    api: AirflowApi
    s3: Any
    clickhouse: Any
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)

    def upload(self, bucket: str, prefix: str, files: list[Path]) -> None:
        """Upload files below a prefix."""
        for path in files:
            self.s3.upload_file(str(path), bucket, f"{prefix}{path.name}")

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return what ClickHouse answers to a query."""
        return [tuple(row) for row in self.clickhouse.query(statement, parameters=parameters).result_rows]

    def workers(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the pods of a run's tasks that exist, and remember them."""
        found = self.kubectl.json("get", "pods", f"--selector=component=worker,dag_id={dag}")["items"]
        mine = [pod for pod in found if pod["metadata"]["annotations"]["run_id"] == run]
        self.pods.update({pod["metadata"]["name"]: pod for pod in mine})
        return mine

    def active(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the pods of a run's tasks that have not ended. The executor keeps pods that have failed."""
        return [pod for pod in self.workers(dag, run) if pod["status"]["phase"] in ("Pending", "Running")]

    def wait(self, dag: str, run: str, seconds: float) -> str:
        """Wait until a run has ended, and return its state."""

        def state() -> str:
            self.workers(dag, run)
            found: str = self.api.run(dag, run)["state"]
            return found if found in ("success", "failed") else ""

        ended: str = until(state, seconds, f"end of {run}", interval=1)
        return ended

    def logs(self, dag: str, run: str) -> str:
        """Return the logs of all tries of a run's tasks, as the API has them."""
        found = []
        for task in self.api.task_instances(dag, run):
            for attempt in range(1, task["try_number"] + 1):
                with suppress(requests.HTTPError):  # a try whose pod never started
                    found.append(self.api.log(dag, run, task["task_id"], attempt))
        return "\n".join(found)


@contextmanager
def installation(cluster: Session) -> Iterator[Installation]:
    """Install Airflow on a node of ours whose stores `session` has made, yield it, and end its pods."""
    import clickhouse_connect

    began = time.monotonic()
    kubectl = replace(cluster.kubectl, namespace=airflow.NAMESPACE)
    chart = airflow.values()
    for namespace, name in (("airflow", "s3"), ("airflow", "postgres"), ("clickhouse", stores.CLICKHOUSE_NAME)):
        _ready(replace(kubectl, namespace=namespace), f"deployment/{name}")
    kubectl("apply", "-f", "-", stdin=listed(airflow.migration(chart)))
    job = "job/airflow-run-airflow-migrations"
    kubectl("wait", job, "--for=condition=Complete", f"--timeout={START_SECONDS}s", seconds=START_SECONDS + 10)
    kubectl("apply", "-f", "-", stdin=listed(airflow.processes(chart)))
    try:
        _ready(kubectl, "deployment/airflow-api-server")
        password = secrets.token_hex(16)
        kubectl(
            "exec", "deployment/airflow-api-server", "--", "airflow", "users", "create", "--role", "Admin",
            "--username", "admin", "--email", "admin@example.com", "--firstname", "A", "--lastname", "B",
            "--password", password, seconds=START_SECONDS,
        )  # fmt: skip
        with ExitStack() as forwarded:

            def port(namespace: str, app: str, number: int) -> int:
                inside = replace(kubectl, namespace=namespace)
                (pod,) = inside.json("get", "pods", f"--selector=app={app}")["items"]
                return forwarded.enter_context(inside.forward(pod["metadata"]["name"], number))

            keys = kubectl.json("get", "secret", "s3")["data"]
            access, secret = (base64.b64decode(keys[f"s3_{name}_key"]).decode() for name in ("access", "secret"))
            made = Installation(
                kubectl,
                AirflowApi(
                    f"http://{HOST}:{port('airflow', 'airflow-api-server', airflow.API_PORT)}", "admin", password
                ),
                s3.client("s3", f"http://{HOST}:{port('airflow', 's3', S3_PORT)}", access, secret),
                clickhouse_connect.get_client(
                    host=HOST,
                    port=port("clickhouse", stores.CLICKHOUSE_NAME, stores.CLICKHOUSE_PORT),
                    username="default",
                    autogenerate_session_id=False,
                ),
            )
            made.clickhouse.command(f"CREATE DATABASE IF NOT EXISTS {stores.DATABASE}")
            made.s3.create_bucket(Bucket=LOGS)
            until(lambda: _parsed(made.api), START_SECONDS, "DAGs", interval=1)
            for dag in _DAGS:
                made.api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
            cluster.times["k8s.airflow_seconds"] = time.monotonic() - began
            yield made
    finally:
        kubectl("delete", "deployments", "--selector=tier=airflow", "--grace-period=1", check=False)


def _ready(kubectl: Kubectl, name: str) -> None:
    kubectl("rollout", "status", name, f"--timeout={START_SECONDS}s", seconds=START_SECONDS + 10)


def _parsed(api: AirflowApi) -> bool:
    return set(_DAGS) <= {dag["dag_id"] for dag in api.get("dags", limit=100)["dags"]}


def report(value: Any) -> dict[str, Any]:
    """Return a task's report from its XCom."""
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found
