"""The Job and the Secret with which loaders run on Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureInputError
from storeside.measure.throughput.load import environment, output

LABEL = "storeside/measurement"
START = "storeside/start"
START_SECONDS = 300
# Kubernetes ends and removes a Job whose task was killed.
_SPARE_SECONDS = 120
_KEPT_SECONDS = 600
_NODE = "kubernetes.io/hostname"
_TARGETS = {"app.kubernetes.io/name": "ais", "app.kubernetes.io/component": "target"}
_ACCESS, _BEGIN = "/etc/storeside/access", "/etc/storeside/start"
# Kubernetes keeps up to 4 KiB of this file in the status of a pod that has ended; the totals have less than 1 KiB.
_TOTALS = "/dev/termination-log"
_TOKEN = "token"  # noqa: S105 - the name of a key
# The file is empty until all pods run.
_SCRIPT = f"""
start=
while [ -z "$start" ]; do sleep 0.2; start=$(cat {_BEGIN}/at); done
while [ "$(date +%s)" -lt "$start" ]; do sleep 0.05; done
exec aisloader "$@"
"""


def access(cluster: Cluster) -> dict[str, str]:
    """Return the contents of a Secret with the token and the PEM files for a cluster; empty if it needs none.

    Raises:
        MeasureInputError: a file cannot be read.
        AIStoreError: AuthN issues no token.
    """
    found = {_TOKEN: str(cluster.credential or "")}
    for name, path in _files(cluster).items():
        try:
            found[name] = Path(path).read_text()
        except (OSError, ValueError) as e:
            raise MeasureInputError(f"the AIStore connection names the file {path}, which cannot be read: {e}") from e
    return {name: value for name, value in found.items() if value}


def _files(cluster: Cluster) -> dict[str, str]:
    found = {"ca.crt": cluster.ca_cert, "tls.crt": cluster.client_cert, "tls.key": cluster.client_key}
    return {name: path for name, path in found.items() if path}


def job(
    name: str,
    labels: Mapping[str, str],
    *,
    image: str,
    cluster: Cluster,
    secret: str,
    arguments: Sequence[str],
    number: int,
    seconds: int,
    storage: str,
    owners: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a Job of `number` pods with a loader each, which wait for a common start and then run for `seconds`.

    `secret` is the name of the Secret with `access`, or empty. `storage` is AIStore's namespace: pods prefer nodes
    without a target, and nodes without another loader. Nothing is started again: a loader that started later would
    measure something else.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": list(owners)},
        "spec": {
            "completionMode": "Indexed",
            "completions": number,
            "parallelism": number,
            "backoffLimit": 0,
            "activeDeadlineSeconds": START_SECONDS + seconds + _SPARE_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "suspend": bool(secret),  # until the Secret exists
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {
                        "runAsUser": 50000,
                        "runAsGroup": 0,
                        "runAsNonRoot": True,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "affinity": {"podAntiAffinity": _apart_from(storage)},
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": _NODE,
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": dict(labels)},
                        }
                    ],
                    "containers": [_container(image, cluster, secret, arguments)],
                    "volumes": _volumes(secret),
                },
            },
        },
    }


def _apart_from(storage: str) -> dict[str, Any]:
    term = {"topologyKey": _NODE, "namespaces": [storage], "labelSelector": {"matchLabels": _TARGETS}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}


def _container(image: str, cluster: Cluster, secret: str, arguments: Sequence[str]) -> dict[str, Any]:
    mounted = {name: f"{_ACCESS}/{name}" for name in _files(cluster)}
    inside = replace(
        cluster,
        token="",
        authn="",
        ca_cert=mounted.get("ca.crt", ""),
        client_cert=mounted.get("tls.crt", ""),
        client_key=mounted.get("tls.key", ""),
    )
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in environment(inside, {}).items()]
    if secret:  # a cluster may require a certificate only
        reference = {"name": secret, "key": _TOKEN, "optional": True}
        env.append({"name": "AIS_AUTHN_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    # Kubernetes would replace $(NAME), which may be part of an object's name.
    arguments = [part.replace("$", "$$") for part in (_SCRIPT, "aisloader", *arguments, *output(_TOTALS))]
    return {
        "name": "aisloader",
        "image": image,
        "command": ["sh", "-euc", *arguments],
        "env": env,
        "terminationMessagePath": _TOTALS,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "start", "mountPath": _BEGIN, "readOnly": True},
            *([{"name": "access", "mountPath": _ACCESS, "readOnly": True}] if secret else []),
        ],
    }


def _volumes(secret: str) -> list[dict[str, Any]]:
    field = {"fieldPath": f"metadata.annotations['{START}']"}
    start = {"name": "start", "downwardAPI": {"items": [{"path": "at", "fieldRef": field}]}}
    return [start, *([{"name": "access", "secret": {"secretName": secret}}] if secret else [])]
