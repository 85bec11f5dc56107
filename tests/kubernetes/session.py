"""AIStore from ``docs/kubernetes`` on a cluster, reached through a pod, and removed after the tests."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from storeside.aistore.cluster import Cluster
from storeside.aistore.pods import PodWatch
from storeside.stack.settings import default_folder
from tests.kubernetes import forward, overlay, stores
from tests.kubernetes.images import LOADER, TRANSFORMER
from tests.kubernetes.kubectl import Kubectl, KubectlError
from tests.kubernetes.resources import listed

READY_SECONDS = 300
# Several sessions on one cluster do not share it.
FORWARDER = f"storeside-test-{uuid.uuid4().hex[:8]}"
# Environment variables by which the runner tells its tests which cluster to use.
KUBECONFIG, NAMESPACE, IMAGES, OWN, KUBECTL, STARTED, MACHINE = (
    f"STORESIDE_K8S_{name}" for name in ("KUBECONFIG", "NAMESPACE", "IMAGES", "OWN", "KUBECTL", "STARTED", "MACHINE")
)


@dataclass
class Session:
    """A cluster under test. `own_folder` is where the disks of a node of ours lie; None for a user's cluster."""

    kubectl: Kubectl
    images: str
    own_folder: Path | None
    times: dict[str, float] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace of AIStore and of the pods of its ETLs."""
        return self.kubectl.namespace

    @property
    def transformer(self) -> str:
        """The image of transformers."""
        return f"{self.images}/{TRANSFORMER}"

    @property
    def loader(self) -> str:
        """The image of AIStore's load generator."""
        return f"{self.images}/{LOADER}"

    @property
    def proxy_url(self) -> str:
        """AIStore's address within the cluster."""
        return f"http://ais-proxy.{self.namespace}:51080"

    @cached_property
    def aistore(self) -> Any:
        """An `aistore` SDK client."""
        return Cluster(self.proxy_url).client()

    @property
    def airflow(self) -> str:
        """The namespace of Airflow, where loaders run."""
        return "airflow" if self.own_folder else self.namespace

    def account(self, name: str) -> Path:
        """Write a kubeconfig with the rights and the namespace of an account of Airflow, and return its path."""
        token = self.kubectl("create", "token", name, f"--namespace={self.airflow}", "--duration=2h").strip()
        given = yaml.safe_load(self.kubectl("config", "view", "--raw", "--flatten", "--minify"))
        given["users"][0]["user"] = {"token": token}
        given["contexts"][0]["context"]["namespace"] = self.airflow
        path = default_folder() / f"kubernetes-{os.getpid()}-{name}.conf"
        path.touch(mode=0o600)
        path.write_text(json.dumps(given))
        return path

    def as_account(self, name: str) -> Kubectl:
        """Return ``kubectl`` with the rights of a service account of Airflow."""
        return replace(self.kubectl, kubeconfig=self.account(name))

    @cached_property
    def worker(self) -> Path:
        """A kubeconfig with the rights of Airflow's workers."""
        return self.account("airflow-worker")

    def pods(self) -> PodWatch:
        """Return a watcher of ETLs' pods with the rights of Airflow's workers."""
        return PodWatch(str(self.worker), self.namespace, interval=0.2)


@contextmanager
def session() -> Iterator[Session]:
    """Apply the manifests to the cluster that the environment names, yield it, and remove all that was made.

    Raises KubectlError if a part does not become ready.
    """
    kubectl = Kubectl(json.loads(os.environ[KUBECTL]), Path(os.environ[KUBECONFIG]), os.environ[NAMESPACE])
    manifests = replace(kubectl, namespace="")  # they name their own
    own = os.environ.get(OWN)
    made = Session(kubectl, os.environ[IMAGES], Path(own) if own else None)
    folder = Path(tempfile.mkdtemp(prefix="kubernetes-", dir=default_folder()))
    try:
        began = time.monotonic()
        overlay.write(folder, made.namespace, made.images, made.own_folder)
        if made.own_folder:
            kubectl("label", "node", "--all", "storeside/role=storage", "--overwrite")
            kubectl("apply", "-f", "-", stdin=overlay.volumes(made.own_folder))
            manifests("apply", "-f", str(overlay.DOCS / "namespaces.yaml"))
            manifests("apply", "-f", "-", stdin=listed([*stores.filled_secrets(), *stores.resources()]))
        manifests("apply", "-k", str(folder))
        kubectl("apply", "-f", "-", stdin=_pod(made))
        _wait(kubectl)
        made.times["k8s.aistore_seconds"] = time.monotonic() - began
        with kubectl.forward(FORWARDER, forward.PORT) as port, _proxied(kubectl, port):
            yield made
    finally:
        kubectl("delete", "pod", FORWARDER, "--ignore-not-found", "--grace-period=1", check=False)
        if not made.own_folder:  # a node of ours ends with everything on it
            manifests("delete", "-k", str(folder), "--ignore-not-found", check=False)
            kubectl("delete", "pvc", "-l", "app.kubernetes.io/name=ais", "--ignore-not-found", check=False)
        shutil.rmtree(folder, ignore_errors=True)
        for path in default_folder().glob(f"kubernetes-{os.getpid()}-*.conf"):
            path.unlink()


def _wait(kubectl: Kubectl) -> None:
    try:
        for name in ("ais-proxy", "ais-target"):
            kubectl(
                "rollout", "status", f"statefulset/{name}", f"--timeout={READY_SECONDS}s", seconds=READY_SECONDS + 10
            )
        kubectl(
            "wait",
            f"pod/{FORWARDER}",
            "--for=condition=Ready",
            f"--timeout={READY_SECONDS}s",
            seconds=READY_SECONDS + 10,
        )
    except KubectlError as e:
        events = kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)
        pods = kubectl("get", "pods", "-o", "wide", check=False)
        logs = kubectl("logs", "-l", "app.kubernetes.io/name=ais", "--tail=15", "--prefix", check=False)
        raise KubectlError(f"{e}\n{pods}\n{events[-3000:]}\n{logs[-4000:]}") from e


def _pod(made: Session) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": FORWARDER, "labels": {"app.kubernetes.io/name": FORWARDER}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "forwarder",
                        "image": made.transformer,
                        "command": ["python", "-c", Path(forward.__file__).read_text()],
                        "readinessProbe": {"tcpSocket": {"port": forward.PORT}, "periodSeconds": 1},
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
    )


@contextmanager
def _proxied(kubectl: Kubectl, port: int) -> Iterator[None]:
    """Let HTTP clients of this process reach the cluster through the forwarder; loopback and Kubernetes directly."""
    server = yaml.safe_load(kubectl("config", "view", "--minify"))["clusters"][0]["cluster"]["server"]
    exempt = ",".join(("127.0.0.1", "localhost", str(urlsplit(server).hostname)))
    proxy = f"http://127.0.0.1:{port}"
    changed = {"http_proxy": proxy, "HTTP_PROXY": proxy, "no_proxy": exempt, "NO_PROXY": exempt}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
