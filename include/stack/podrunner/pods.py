"""Pods run as processes: each with its own port, environment, log, readiness probe and memory limit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from include.stack.podrunner.processes import Ledger, dies_with_parent, kill_tree, usage
from include.stack.probes import UNANSWERED, Connection

TAIL_BYTES = 2048
LOG_BYTES = 16 << 20
LOGS_KEPT = 50
PASSED_ON = ("PATH", "HOME", "LANG")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "m": 1e-3}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_ANY_HOST = r"(?:0\.0\.0\.0|127\.0\.0\.1|localhost|\[::\])"
_CONDITIONS = ("Initialized", "PodScheduled", "ContainersReady", "Ready")

Manifest = dict[str, Any]


class AlreadyExistsError(Exception):
    """An object of that name is there."""


class InvalidError(Exception):
    """The object cannot be accepted."""


@dataclass(frozen=True)
class Image:
    """What runs in place of a container image; ``{port}``, ``{host}`` and ``{python}`` are filled in."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None


@dataclass(frozen=True)
class Settings:
    """The configuration file of the pod runner."""

    port: int
    namespace: str
    token: str = field(repr=False)
    certificate: str
    key: str
    state: Path
    python: str
    images: Mapping[str, Image]
    nodes: tuple[Mapping[str, Any], ...] = ()
    host: str = "127.0.0.1"

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the file and the token that it points to."""
        record = json.loads(path.read_text())
        images = {
            pattern: Image(tuple(image["command"]), image.get("env", {}), image.get("cwd"))
            for pattern, image in record.pop("images").items()
        }
        token = Path(record.pop("token_file")).read_text().strip()
        state = Path(record.pop("state"))
        return cls(**record | {"nodes": tuple(record["nodes"])}, images=images, token=token, state=state)

    def image(self, name: str) -> Image | None:
        """Find the entry for a container image, whatever its tag or digest."""
        bare = re.sub(r"(:[^/@]*)?(@.*)?$", "", name).removeprefix("docker.io/")
        return next((image for pattern, image in self.images.items() if fnmatchcase(bare, pattern)), None)


def quantity(text: str) -> float:
    """Turn a Kubernetes quantity such as ``512Mi`` into a number; ValueError when it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\d+)?)([kMGTm]?|[KMGT]i)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    return float(match[1]) * _UNITS[match[2]]


def free_port(host: str, preferred: int = 0) -> int:
    """Return `preferred` when it can be bound, else any port that can."""
    with socket.socket() as probe:
        try:
            probe.bind((host, preferred))
        except OSError:
            probe.bind((host, 0))
        return int(probe.getsockname()[1])


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _at_port(arguments: list[str], container_port: int, port: int, host: str) -> list[str]:
    """Make a command that listens on all addresses of its container listen on `host` and `port` instead."""
    listening = rf"(--(?:port|bind)[= ]\S*?|-[pb] \S*?|{_ANY_HOST}:|^:)\b{container_port}\b"
    inline = re.compile(listening)
    result: list[str] = []
    for argument in arguments:
        if argument == str(container_port) and result and result[-1] in ("--port", "-p"):
            result.append(str(port))
        else:
            result.append(inline.sub(rf"\g<1>{port}", argument).replace("0.0.0.0", host))  # noqa: S104
    return result


