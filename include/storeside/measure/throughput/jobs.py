"""Loaders as pods of a Kubernetes Job: several machines measure together."""

from __future__ import annotations

import hashlib
import logging
import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from storeside.aistore.cluster import Cluster
from storeside.errors import StoresideError
from storeside.measure.errors import MeasureInputError, MeasureTransientError
from storeside.measure.throughput.group import merged
from storeside.measure.throughput.job_spec import LABEL, START, START_SECONDS, access, job
from storeside.measure.throughput.kubernetes import Kubernetes
from storeside.measure.throughput.load import Outcome, result

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_NAP_SECONDS = 0.2
# Within this time, the node of each pod writes the start time into the pod.
_NOTICE_SECONDS = 5
# Kubernetes may be silent for this time while the loaders run.
_SILENT_SECONDS = 60
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class JobLoaders:
    """Loaders on Kubernetes, one per pod. `image` contains a shell and `aisloader` on its PATH.

    The pods reach AIStore at the endpoint of `cluster`. `storage` is the namespace of AIStore. A retry has the same
    `scope`, so it deletes the Job of a killed try.
    """

    cluster: Cluster
    kube_config: str
    image: str
    storage: str
    scope: str

    @property
    def name(self) -> str:
        """The name of the Job."""
        return f"storeside-loaders-{self._key}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the Job and its pods."""
        return {"app.kubernetes.io/name": "storeside-loader", LABEL: self._key}

    @property
    def _key(self) -> str:
        return hashlib.sha256(self.scope.encode()).hexdigest()[:16]

    def clear(self) -> None:
        """Delete the Job of an earlier try, and wait until its pods have ended. Raises MeasureError."""
        self.delete(Kubernetes(self.kube_config))

    def delete(self, kubernetes: Kubernetes) -> None:
        """Delete the Job, and wait until its pods have ended. Raises MeasureError."""
        kubernetes.delete(self.name, f"{LABEL}={self._key}")

    def group(self, arguments: Sequence[str], number: int, seconds: int) -> LoaderJob:
        """Return the loaders of one Job."""
        return LoaderJob(self, arguments, number, seconds)


