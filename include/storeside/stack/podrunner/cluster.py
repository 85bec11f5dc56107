"""All pods and services of the pod runner, and the watches on them."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from storeside.stack.podrunner.pods import InvalidError, Manifest, Pod, free_port, now
from storeside.stack.podrunner.processes import Ledger
from storeside.stack.podrunner.settings import Settings

LOGS_KEPT = 50
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class AlreadyExistsError(Exception):
    """An object of this name exists already."""


class Cluster:
    """All pods and services, and the watchers of the pods."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.logs = settings.state / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(settings.state / "running")
        self.services: dict[str, Manifest] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Manifest] = {node["name"]: self._node(node) for node in settings.nodes}
        self.version = 1
        self._watchers: set[tuple[str | None, asyncio.Queue[bytes]]] = set()
        self._removing: dict[str, asyncio.Task[None]] = {}

    def _node(self, node: Mapping[str, Any]) -> Manifest:
        """Describe the pod that AIStore's target believes to run in; its ETL pods inherit the volumes of this pod."""
        mounts = [{"name": f"volume-{n}", "mountPath": path} for n, path in enumerate(node["mounts"])]
        manifest = self._accept({"metadata": {"name": node["name"]}}, "Pod")
        manifest["spec"] = {
            "nodeName": node["node"],
            "containers": [{"name": "ais-node", "image": "aisnode", "volumeMounts": mounts}],
            "volumes": [{"name": mount["name"], "hostPath": {"path": mount["mountPath"]}} for mount in mounts],
        }
        manifest["status"] = {"phase": "Running", "hostIP": self.settings.host, "podIP": self.settings.host}
        return manifest

    def _accept(self, manifest: Manifest, kind: str) -> Manifest:
        metadata = manifest.get("metadata", {})
        if not _NAME.fullmatch(metadata.get("name", "")):
            raise InvalidError(f"{metadata.get('name')!r} is not a valid name for a {kind}")
        metadata.update(
            namespace=self.settings.namespace,
            uid=str(uuid.uuid4()),
            creationTimestamp=now(),
            resourceVersion="1",
        )
        return {**manifest, "apiVersion": "v1", "kind": kind, "metadata": metadata}

    def manifests(self, name: str | None = None) -> list[Manifest]:
        """Return all pods, or only the pod of that name if it exists."""
        every = self.nodes | {pod.name: pod.manifest for pod in self.pods.values()}
        return [manifest for key, manifest in every.items() if name is None or key == name]

    async def create_pod(self, manifest: Manifest) -> Manifest:
        """Register a pod and start it."""
        manifest = self._accept(manifest, "Pod")
        name = manifest["metadata"]["name"]
        if not manifest.get("spec", {}).get("containers"):
            raise InvalidError(f"pod {name!r} has no container")
        if self.manifests(name):
            raise AlreadyExistsError(name)
        manifest["status"] = {"phase": "Pending", "hostIP": self.settings.host, "podIP": self.settings.host}
        self._prune_logs()
        pod = self.pods[name] = Pod(manifest, self)
        self.touch(pod, "ADDED")
        await pod.start()
        return pod.manifest

    async def delete_pod(self, name: str) -> Manifest | None:
        """End a pod and remove it; None if it does not exist. It stays listed until its processes have ended."""
        pod = self.pods.get(name)
        if pod is None:
            return None
        if name not in self._removing:
            self._removing[name] = asyncio.create_task(self._remove(pod))
        await asyncio.shield(self._removing[name])
        return pod.manifest

    async def _remove(self, pod: Pod) -> None:
        try:
            await pod.stop()
        finally:
            del self.pods[pod.name], self._removing[pod.name]
            self.touch(pod, "DELETED")

    def create_service(self, manifest: Manifest) -> Manifest:
        """Register a service; its node port is the port that its pod will listen on."""
        manifest = self._accept(manifest, "Service")
        name = manifest["metadata"]["name"]
        if name in self.services:
            raise AlreadyExistsError(name)
        spec = manifest.setdefault("spec", {})
        spec["clusterIP"] = self.settings.host
        for port in spec.setdefault("ports", [{}]):
            port["nodePort"] = free_port(self.settings.host)
        self.services[name] = manifest | {"status": {"loadBalancer": {}}}
        return self.services[name]

    def claim_port(self, name: str) -> int:
        """Return a port for a pod: the port of its service, or another one if that port is taken."""
        service = self.services.get(name)
        if service is None:
            return free_port(self.settings.host)
        entry = service["spec"]["ports"][0]
        entry["nodePort"] = free_port(self.settings.host, entry["nodePort"])
        return int(entry["nodePort"])

    def touch(self, pod: Pod, event: str = "MODIFIED") -> None:
        """Give a changed pod a new version and send the event to its watchers."""
        self.version += 1
        pod.manifest["metadata"]["resourceVersion"] = str(self.version)
        line = event_line(event, pod.manifest)
        for name, queue in self._watchers:
            if name in (None, pod.name):
                queue.put_nowait(line)

    def watch(self, name: str | None) -> asyncio.Queue[bytes]:
        """Return a queue of events that starts with the current pods."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for manifest in self.manifests(name):
            queue.put_nowait(event_line("ADDED", manifest))
        self._watchers.add((name, queue))
        return queue

    def unwatch(self, queue: asyncio.Queue[bytes]) -> None:
        """Remove a watcher."""
        self._watchers = {(name, kept) for name, kept in self._watchers if kept is not queue}

    async def enforce_forever(self) -> None:
        """Enforce the limits of all pods once a second."""
        while True:
            await asyncio.sleep(1)
            for pod in list(self.pods.values()):
                pod.enforce()

    async def shutdown(self) -> None:
        """End all pods."""
        await asyncio.gather(*(pod.stop() for pod in self.pods.values()))

    def _prune_logs(self) -> None:
        logs = sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in logs[:-LOGS_KEPT]:
            if path.stem not in self.pods:
                path.unlink(missing_ok=True)


def event_line(event: str, manifest: Manifest) -> bytes:
    """Return one event as the line that a watch sends."""
    return json.dumps({"type": event, "object": manifest}).encode() + b"\n"
