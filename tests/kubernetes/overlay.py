"""The changes of the tests to ``docs/kubernetes``: names, images, and sizes for two targets on one small node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from storeside.stack.settings import CHECKOUT
from tests.kubernetes.files import ADDRESS, NODE
from tests.kubernetes.images import INIT, TAG
from tests.kubernetes.images import NODE as AISNODE

DOCS = CHECKOUT / "docs" / "kubernetes"
TARGETS = 2
# Who pods of ETLs see when a target connects to a port of the node of ours.
NODE_ADDRESSES = (f"{ADDRESS}/32", "10.244.0.1/32")
# AIStore calls less than 8 GiB below its limit extreme memory pressure.
_SMALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "12Gi"}}
_TEMPLATE = "/spec/template/spec"
# The stand-in for S3, which a node of ours has instead of AWS.
S3_HOST, S3_PORT = "s3.airflow", 4566
S3_URL = f"http://{S3_HOST}:{S3_PORT}"
_PATH_STYLE = 1 << 14  # AIStore's feature S3-Use-Path-Style: the stand-in has no name per bucket


def write(folder: Path, namespace: str, images: str, own: Path | None) -> None:
    """Write a kustomization of ``docs/kubernetes`` into `folder`; with `own`, for the node that the tests start."""
    base = DOCS if own else DOCS / "aistore"
    resources = [os.path.relpath(base, folder)]
    (folder / "accounts.json").write_text(json.dumps(_accounts("airflow" if own else namespace)))
    resources.append("accounts.json")
    for name in ("loaders.yaml",) if own else ("loaders.yaml", "rbac.yaml"):
        rights = (DOCS / name).read_text()
        if not own:
            rights = rights.replace("namespace: airflow", f"namespace: {namespace}")
        (folder / name).write_text(rights)
        resources.append(name)
    names = {"aisnode": AISNODE, "ais-init": INIT}
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
        "images": [
            {"name": f"docker.io/aistorage/{name}", "newName": f"{images}/{image.partition(':')[0]}", "newTag": TAG}
            for name, image in names.items()
        ],
        "patches": [
            {
                "target": {"kind": "StatefulSet", "name": f"ais-{role}"},
                "patch": json.dumps(_changes(role, own is not None)),
            }
            for role in ("proxy", "target")
        ],
    }
    if own:
        nodes = [{"ipBlock": {"cidr": cidr}} for cidr in NODE_ADDRESSES]
        change = [{"op": "replace", "path": "/spec/ingress/0/from/1", "value": nodes[0]}]
        change += [{"op": "add", "path": "/spec/ingress/0/from/-", "value": node} for node in nodes[1:]]
        kustomization["patches"].append(
            {"target": {"kind": "NetworkPolicy", "name": "etl"}, "patch": json.dumps(change)}
        )
        settings = [{"op": "replace", "path": "/data/ais.json", "value": _path_style()}]
        kustomization["patches"].append(
            {"target": {"kind": "ConfigMap", "name": "ais-global"}, "patch": json.dumps(settings)}
        )
    else:
        kustomization["namespace"] = namespace
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization, indent=1))


def _changes(role: str, own: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"op": "replace", "path": f"{_TEMPLATE}/containers/0/resources", "value": _SMALL}]
    if role == "proxy":
        found.append({"op": "replace", "path": f"{_TEMPLATE}/containers/0/args/3", "value": f"-ntargets={TARGETS}"})
    else:
        found.append({"op": "replace", "path": "/spec/replicas", "value": TARGETS})
        found.append({"op": "remove", "path": f"{_TEMPLATE}/affinity"})
    if own:
        entry = {"name": "S3_ENDPOINT", "value": S3_URL}
        found.append({"op": "add", "path": f"{_TEMPLATE}/containers/0/env/-", "value": entry})
    else:
        found.append({"op": "remove", "path": f"{_TEMPLATE}/nodeSelector"})
        for number in range(1 if role == "proxy" else 3):
            claim = f"/spec/volumeClaimTemplates/{number}/spec"
            found.append({"op": "remove", "path": f"{claim}/storageClassName"})
            found.append({"op": "replace", "path": f"{claim}/resources/requests/storage", "value": "2Gi"})
    return found


def _path_style() -> str:
    """Return AIStore's documented configuration with the addressing of the stand-in for S3."""
    maps = yaml.safe_load_all((DOCS / "aistore" / "config.yaml").read_text())
    found = next(entry for entry in maps if entry["metadata"]["name"] == "ais-global")["data"]["ais.json"]
    settings = json.loads(found)
    return json.dumps(settings | {"features": str(int(settings["features"]) | _PATH_STYLE)})


def _accounts(namespace: str) -> dict[str, Any]:
    """Return the service accounts that Airflow's chart makes."""
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
            for name in ("airflow-worker", "airflow-triggerer")
        ],
    }


def volumes(folder: Path) -> str:
    """Make folders for the disks of a node of ours; return their PersistentVolumes, as ``storage.yaml`` says."""
    items = []
    for number in range(1 + 3 * TARGETS):
        disk = folder / "disks" / str(number)
        disk.mkdir(parents=True, exist_ok=True)
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]
        items.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"disk-{number}"},
                "spec": {
                    "storageClassName": "ais-local",
                    "capacity": {"storage": "5Ti"},
                    "accessModes": ["ReadWriteOnce"],
                    "local": {"path": str(disk)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            }
        )
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