class Pod:
    """One pod: its Kubernetes object, and the process that stands for its first container."""

    def __init__(self, manifest: Manifest, cluster: Cluster) -> None:
        self.manifest = manifest
        self.name = str(manifest["metadata"]["name"])
        self.log = cluster.logs / f"{self.name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self._cluster = cluster
        self._container: Manifest = manifest["spec"]["containers"][0]
        self._port = 0
        self._limit: float | None = None
        self._verdict = ""
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    # ---- starting

    async def start(self) -> None:
        """Start the process, or record at once why that cannot be done."""
        try:
            command, image = self._command()
            limit = self._container.get("resources", {}).get("limits", {}).get("memory")
            self._limit = quantity(limit) if limit is not None else None
            self.log.unlink(missing_ok=True)
            with self.log.open("ab") as log:  # appending, so that it can be cut while it is written to
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=self._container.get("workingDir") or image.directory,
                    env=self._environment(image),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=dies_with_parent(),
                )
        except InvalidError as error:
            self._terminated(128, "ImageNotRunnable", str(error))
        except (OSError, ValueError) as error:
            self._terminated(127, "ContainerCannotRun", f"cannot start {self._container.get('image')!r}: {error}")
        else:
            self.process = process
            self._cluster.ledger.add(process.pid, self.name)
            self.manifest["status"].update(phase="Running", startTime=now())
            self._state({"running": {"startedAt": now()}})
            self._tasks = [asyncio.create_task(self._reap(process)), asyncio.create_task(self._probe())]

    def _command(self) -> tuple[list[str], Image]:
        settings = self._cluster.settings
        name = self._container.get("image", "")
        image = settings.image(name)
        if image is None:
            known = ", ".join(settings.images) or "none"
            raise InvalidError(f"the pod runner knows no image {name!r}; it knows: {known}")
        spec = self.manifest["spec"]
        if len(spec["containers"]) > 1 or spec.get("initContainers"):
            raise InvalidError("the pod runner runs pods of one container, without init containers")
        self._port = self._cluster.claim_port(self.name)
        given = [*self._container.get("command", ()), *self._container.get("args", ())]
        if not given:
            return [self._fill(part) for part in image.command], image
        ports = self._container.get("ports") or [{}]
        command = _at_port(given, ports[0].get("containerPort", self._port), self._port, settings.host)
        if command[0] in ("python", "python3"):
            command[0] = settings.python
        return command, image

    def _fill(self, text: str) -> str:
        settings = self._cluster.settings
        for placeholder, value in (
            ("port", str(self._port)),
            ("host", settings.host),
            ("python", settings.python),
        ):
            text = text.replace(f"{{{placeholder}}}", value)
        return text

    def _environment(self, image: Image) -> dict[str, str]:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        programs = str(Path(self._cluster.settings.python).parent)
        environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
        environment.update((name, self._fill(value)) for name, value in image.environment.items())
        environment.update((entry["name"], entry.get("value", "")) for entry in self._container.get("env", ()))
        return environment | {"HOSTNAME": self.name}

    # ---- running

    async def _probe(self) -> None:
        """Follow the readiness probe; until the first success it is asked more often than its period says."""
        probe = self._container.get("readinessProbe", {})
        period = probe.get("periodSeconds") or 10
        threshold = probe.get("failureThreshold") or 3
        failures = 0
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while self.alive:
            if "httpGet" not in probe or await asyncio.to_thread(self._answers, probe):
                failures = 0
                self._ready(True)
            else:
                failures += 1
                if failures >= threshold:
                    self._ready(False)
            await asyncio.sleep(period if self.is_ready else min(period, 0.2))

    def _answers(self, probe: Manifest) -> bool:
        connection = Connection(self._cluster.settings.host, self._port, timeout=probe.get("timeoutSeconds") or 1)
        try:
            connection.request("GET", probe["httpGet"].get("path") or "/")
            return 200 <= connection.getresponse().status < 400
        except UNANSWERED:
            return False
        finally:
            connection.close()

    async def _reap(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        kill_tree(process.pid)
        self._cluster.ledger.remove(process.pid)
        if self._stopping:
            return
        reason = "OOMKilled" if self._verdict else "Error" if code else "Completed"
        message = "\n".join(part for part in (self._verdict, self._tail()) if part)
        self._terminated(code if code >= 0 else 128 - code, reason, message)

    def _tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace")

    def enforce(self) -> None:
        """Kill the pod when it uses more memory than its limit, and keep its log from filling the disk."""
        if self.process is None or not self.alive or self._verdict:
            return
        if self._limit is not None:
            resident = usage(self.process.pid)[1]
            if resident > self._limit:
                self._verdict = f"killed: {resident >> 20} MiB in use, the limit is {int(self._limit) >> 20} MiB"
                kill_tree(self.process.pid)
        if self.log.stat().st_size > LOG_BYTES:
            os.truncate(self.log, 0)

    async def stop(self, grace: float) -> None:
        """End the process and all that it started: asked first, made to after `grace` seconds."""
        self._stopping = True
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace)
        kill_tree(self.process.pid)
        reaping, probing = self._tasks
        probing.cancel()
        await reaping

    async def measure(self) -> tuple[float, int]:
        """Return the CPU cores (over a short while) and the resident bytes in use."""
        if self.process is None or not self.alive:
            return 0.0, 0
        before, _ = usage(self.process.pid)
        await asyncio.sleep(0.5)
        after, resident = usage(self.process.pid)
        return max(0.0, after - before) / 0.5, resident

    # ---- status

    @property
    def alive(self) -> bool:
        """Tell whether the process runs and nobody has asked for its end."""
        return self.process is not None and self.process.returncode is None and not self._stopping

    @property
    def is_ready(self) -> bool:
        """Tell whether the last word of the readiness probe was good."""
        statuses = self.manifest["status"].get("containerStatuses", ())
        return any(status["ready"] for status in statuses)

    def _ready(self, ready: bool) -> None:
        if ready == self.is_ready or not self.alive:
            return
        word = "True" if ready else "False"
        unchanged = ("Initialized", "PodScheduled")
        self.manifest["status"]["conditions"] = [
            {"type": kind, "status": "True" if kind in unchanged else word, "lastTransitionTime": now()}
            for kind in _CONDITIONS
        ]
        self.manifest["status"]["containerStatuses"][0]["ready"] = ready
        self._cluster.touch(self)

    def _terminated(self, code: int, reason: str, message: str) -> None:
        status = self.manifest["status"]
        status.update(phase="Failed" if code else "Succeeded", reason=reason, message=message)
        status["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": now()}]
        end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": now()}
        self._state({"terminated": end})

    def _state(self, state: Manifest) -> None:
        self.manifest["status"]["containerStatuses"] = [
            {
                "name": self._container.get("name", ""),
                "image": self._container.get("image", ""),
                "imageID": "",
                "ready": False,
                "started": "running" in state,
                "restartCount": 0,
                "state": state,
            }
        ]
        self._cluster.touch(self)