class LoaderJob:
    """Loaders that wait for each other and start at the same time. The first that fails ends the others."""

    def __init__(self, settings: JobLoaders, arguments: Sequence[str], number: int, seconds: int) -> None:
        self._settings = settings
        self._arguments = arguments
        self._number = number
        self._seconds = seconds
        self._kubernetes = Kubernetes(settings.kube_config)
        self._label = f"{LABEL}={settings.labels[LABEL]}"
        self._names: list[str] = []
        self._outcomes: dict[str, Outcome] = {}
        self._failure: MeasureTransientError | None = None
        self._killed = False
        self._looked = self._heard = 0.0

    def __enter__(self) -> Self:
        try:
            self._create()
            self._gather()
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._delete()

    def begin(self) -> None:
        """Tell all pods the same time, a few seconds from now, at which they start."""
        start = math.ceil(time.time() + _NOTICE_SECONDS)
        for name in self._names:
            self._kubernetes.annotate(name, START, str(start))
        self._heard = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return whether all loaders have ended, or one has failed.

        Raises MeasureTransientError if Kubernetes does not answer for a minute.
        """
        deadline = time.monotonic() + seconds
        while not self._over():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _NAP_SECONDS))
        return True

    def kill(self) -> None:
        """Let `wait` return at once; leaving the block deletes the Job. A signal handler may call this."""
        self._killed = True

    def outcome(self) -> Outcome:
        """Return the merged totals of loaders that have all ended.

        Raises:
            MeasureTransientError: a loader, or some of its requests, failed, or they did not run at the same time.
        """
        if self._failure is not None:
            raise self._failure
        return merged([self._outcomes[name] for name in self._names])

    def _create(self) -> None:
        settings, kubernetes = self._settings, self._kubernetes
        values = access(settings.cluster)
        pod = kubernetes.own_pod(socket.gethostname())
        body = job(
            settings.name,
            settings.labels,
            image=settings.image,
            cluster=settings.cluster,
            secret=settings.name if values else "",
            arguments=self._arguments,
            number=self._number,
            seconds=self._seconds,
            storage=settings.storage,
            owners=[_owner("v1", "Pod", pod)] if pod else [],
        )
        made = kubernetes.create_job(body)
        if values:
            kubernetes.create_secret(settings.name, values, _owner("batch/v1", "Job", made))
            kubernetes.resume_job(settings.name)
        log.info("Job %s in the namespace %s: %d pods", settings.name, kubernetes.namespace, self._number)

    def _gather(self) -> None:
        """Wait until all pods run; return early if the loaders are killed."""
        deadline = time.monotonic() + START_SECONDS
        while not self._killed:
            pods = self._kubernetes.pods(self._label)
            if len(pods) == self._number and all(_container(pod, "running") for pod in pods):
                self._names = [pod.metadata.name for pod in sorted(pods, key=_index)]
                log.info("loaders: %s", ", ".join(f"{p.metadata.name} on {p.spec.node_name}" for p in pods))
                return
            self._check_start(pods, time.monotonic() > deadline)
            for pod in pods:
                if pod.status.phase == "Failed":
                    raise self._failed(pod)
            time.sleep(_LOOK_SECONDS)

    def _check_start(self, pods: Sequence[Any], late: bool) -> None:
        """Raise MeasureError if a pod can never start, or if it is too `late`."""
        waiting = [self._kubernetes.why_not_started(pod) for pod in pods if not _container(pod, "running")]
        for watched in waiting:
            if watched.is_final:
                raise MeasureInputError(
                    f"{watched.reason}: correct the extra aisloader_image of the AIStore connection"
                )
        if late:
            reasons = [watched.reason for watched in waiting if watched.reason]
            if len(pods) < self._number:
                reasons.append(self._kubernetes.why_no_pods(self._settings.name))
                reasons.append(self._kubernetes.why_it_ended(self._settings.name))
            why = "; ".join(reason for reason in reasons if reason) or "Kubernetes states no reason"
            raise MeasureTransientError(
                f"the {self._number} loaders of Job {self._settings.name} did not start within {START_SECONDS} s:"
                f" {why}"
            )

    def _over(self) -> bool:
        if self._killed or self._failure:
            return True
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            try:
                self._look()
                self._heard = time.monotonic()
            except MeasureTransientError as e:
                if time.monotonic() - self._heard > _SILENT_SECONDS:
                    raise
                log.warning("%s", e)
            self._looked = time.monotonic()
        return self._failure is not None or len(self._outcomes) == self._number

    def _look(self) -> None:
        pods = {pod.metadata.name: pod for pod in self._kubernetes.pods(self._label)}
        for pod in sorted(pods.values(), key=_index):
            if pod.status.phase == "Failed":
                self._failure = self._failed(pod)
                return
            if pod.status.phase == "Succeeded" and pod.metadata.name not in self._outcomes:
                self._read(pod)
        gone = [name for name in self._names if name not in pods and name not in self._outcomes]
        if gone and self._failure is None:
            why = self._kubernetes.why_it_ended(self._settings.name)
            self._failure = MeasureTransientError(f"pod {gone[0]} of a loader was deleted{why and f': {why}'}")

    def _read(self, pod: Any) -> None:
        try:
            self._outcomes[pod.metadata.name] = self._result(pod)
        except MeasureTransientError as e:
            self._failure = self._named(pod, e)

    def _failed(self, pod: Any) -> MeasureTransientError:
        """Return why a pod has failed: the reason of Kubernetes, or the last output of the loader."""
        ended = _container(pod, "terminated")
        if ended is None:
            return self._named(pod, f"{pod.status.reason or 'failed'}: {pod.status.message or 'no reason is known'}")
        if ended.reason == "OOMKilled":
            return self._named(pod, "OOMKilled at the limit of 4 GiB: use fewer workers (concurrency)")
        if ended.reason not in ("Error", "Completed"):
            return self._named(pod, f"{ended.reason}: {ended.message}")
        try:
            self._result(pod)
        except MeasureTransientError as e:
            return self._named(pod, e)
        return self._named(pod, pod.status.message or "failed")

    def _result(self, pod: Any) -> Outcome:
        ended = _container(pod, "terminated")
        return result(ended.exit_code, ended.message or "", lambda: self._kubernetes.log(pod.metadata.name))

    def _named(self, pod: Any, why: object) -> MeasureTransientError:
        return MeasureTransientError(
            f"loader {_index(pod) + 1} of {self._number}, pod {pod.metadata.name} on node {pod.spec.node_name}: {why}"
        )

    def _delete(self) -> None:
        """Delete the Job. A failure must not hide the error that ended the loaders."""
        try:
            self._settings.delete(self._kubernetes)
        except StoresideError as e:
            log.warning("Job %s may still run until the next try deletes it: %s", self._settings.name, e)


def _owner(version: str, kind: str, found: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": found.metadata.name, "uid": found.metadata.uid}


def _index(pod: Any) -> int:
    return int(pod.metadata.annotations[_INDEX])


def _container(pod: Any, state: str) -> Any:
    """Return a state of the pod's container, such as ``running``; None if it has another state."""
    for status in pod.status.container_statuses or []:
        return getattr(status.state, state)
    return None
