"""Checks Kubernetes: whether this machine can read the ETL pods and their logs in AIStore's namespace."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from storeside.aistore.pods import PodWatch
from storeside.doctor.findings import Finding, System
from storeside.doctor.remedies import answered, reach

_FEW = 20
_here = System("Kubernetes")


def examine(pods: PodWatch) -> Iterator[Finding]:
    """Check whether this machine can list pods and read a log."""
    from kubernetes.client import ApiException
    from kubernetes.config import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        found = pods.api.list_namespaced_pod(pods.namespace, limit=_FEW, _request_timeout=10).items
    except ConfigException as e:
        yield _here.failed("pods", e, "correct kube_config in the extras of the AIStore connection")
        return
    except ApiException as e:
        yield _here.failed("pods", f"{e.status} {e.reason}", _remedy(e.status, pods.namespace))
        return
    except (HTTPError, OSError) as e:
        ways = "let this machine reach the API server of the kube_config"
        yield _here.failed("pods", e, reach(e, ways, tls="certificate-authority in its kube_config"))
        return
    yield _here.ok("pods", f"{len(found)} in namespace {pods.namespace}")
    for pod in found:
        try:
            pods.api.read_namespaced_pod_log(pod.metadata.name, pods.namespace, tail_lines=1, _request_timeout=10)
        except ApiException as e:
            if e.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                yield _here.failed("logs", f"{e.status} {e.reason}", _remedy(e.status, pods.namespace))
                return
        else:
            yield _here.ok("logs", f"the log of {pod.metadata.name} is readable")
            return
    yield _here.skipped("logs", "no pod in the namespace has a log yet")


def _remedy(status: int, namespace: str) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "renew the token or the certificate of the user in the kube_config of the AIStore connection"
    role = (
        f"allow get and list of pods, and get of pods/log, in the namespace {namespace} (docs/kubernetes/rbac.yaml),"
        " and set kube_namespace to the namespace in which AIStore starts ETLs"
    )
    return answered(status, role)
