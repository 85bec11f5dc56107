"""Airflow as its Helm chart installs it with ``docs/kubernetes/airflow-values.yaml``.

The chart cannot be had without its registry. These resources follow its templates, for the values in the file. The
exceptions are small requests of CPU and one replica each.
"""

from __future__ import annotations

import configparser
import io
import json
from collections.abc import Mapping
from typing import Any

import yaml

from tests.kubernetes.overlay import DOCS
from tests.kubernetes.resources import from_secret, resource, service

NAMESPACE = "airflow"
RELEASE = "airflow"
API_PORT = 8080
_POD_TEMPLATE = "pod_template_file.yaml"
_HOME = "/opt/airflow"
_RBAC = "rbac.authorization.k8s.io"
# Component, its key in the values, and its command.
COMPONENTS = (
    ("api-server", "apiServer", "api-server"),
    ("scheduler", "scheduler", "scheduler"),
    ("dag-processor", "dagProcessor", "dag-processor"),
    ("triggerer", "triggerer", "triggerer"),
)
_MAY = {
    "pods": ["create", "list", "get", "patch", "watch", "delete"],
    "pods/log": ["get"],
    "pods/exec": ["create", "get"],
    "events": ["list"],
}
_MAY_READ_LOGS = {"pods": ["list", "get", "watch"], "pods/log": ["get", "list"]}


def values() -> dict[str, Any]:
    """Return the documented values of the chart."""
    found: dict[str, Any] = yaml.safe_load((DOCS / "airflow-values.yaml").read_text())
    return found


def migration(chart: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the configuration, accounts, and the job that creates the database's tables."""
    files = {"airflow.cfg": _configuration(chart), _POD_TEMPLATE: json.dumps(worker(chart))}
    pod = _pod(chart, "migrations", {}, "airflow db migrate") | {"restartPolicy": "Never"}
    return [
        resource("ConfigMap", NAMESPACE, f"{RELEASE}-config", data=files),
        *(resource("ServiceAccount", NAMESPACE, f"{RELEASE}-{name}") for name in _accounts()),
        *_rights("pod-launcher", _MAY, ("scheduler", "worker")),
        *_rights("pod-log-reader", _MAY_READ_LOGS, ("api-server",)),
        resource(
            "Job", NAMESPACE, "airflow-run-airflow-migrations", "batch/v1",
            spec={"backoffLimit": 2, "template": {"spec": pod}},
        ),
    ]  # fmt: skip


def processes(chart: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return Airflow's long-running pods."""
    made = [service(NAMESPACE, f"{RELEASE}-api-server", "airflow-api-server", API_PORT)]
    for name, key, command in COMPONENTS:
        pod = _pod(chart, name, chart[key], f"airflow {command}")
        if name == "api-server":
            probe = {"path": "/api/v2/version", "port": API_PORT}
            pod["containers"][0]["readinessProbe"] = {"httpGet": probe, "periodSeconds": 2, "timeoutSeconds": 30}
        labels = {"tier": "airflow", "component": name, "release": RELEASE, "app": f"airflow-{name}"}
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        made.append(resource("Deployment", NAMESPACE, f"{RELEASE}-{name}", "apps/v1", spec=spec))
    return made


def worker(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template of tasks' pods."""
    pod = _pod(chart, "worker", chart["workers"], "")
    container = pod["containers"][0]
    del container["args"]
    container["name"] = "base"
    container["resources"] = chart["workers"]["resources"]
    container["env"].insert(0, {"name": "AIRFLOW__CORE__EXECUTOR", "value": "LocalExecutor"})
    metadata = {"name": "placeholder-name", "labels": {"tier": "airflow", "component": "worker", "release": RELEASE}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod | {"restartPolicy": "Never"}}


def _accounts() -> list[str]:
    return ["migrations", *(name for name, key, _ in COMPONENTS if key != "triggerer")]


def _pod(chart: Mapping[str, Any], name: str, settings: Mapping[str, Any], command: str) -> dict[str, Any]:
    account = settings.get("serviceAccount", {}).get("name", f"{RELEASE}-{name}")
    resources = json.loads(json.dumps(settings.get("resources", {})))
    resources.get("requests", {}).update(cpu="50m")
    return {
        "serviceAccountName": account,
        "terminationGracePeriodSeconds": 10,
        "securityContext": chart["securityContexts"]["pod"],
        "containers": [
            {
                "name": name,
                "image": f"{chart['defaultAirflowRepository']}:{chart['defaultAirflowTag']}",
                "args": ["bash", "-c", f"exec {command}"],
                "env": _environment(chart),
                "resources": resources,
                "securityContext": chart["securityContexts"]["containers"],
                "volumeMounts": [
                    {"name": "logs", "mountPath": f"{_HOME}/logs"},
                    _mounted("airflow.cfg", f"{_HOME}/airflow.cfg"),
                    _mounted(_POD_TEMPLATE, f"{_HOME}/pod_templates/{_POD_TEMPLATE}"),
                ],
            }
        ],
        "volumes": [
            {"name": "logs", "emptyDir": {}},
            {"name": "config", "configMap": {"name": f"{RELEASE}-config"}},
        ],
    }


def _mounted(file: str, path: str) -> dict[str, Any]:
    return {"name": "config", "mountPath": path, "subPath": file, "readOnly": True}


def _environment(chart: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        from_secret("AIRFLOW__CORE__FERNET_KEY", chart["fernetKeySecretName"], "fernet-key"),
        from_secret("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", chart["data"]["metadataSecretName"], "connection"),
        from_secret("AIRFLOW__API__SECRET_KEY", chart["apiSecretKeySecretName"], "api-secret-key"),
        from_secret("AIRFLOW__API_AUTH__JWT_SECRET", chart["jwtSecretName"], "jwt-secret"),
        *chart["env"],
        *(from_secret(entry["envName"], entry["secretName"], entry["secretKey"]) for entry in chart["secret"]),
    ]


def _configuration(chart: Mapping[str, Any]) -> str:
    """Return airflow.cfg: the chart's own entries, and those of the values."""
    sections: dict[str, dict[str, str]] = {
        "core": {
            "executor": chart["executor"],
            "execution_api_server_url": f"http://{RELEASE}-api-server:{API_PORT}/execution/",
        },
        "logging": {"colored_console_log": "False"},
        "kubernetes_executor": {
            "namespace": NAMESPACE,
            "pod_template_file": f"{_HOME}/pod_templates/{_POD_TEMPLATE}",
            "worker_container_repository": chart["defaultAirflowRepository"],
            "worker_container_tag": chart["defaultAirflowTag"],
            "multi_namespace_mode": "False",
        },
    }
    for section, entries in chart["config"].items():
        sections.setdefault(section, {}).update(entries)
    file = configparser.RawConfigParser()
    file.read_dict(sections)
    text = io.StringIO()
    file.write(text)
    return text.getvalue()


def _rights(name: str, may: Mapping[str, list[str]], accounts: tuple[str, ...]) -> list[dict[str, Any]]:
    role = f"{RELEASE}-{name}-role"
    rules = [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in may.items()]
    subjects = [{"kind": "ServiceAccount", "name": f"{RELEASE}-{a}", "namespace": NAMESPACE} for a in accounts]
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": role}
    return [
        resource("Role", NAMESPACE, role, f"{_RBAC}/v1", rules=rules),
        resource("RoleBinding", NAMESPACE, f"{role}binding", f"{_RBAC}/v1", roleRef=reference, subjects=subjects),
    ]
