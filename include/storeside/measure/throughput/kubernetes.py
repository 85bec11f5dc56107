"""Requests to Kubernetes, whose refusals name the missing right."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from typing import Any

from storeside.aistore.pods import IN_CLUSTER, PodWatch, Watched, own_namespace
from storeside.measure.errors import MeasureInputError, MeasureTransientError

_SECONDS = 10
_GONE_SECONDS = 60
_FINAL = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)


class Kubernetes:
    """The namespace where loaders run: the one of the kubeconfig's context, or of this process's pod.

    Each method raises MeasureInputError if Kubernetes refuses the request, and MeasureTransientError if it does not
    answer.
    """

    def __init__(self, kube_config: str) -> None:
        self._kube_config = kube_config

    @cached_property
    def _pods(self) -> PodWatch:
        from kubernetes.config import ConfigException

        try:
            made = PodWatch(self._kube_config, own_namespace(self._kube_config))
            made.api  # noqa: B018 - raises for a wrong configuration
        except (ConfigException, OSError) as e:
            raise MeasureInputError(f"kube_config of the AIStore connection cannot be used: {e}") from e
        return made

    @cached_property
    def _jobs(self) -> Any:
        from kubernetes.client import BatchV1Api

        return BatchV1Api(self._pods.api.api_client)

    @property
    def namespace(self) -> str:
        """The namespace where loaders run."""
        return self._pods.namespace

    def create_job(self, body: Mapping[str, Any]) -> Any:
        """Create a Job and return it."""
        with self._request("create", "jobs", "batch"):
            return self._jobs.create_namespaced_job(self.namespace, body, _request_timeout=_SECONDS)

    def resume_job(self, name: str) -> None:
        """Let a suspended Job start its pods."""
        with self._request("patch", "jobs", "batch"):
            body = {"spec": {"suspend": False}}
            self._jobs.patch_namespaced_job(name, self.namespace, body, _request_timeout=_SECONDS)

    def create_secret(self, name: str, values: Mapping[str, str], owner: Mapping[str, Any]) -> None:
        """Create a Secret that is deleted with its owner."""
        body = {"metadata": {"name": name, "ownerReferences": [dict(owner)]}, "stringData": dict(values)}
        with self._request("create", "secrets"):
            self._pods.api.create_namespaced_secret(self.namespace, body, _request_timeout=_SECONDS)

    def annotate(self, pod: str, name: str, value: str) -> None:
        """Set an annotation of a pod, if the pod exists."""
        body = {"metadata": {"annotations": {name: value}}}
        with self._request("patch", "pods"):
            _or_none(
                lambda: self._pods.api.patch_namespaced_pod(pod, self.namespace, body, _request_timeout=_SECONDS)
            )

    def pods(self, label: str) -> list[Any]:
        """Return the pods with a label, such as ``name=value``."""
        with self._request("list", "pods"):
            found = self._pods.api.list_namespaced_pod(
                self.namespace, label_selector=label, _request_timeout=_SECONDS
            )
        return list(found.items)

    def own_pod(self, name: str) -> Any:
        """Return the pod of this process, by its host name; None if there is none, or outside of Kubernetes."""
        if self._kube_config != IN_CLUSTER:
            return None
        with self._request("get", "pods"):
            return _or_none(
                lambda: self._pods.api.read_namespaced_pod(name, self.namespace, _request_timeout=_SECONDS)
            )

    def why_it_ended(self, name: str) -> str:
        """Return why a Job has failed; empty if it has not."""
        with self._request("get", "jobs", "batch"):
            found = _or_none(lambda: self._jobs.read_namespaced_job(name, self.namespace, _request_timeout=_SECONDS))
        if found is None:
            return "the Job was deleted"
        failed = [one for one in found.status.conditions or [] if one.type in ("Failed", "FailureTarget")]
        return f"{failed[-1].reason}: {failed[-1].message}" if failed else ""

    def why_no_pods(self, job: str) -> str:
        """Return the last event of a Job whose pods cannot be created; empty if there is none."""
        with self._request("list", "events"):
            found = self._pods.api.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.name={job},involvedObject.kind=Job,reason=FailedCreate",
                limit=20,
                _request_timeout=_SECONDS,
            )
        return str(found.items[-1].message) if found.items else ""

    def why_not_started(self, pod: Any) -> Watched:
        """Return the reason why a pod does not start, and whether it is final."""
        found = Watched()
        self._pods.look(pod, found)
        return found

    def log(self, pod: str) -> str:
        """Return the end of a pod's log; empty if it cannot be read."""
        return self._pods.log(pod, Watched())

    def delete(self, job: str, label: str) -> None:
        """Delete a Job, and wait until its pods with a label have ended."""
        with self._request("delete", "jobs", "batch"):
            _or_none(
                lambda: self._jobs.delete_namespaced_job(
                    job, self.namespace, propagation_policy="Background", _request_timeout=_SECONDS
                )
            )
        deadline = time.monotonic() + _GONE_SECONDS
        while left := self.pods(label):
            if time.monotonic() > deadline:
                raise MeasureTransientError(
                    f"pod {left[0].metadata.name} of a deleted Job has not ended after {_GONE_SECONDS} s"
                )
            time.sleep(0.2)

    @contextmanager
    def _request(self, verb: str, resource: str, group: str = "") -> Iterator[None]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as e:
            said = f"Kubernetes refuses to {verb} {resource} in the namespace {self.namespace}: {_message(e)}"
            if e.status == HTTPStatus.FORBIDDEN and "User " in said:  # not a quota
                rule = f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [{verb}]}}'
                raise MeasureInputError(
                    f"{said}: add the rule {rule} to the Role storeside-loaders (docs/kubernetes/loaders.yaml)"
                ) from e
            if e.status == HTTPStatus.UNAUTHORIZED:
                raise MeasureInputError(f"{said}: renew the credentials in the kube_config of the connection") from e
            raise (MeasureInputError if e.status in _FINAL else MeasureTransientError)(said) from e
        except (HTTPError, OSError) as e:
            raise MeasureTransientError(f"Kubernetes does not answer: {e}") from e


def _or_none(request: Callable[[], Any]) -> Any:
    """Return the answer, or None if the object does not exist."""
    from kubernetes.client import ApiException

    try:
        return request()
    except ApiException as e:
        if e.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def _message(error: Any) -> str:
    try:
        text = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        text = f"{error.status} {error.reason}"
    return text[:500]