class Cluster:
    """All pods and services, and those who watch the pods."""

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
        """Describe the pod that a target of AIStore believes to be in; its ETL pods inherit its volumes."""
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
            raise InvalidError(f"{metadata.get('name')!r} is not a name for a {kind}")
        metadata.update(
            namespace=self.settings.namespace,
            uid=str(uuid.uuid4()),
            creationTimestamp=now(),
            resourceVersion="1",
        )
        return {**manifest, "apiVersion": "v1", "kind": kind, "metadata": metadata}

    def manifests(self, name: str | None = None) -> list[Manifest]:
        """Return the pods, or the one of that name if it is there."""
        every = self.nodes | {pod.name: pod.manifest for pod in self.pods.values()}
        return [manifest for key, manifest in every.items() if name is None or key == name]

    async def create_pod(self, manifest: Manifest) -> Manifest:
        """Take in a pod and start it."""
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
        """End a pod and forget it; None when there is none. It stays listed until its processes are gone."""
        pod = self.pods.get(name)
        if pod is None:
            return None
        if name not in self._removing:
            self._removing[name] = asyncio.create_task(self._remove(pod))
        await asyncio.shield(self._removing[name])
        return pod.manifest

    async def _remove(self, pod: Pod) -> None:
        try:
            await pod.stop(grace=1)
        finally:
            del self.pods[pod.name], self._removing[pod.name]
            self.touch(pod, "DELETED")

    def create_service(self, manifest: Manifest) -> Manifest:
        """Take in a service; its node port is the one its pod is going to listen on."""
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
        """Return a port for a pod: its service's, or another one if that has been taken meanwhile."""
        service = self.services.get(name)
        if service is None:
            return free_port(self.settings.host)
        entry = service["spec"]["ports"][0]
        entry["nodePort"] = free_port(self.settings.host, entry["nodePort"])
        return int(entry["nodePort"])

    def touch(self, pod: Pod, event: str = "MODIFIED") -> None:
        """Give a changed pod a new version and tell its watchers."""
        self.version += 1
        pod.manifest["metadata"]["resourceVersion"] = str(self.version)
        line = event_line(event, pod.manifest)
        for name, queue in self._watchers:
            if name in (None, pod.name):
                queue.put_nowait(line)

    def watch(self, name: str | None) -> asyncio.Queue[bytes]:
        """Return a queue of events, which begins with what is there now."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for manifest in self.manifests(name):
            queue.put_nowait(event_line("ADDED", manifest))
        self._watchers.add((name, queue))
        return queue

    def unwatch(self, queue: asyncio.Queue[bytes]) -> None:
        """Forget a watcher."""
        self._watchers = {(name, kept) for name, kept in self._watchers if kept is not queue}

    async def enforce_forever(self) -> None:
        """Hold every pod to its limits, once a second."""
        while True:
            await asyncio.sleep(1)
            for pod in list(self.pods.values()):
                pod.enforce()

    async def shutdown(self) -> None:
        """End all pods."""
        await asyncio.gather(*(pod.stop(grace=1) for pod in self.pods.values()))

    def _prune_logs(self) -> None:
        logs = sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in logs[:-LOGS_KEPT]:
            if path.stem not in self.pods:
                path.unlink(missing_ok=True)


def event_line(event: str, manifest: Manifest) -> bytes:
    """Write one event as the line that a watch sends."""
    return json.dumps({"type": event, "object": manifest}).encode() + b"\n"
