"""Short forms of Kubernetes' resources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# As all containers in docs/kubernetes.
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def resource(kind: str, namespace: str, name: str, version: str = "v1", **parts: Any) -> dict[str, Any]:
    """Return a resource."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **parts}


def listed(items: Iterable[Mapping[str, Any]]) -> str:
    """Return resources as ``kubectl apply`` reads them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


def variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return environment variables with values."""
    return [{"name": name, "value": value} for name, value in values.items()]


def from_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    """Return an environment variable with the value of a key of a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def service(namespace: str, name: str, app: str, port: int) -> dict[str, Any]:
    """Return a service for the pods with the label ``app``."""
    return resource("Service", namespace, name, spec={"selector": {"app": app}, "ports": [{"port": port}]})


def running(namespace: str, name: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deployment of one pod with the label ``app``."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, **pod}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return resource("Deployment", namespace, name, "apps/v1", spec=spec)
