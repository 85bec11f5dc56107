"""Kubernetes' information on a pod that does not start, in one sentence."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client as kube

from storeside.aistore.pods import PodWatch, Watched, is_final, stated
from storeside.stack.settings import CHECKOUT
from tests.support import until


def pod(*, name: str = "my-etl-t1", state: Any = None, last: Any = None, conditions: Any = None) -> Any:
    status = kube.V1ContainerStatus(
        name="c", image="repo/image:1", image_id="", ready=False, restart_count=0, state=state, last_state=last
    )
    return kube.V1Pod(
        metadata=kube.V1ObjectMeta(name=name),
        status=kube.V1PodStatus(phase="Pending", container_statuses=[status], conditions=conditions),
    )


def waiting(reason: str, message: str | None = None) -> Any:
    return kube.V1ContainerState(waiting=kube.V1ContainerStateWaiting(reason=reason, message=message))


def ended(reason: str, code: int, message: str | None = None) -> Any:
    return kube.V1ContainerState(
        terminated=kube.V1ContainerStateTerminated(reason=reason, exit_code=code, message=message)
    )


class Api:
    def __init__(self, *pods: Any) -> None:
        self.pods, self.asked = pods, 0

    def is_asked(self, times: int) -> None:
        """Wait until the watch has asked so often, and so has seen all answers before the last one."""
        until(lambda: self.asked >= times, 60, "questions of the watch", 0.01)

    def list_namespaced_pod(self, _namespace: str, **_options: Any) -> Any:
        self.asked += 1
        return SimpleNamespace(items=self.pods)

    def read_namespaced_pod_log(self, _pod: str, _namespace: str, **_options: Any) -> Any:
        return SimpleNamespace(data=b"Traceback\nKeyError: 'x'\n")


def watch(api: Any) -> PodWatch:
    made = PodWatch("absent.yaml", "ais", interval=0.01)
    made.api = api
    return made


@pytest.mark.parametrize(
    ("found", "reason", "final"),
    [
        (
            pod(state=waiting("ImagePullBackOff", "Back-off pulling image")),
            "pod my-etl-t1: ImagePullBackOff: Back-off pulling image",
            True,
        ),
        (pod(state=waiting("ErrImagePull")), "pod my-etl-t1: ErrImagePull: repo/image:1", True),
        (
            pod(state=ended("OOMKilled", 137, "last line")),
            "pod my-etl-t1: OOMKilled, exit code 137 (raise the memory limit in the ETL's resources): last line",
            True,
        ),
        (pod(state=ended("Error", 1)), "pod my-etl-t1: Error, exit code 1: Traceback KeyError: 'x'", True),
        (pod(state=ended("Error", 143, "Terminated")), "pod my-etl-t1: Error, exit code 143: Terminated", False),
        (
            pod(state=waiting("CrashLoopBackOff", "back-off"), last=ended("Error", 2, "boom")),
            "pod my-etl-t1: Error, exit code 2: boom",
            True,
        ),
        (
            pod(
                conditions=[
                    kube.V1PodCondition(type="PodScheduled", status="False", message="0/3 nodes: insufficient memory")
                ]
            ),
            "pod my-etl-t1 cannot be scheduled: 0/3 nodes: insufficient memory",
            False,
        ),
        (pod(state=waiting("ContainerCreating")), "", False),
        (pod(name="another-t1", state=waiting("ErrImagePull")), "", False),
    ],
)
def test_reason(found: Any, reason: str, final: bool) -> None:
    api = Api(found)
    with watch(api).watching("my-etl") as watched:
        api.is_asked(2)
    assert (watched.reason, watched.is_final) == (reason, final)


@pytest.mark.parametrize(
    ("reason", "code", "final"),
    [("Error", 1, True), ("StartError", 128, True), ("OOMKilled", 137, True), ("Error", 137, False), ("", 0, False)],
)
def test_what_aistore_says_of_a_pod(reason: str, code: int, final: bool) -> None:
    state = f"container: my-etl, state: Terminated, reason: {reason}, message: a,\nb, exitCode: {code}"
    assert is_final(f'[t[t1],pod="my-etl-t1",service="my-etl-t1",pod_status="{state}"] context canceled') == final
    assert not is_final('[t[t1],pod="my-etl-t1",pod_status="container: my-etl, state: Waiting"] timed out')


def test_a_pod_that_is_gone_before_it_is_seen_has_the_reason_that_aistore_saw() -> None:
    state = "container: my-etl, state: Terminated, reason: {}, message: {}, exitCode: {}"
    text = '[t[t1],pod="my-etl-t1",service="my-etl-t1",pod_status="' + state + '"] context canceled'
    remedy = "raise the memory limit in the ETL's resources"
    assert stated(text.format("OOMKilled", "", 137)) == f"pod my-etl-t1: OOMKilled, exit code 137 ({remedy})"
    assert stated(text.format("Error", "one,\ntwo", 3)) == "pod my-etl-t1: Error, exit code 3: one, two"
    assert stated("deadline exceeded") == ""


def test_a_pod_that_is_not_ready_says_what_it_has_logged() -> None:
    running = kube.V1ContainerState(running=kube.V1ContainerStateRunning())
    api = Api(pod(state=running))
    with watch(api).watching("my-etl") as watched:
        api.is_asked(2)
    assert watched.reason == ""
    assert watched.why("timed out") == "pod my-etl-t1 runs but is not ready (Traceback KeyError: 'x'): timed out"


def test_the_last_log_of_a_pod_outlives_it() -> None:
    running = kube.V1ContainerState(running=kube.V1ContainerStateRunning())
    logs = iter([b"loading the model\n"])

    class Deleted(Api):
        def read_namespaced_pod_log(self, _pod: str, _namespace: str, **_options: Any) -> Any:
            return SimpleNamespace(data=next(logs))

    api = Deleted(pod(state=running))
    with watch(api).watching("my-etl") as watched:
        api.is_asked(3)
    assert watched.why("timed out") == "pod my-etl-t1 runs but is not ready (loading the model): timed out"


def test_the_log_is_its_text_not_that_of_a_python_literal() -> None:
    """With the real client, because its result depends on its version."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write("\u00e4 'waits'\n".encode() + b"\xff")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = kube.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        pods = watch(kube.CoreV1Api(kube.ApiClient(configuration)))
        assert pods.log("my-etl-t1", Watched()) == "\u00e4 'waits'\n\ufffd"
        server.shutdown()


