"""Reads from Kubernetes why an ETL's pod does not start, because AIStore's error is often only a time-out."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

IN_CLUSTER = "in-cluster"
_LOG_LINES = 20
_LOG_BYTES = 64 << 10
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Reasons of waiting or terminated containers for which a retry is useless.
_FINAL = frozenset(
    {
        "CreateContainerConfigError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "OOMKilled",
    }
)
# Exit codes above this are signals, which do not predict the next attempt.
_SIGNALS = 128
# AIStore's message about a terminated pod (ext/etl/pod_watcher.go).
_ENDED = re.compile(
    r"(?>.*?state: Terminated, reason: )(?P<reason>\w*+), message: (?P<message>.*), exitCode: (?P<code>\d+)",
    re.DOTALL,
)
_POD = re.compile(r'pod="([^"]+)"')


@dataclass
class Watched:
    """Why a pod of an ETL does not start, and whether a retry is useless.

    `waiting` is a pod that runs without being ready, with the end of its log.
    """

    reason: str = ""
    is_final: bool = False
    waiting: str = ""
    _told: set[str] = field(default_factory=set)

    def tell(self, what: str, error: Exception) -> None:
        """Log once what Kubernetes has refused or not answered; a watch asks again every second."""
        if what not in self._told:
            log.info("%s: %s", what, " ".join(str(error).split())[:200])
            self._told.add(what)

    def why(self, aistore_says: str) -> str:
        """Return the best reason why an ETL does not start, given AIStore's own error."""
        if self.reason or stated(aistore_says):
            return self.reason or stated(aistore_says)
        return f"{self.waiting}: {aistore_says}" if self.waiting else aistore_says


def is_final(aistore_says: str) -> bool:
    """Return whether a pod would terminate in the same way again, by AIStore's error."""
    ended = _ENDED.match(aistore_says)
    return ended is not None and _ends_so_again(ended["reason"], int(ended["code"]))


def stated(aistore_says: str) -> str:
    """Return in our words what AIStore's own error says of a pod that has ended; empty if it says nothing.

    AIStore deletes a pod that has ended at once, often before it can be seen here.
    """
    ended, pod = _ENDED.match(aistore_says), _POD.search(aistore_says)
    if not ended or not pod:
        return ""
    return _sentence(pod[1], ended["reason"], int(ended["code"]), ended["message"])


def _sentence(pod: str, reason: str | None, exit_code: int, said: str) -> str:
    remedy = " (raise the memory limit in the ETL's resources)" if reason == "OOMKilled" else ""
    text = " ".join(said.split())[-1000:]
    return f"pod {pod}: {reason or 'ended'}, exit code {exit_code}{remedy}" + (f": {text}" if text else "")


def _ends_so_again(reason: str | None, exit_code: int) -> bool:
    return reason in _FINAL or 0 < exit_code <= _SIGNALS  # an exit, not a signal


def own_namespace(kube_config: str) -> str:
    """Return the namespace of a kubeconfig's context, or of this process's pod for ``in-cluster``.

    Raises kubernetes.config.ConfigException when the configuration does not exist.
    """
    from kubernetes import config

    if kube_config == IN_CLUSTER:
        try:
            return _OWN_NAMESPACE.read_text().strip()
        except OSError as e:
            raise config.ConfigException(f"this process runs in no pod: {e}") from e
    _, context = config.list_kube_config_contexts(config_file=kube_config)
    return str(context["context"].get("namespace") or "default")


class PodWatch:
    """Watches the pods of ETLs while they start, because AIStore deletes the pods of a failed start at once.

    `kube_config` is a kubeconfig file, or ``in-cluster`` for the service account of this process's pod. AIStore
    starts its pods in `namespace`. `interval` is in seconds.
    """

    def __init__(self, kube_config: str, namespace: str, interval: float = 1.0) -> None:
        self.kube_config = kube_config
        self.namespace = namespace
        self.interval = interval

    @cached_property
    def api(self) -> Any:
        """The `kubernetes.client.CoreV1Api`, connected on first use because the import alone takes a second.

        Raises kubernetes.config.ConfigException when the configuration does not exist.
        """
        from kubernetes import client, config

        if self.kube_config == IN_CLUSTER:
            configuration = client.Configuration()
            config.load_incluster_config(client_configuration=configuration)
            return client.CoreV1Api(client.ApiClient(configuration))
        return client.CoreV1Api(config.new_client_from_config(config_file=self.kube_config))

    @contextmanager
    def watching(self, etl_name: str) -> Iterator[Watched]:
        """Watch the pods of an ETL in a separate thread while the block runs.

        Raises kubernetes.config.ConfigException when the configuration cannot be used.
        """
        self.api  # noqa: B018 - raises for a wrong configuration here, not in the thread
        watched = Watched()
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(etl_name, watched, over), daemon=True)
        thread.start()
        try:
            yield watched
        finally:
            over.set()
            thread.join(5)

    def _watch(self, etl_name: str, watched: Watched, over: threading.Event) -> None:
        while not over.wait(self.interval):
            try:
                pods = self.api.list_namespaced_pod(self.namespace, _request_timeout=5).items
                for pod in pods:
                    if pod.metadata.name.startswith(f"{etl_name}-"):
                        self.look(pod, watched)
            except Exception as e:  # the watcher must not affect the start of the ETL, and looks again
                watched.tell(f"cannot watch the pods of ETL {etl_name}", e)

    def look(self, pod: Any, watched: Watched) -> None:
        """Write into `watched` why a pod does not start."""
        name = pod.metadata.name
        for condition in pod.status.conditions or []:
            if condition.type == "PodScheduled" and condition.status == "False":
                watched.reason = f"pod {name} cannot be scheduled: {condition.message or condition.reason}"
        for status in pod.status.container_statuses or []:
            if status.state and status.state.running and not status.ready:
                log_text = " ".join(self.log(name, watched).split())[-1000:]
                if log_text:
                    watched.waiting = f"pod {name} runs but is not ready ({log_text})"
                elif not watched.waiting:  # a pod that is being deleted has no log any more
                    watched.waiting = f"pod {name} runs but is not ready"
            for state in (status.state, status.last_state):
                waiting, ended = (state.waiting, state.terminated) if state else (None, None)
                if waiting and waiting.reason not in (None, "ContainerCreating", "PodInitializing"):
                    watched.reason = f"pod {name}: {waiting.reason}: {waiting.message or status.image}"
                    watched.is_final = waiting.reason in _FINAL
                elif ended:
                    said = ended.message or self.log(name, watched)
                    watched.reason = _sentence(name, ended.reason, ended.exit_code, said)
                    watched.is_final = _ends_so_again(ended.reason, ended.exit_code)

    def log(self, pod: str, watched: Watched) -> str:
        """Return the last 20 lines of a pod's log, of at most 64 KiB; empty if this account cannot read it."""
        try:
            # Without this option the client returns the text of a Python literal, b'…', as of its version 36.
            answer = self.api.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=_LOG_LINES, limit_bytes=_LOG_BYTES, _preload_content=False,
                _request_timeout=5,
            )  # fmt: skip
            return str(answer.data.decode(errors="replace"))
        except Exception as e:  # the log is optional
            watched.tell(f"cannot read the log of pod {pod}", e)
            return ""


def pods_of(extra: Mapping[str, Any]) -> PodWatch | None:
    """Return the watcher that the extras of an AIStore connection describe; None without ``kube_config``."""
    if not extra.get("kube_config"):
        return None
    return PodWatch(extra["kube_config"], extra.get("kube_namespace") or "ais")
