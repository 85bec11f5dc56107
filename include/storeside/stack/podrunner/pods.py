"""Pods run as processes: each with its own port, environment, log, readiness probe and memory limit."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from storeside.stack.podrunner import allowed
from storeside.stack.podrunner.processes import Ledger, dies_with_parent, kill_tree, usage
from storeside.stack.podrunner.settings import Image, Settings, bare_name
from storeside.stack.supervision.probes import UNANSWERED, Connection

TAIL_BYTES = 2048
LOG_BYTES = 16 << 20
PASSED_ON = ("PATH", "HOME", "LANG")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "m": 1e-3}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_ANY_HOST = r"(?:0\.0\.0\.0|127\.0\.0\.1|localhost|\[::\])"
_CONDITIONS = ("Initialized", "PodScheduled", "ContainersReady", "Ready")

Manifest = dict[str, Any]


class InvalidError(Exception):
    """The object cannot be accepted."""


def quantity(text: str) -> float:
    """Convert a Kubernetes quantity such as ``512Mi`` to a number. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\d+)?)([kMGTm]?|[KMGT]i)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    return float(match[1]) * _UNITS[match[2]]


def free_port(host: str, preferred: int = 0) -> int:
    """Return `preferred` if it can be bound, otherwise any free port."""
    with socket.socket() as probe:
        try:
            probe.bind((host, preferred))
        except OSError:
            probe.bind((host, 0))
        return int(probe.getsockname()[1])


def now() -> str:
    """Return the current time in Kubernetes' format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _listening(port: int) -> str:
    """Return the expression of an argument that contains the port; a host has at most 255 characters."""
    return rf"(--(?:port|bind)[= ]\S{{0,255}}?|-[pb] \S{{0,255}}?|{_ANY_HOST}:|^:)\b{port}\b"


def _at_port(arguments: list[str], container_port: int, port: int, host: str) -> list[str]:
    """Change a command that listens on all addresses of its container so that it listens on `host` and `port`."""
    inline = re.compile(_listening(container_port))
    result: list[str] = []
    for argument in arguments:
        if argument == str(container_port) and result and result[-1] in ("--port", "-p"):
            result.append(str(port))
        else:
            result.append(inline.sub(rf"\g<1>{port}", argument).replace("0.0.0.0", host))  # noqa: S104
    return result


class Surroundings(Protocol):
    """The parts of its cluster that a pod uses."""

    settings: Settings
    logs: Path
    ledger: Ledger

    def claim_port(self, name: str) -> int:
        """Return a port for the pod of this name."""

    def touch(self, pod: Pod) -> None:
        """Tell the watchers that a pod has changed."""


class Pod:
    """One pod: its Kubernetes object, and the process that represents its first container."""

    def __init__(self, manifest: Manifest, cluster: Surroundings) -> None:
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
        """Start the process, or set the pod's status to the reason why it cannot start."""
        try:
            command, image = self._command()
            limit = self._limits().get("memory")
            self._limit = quantity(limit) if limit is not None else None
            self.log.unlink(missing_ok=True)
            with self.log.open("ab") as log:  # append mode: the log can be truncated while the process writes
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=image.directory,
                    env=self._environment(image),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=dies_with_parent(),
                )
        except (InvalidError, allowed.NotAllowedError) as error:
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
            raise InvalidError(f"the pod runner has no command for the image {name!r}; it has commands for: {known}")
        spec = self.manifest["spec"]
        if len(spec["containers"]) > 1 or spec.get("initContainers"):
            raise InvalidError("the pod runner supports only pods with one container and no init containers")
        if self._container.get("workingDir"):
            raise InvalidError("the pod runner starts commands in the folder of their image: leave out workingDir")
        given = [*self._container.get("command", ()), *self._container.get("args", ())]
        variables = [entry["name"] for entry in self._container.get("env", ())]
        allowed.require(bare_name(name), given, variables, image.allowed, settings.allowed)
        self._port = self._cluster.claim_port(self.name)
        if not given:
            return [self._fill(part) for part in image.command], image
        ports = self._container.get("ports") or [{}]
        command = _at_port(given, ports[0].get("containerPort", self._port), self._port, settings.host)
        if command[0] in ("python", "python3"):
            command[0] = settings.python
        return command, image

    def _limits(self) -> Manifest:
        """Return the limits of the pod's resources. Raises InvalidError for devices, such as ``nvidia.com/gpu``."""
        resources: Manifest = self._container.get("resources", {})
        asked = {*resources.get("requests", {}), *resources.get("limits", {})}
        if devices := ", ".join(sorted(name for name in asked if "/" in name)):
            raise InvalidError(f"the pod runner has no {devices}: leave it out here, or use an AIStore on Kubernetes")
        limits: Manifest = resources.get("limits", {})
        return limits

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
        settings = self._cluster.settings
        reads = environment.keys() & {"SHARD_SOURCE_URL", "GIVEN_URL"}
        token = settings.gatherer_token if reads else settings.pod_token
        with suppress(FileNotFoundError):
            environment["AIS_AUTHN_TOKEN"] = token.read_text()
        if mounts := [mount["mountPath"] for mount in self._container.get("volumeMounts", ())]:
            environment["AIS_MOUNTS"] = os.pathsep.join(mounts)
        return environment | {"HOSTNAME": self.name}

    # ---- running

    async def _probe(self) -> None:
        """Run the readiness probe repeatedly; before the first success, more often than its period."""
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
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                return log.read().decode(errors="replace")
        except FileNotFoundError:  # a user deleted it
            return ""

    def enforce(self) -> None:
        """Kill the pod if it exceeds its memory limit, and truncate its log if it exceeds `LOG_BYTES`."""
        if self.process is None or not self.alive or self._verdict:
            return
        if self._limit is not None:
            resident = usage(self.process.pid)[1]
            if resident > self._limit:
                self._verdict = f"killed: {resident >> 20} MiB in use, the limit is {int(self._limit) >> 20} MiB"
                kill_tree(self.process.pid)
        with suppress(FileNotFoundError):  # a user may delete the log
            if self.log.stat().st_size > LOG_BYTES:
                os.truncate(self.log, 0)

    async def stop(self) -> None:
        """End the process and its descendants: send SIGTERM, and SIGKILL a second later."""
        self._stopping = True
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 1)
        kill_tree(self.process.pid)
        reaping, probing = self._tasks
        probing.cancel()
        await reaping

    async def measure(self) -> tuple[float, int]:
        """Return the CPU cores in use (measured for half a second) and the resident bytes."""
        if self.process is None or not self.alive:
            return 0.0, 0
        before, _ = usage(self.process.pid)
        await asyncio.sleep(0.5)
        after, resident = usage(self.process.pid)
        return max(0.0, after - before) / 0.5, resident

    # ---- status

    @property
    def alive(self) -> bool:
        """Whether the process runs and `stop` has not been called."""
        return self.process is not None and self.process.returncode is None and not self._stopping

    @property
    def is_ready(self) -> bool:
        """Whether the last readiness probe succeeded."""
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