def test_after_an_error_pods_are_watched_again() -> None:
    found = pod(state=waiting("ErrImagePull", "no such image"))
    answers = iter([RuntimeError("the API server is busy"), RuntimeError("still")])

    class Busy(Api):
        def list_namespaced_pod(self, _namespace: str, **_options: Any) -> Any:
            for error in answers:
                raise error
            return super().list_namespaced_pod(_namespace)

    with watch(Busy(found)).watching("my-etl") as watched:
        until(lambda: watched.reason, 60, "reason")
    assert "ErrImagePull" in watched.reason


def test_a_kubernetes_that_does_not_answer_changes_nothing() -> None:
    class Silent(Api):
        def list_namespaced_pod(self, _namespace: str, **_options: Any) -> Any:
            super().list_namespaced_pod(_namespace)
            raise RuntimeError("no answer")

    api = Silent()
    with watch(api).watching("my-etl") as watched:
        api.is_asked(2)
    assert watched.reason == ""


def test_a_wrong_configuration_is_said_when_it_is_needed() -> None:
    from kubernetes.config import ConfigException

    pods = PodWatch("absent.yaml", "ais")
    with pytest.raises(ConfigException), pods.watching("my-etl"):
        pass


def test_kubernetes_is_imported_when_an_etl_starts() -> None:
    code = "import sys, storeside.aistore.pods as p; p.PodWatch('k', 'ais'); assert 'kubernetes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)
