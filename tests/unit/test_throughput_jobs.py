"""Loaders as a Kubernetes Job: its parts, what leads to it, and refusals. tests/kubernetes runs it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client as kube

from storeside.aistore.cluster import Cluster
from storeside.aistore.pods import IN_CLUSTER, own_namespace
from storeside.errors import BadInput, Transient
from storeside.measure.errors import MeasureError, MeasureInputError, MeasureTransientError
from storeside.measure.throughput import jobs
from storeside.measure.throughput.group import LocalLoaders
from storeside.measure.throughput.job_spec import START_SECONDS, access, job
from storeside.measure.throughput.jobs import JobLoaders, LoaderJob
from storeside.measure.throughput.kubernetes import Kubernetes
from storeside.operators.hooks.aistore import AIStoreHook

LABELS = {"app.kubernetes.io/name": "storeside-loader", "storeside/measurement": "1"}
CLUSTER = Cluster("http://ais-proxy.ais:51080")
TOTALS = json.dumps(
    [
        {
            kind: {
                "start_time": "2026-11-21T10:00:00Z", "count": "1", "bytes": "100", "errors": 0, "latency": 1,
                "duration": 5_000_000_000, "min_latency": 1, "max_latency": 2,
            }
            for kind in ("get", "put")
        }
    ]
)  # fmt: skip


def made(cluster: Cluster = CLUSTER, secret: str = "", **other: Any) -> dict[str, Any]:
    given = {"arguments": ["-bucket=ais://b"], "number": 3, "seconds": 60, "storage": "ais", **other}
    return job("loaders", LABELS, image="repo/aisloader:1", cluster=cluster, secret=secret, **given)


# ---- the Job


def test_a_job_has_one_pod_per_loader_and_starts_none_again() -> None:
    spec = made()["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert spec["activeDeadlineSeconds"] > START_SECONDS + 60
    assert spec["ttlSecondsAfterFinished"] > 0
    assert not spec["suspend"]


def test_pods_prefer_nodes_of_their_own() -> None:
    pod = made()["spec"]["template"]["spec"]
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"]["matchLabels"] == LABELS
    (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["namespaces"] == ["ais"]


def test_the_token_and_the_files_are_in_the_secret_only(tmp_path: Path) -> None:
    for name in ("ca", "crt", "key"):
        (tmp_path / name).write_text(f"PEM of {name}")
    files = {"ca_cert": "ca", "client_cert": "crt", "client_key": "key"}
    cluster = Cluster("https://ais", token="the-token", **{k: str(tmp_path / v) for k, v in files.items()})
    assert access(cluster) == {
        "token": "the-token", "ca.crt": "PEM of ca", "tls.crt": "PEM of crt", "tls.key": "PEM of key",
    }  # fmt: skip
    text = json.dumps(found := made(cluster, "access"))
    assert "the-token" not in text
    assert "PEM" not in text
    assert str(tmp_path) not in text
    assert found["spec"]["suspend"]  # until the Secret exists
    (container,) = found["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert variables == {
        "AIS_ENDPOINT": "https://ais",
        "AIS_CRT": "/etc/storeside/access/tls.crt",
        "AIS_CRT_KEY": "/etc/storeside/access/tls.key",
        "AIS_CLIENT_CA": "/etc/storeside/access/ca.crt",
        "AIS_SKIP_VERIFY_CRT": "false",
        "AIS_AUTHN_TOKEN": {"secretKeyRef": {"name": "access", "key": "token", "optional": True}},
    }


def test_a_cluster_without_access_needs_no_secret() -> None:
    assert access(CLUSTER) == {}
    assert "secret" not in json.dumps(made()).lower()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasureInputError, match="absent, which cannot be read"):
        access(Cluster("https://ais", ca_cert=str(tmp_path / "absent")))


def test_a_name_is_no_variable_of_the_pod() -> None:
    """Kubernetes replaces $(NAME) in commands, so a prefix could put the token into the log."""
    (container,) = made(arguments=["-subdir=$(AIS_AUTHN_TOKEN)"])["spec"]["template"]["spec"]["containers"]
    assert "-subdir=$$(AIS_AUTHN_TOKEN)" in container["command"]


def test_a_retry_has_the_same_job() -> None:
    one, again, other = (JobLoaders(CLUSTER, "k", "i", "ais", scope) for scope in ("a", "a", "b"))
    assert (one.name, one.labels) == (again.name, again.labels)
    assert one.name != other.name
    assert len(one.name) <= 52  # pods have a suffix


# ---- what leads to it


def hook(monkeypatch: pytest.MonkeyPatch, **extra: str) -> AIStoreHook:
    connection = {"conn_type": "aistore", "host": "proxy", "extra": {"aisloader": "/bin/true", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(connection))
    return AIStoreHook()


def test_an_image_and_kubernetes_make_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hook(
        monkeypatch,
        kube_config="in-cluster",
        aisloader_image="i",
        kube_namespace="store",
        transformer_endpoint="http://in",
    ).loaders("scope")
    assert found == JobLoaders(Cluster("http://in"), "in-cluster", "i", "store", "scope")


def test_without_an_image_loaders_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(hook(monkeypatch, kube_config="in-cluster").loaders("scope"), LocalLoaders)


def test_an_image_without_kubernetes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="aisloader_image needs the extra kube_config"):
        hook(monkeypatch, aisloader_image="i").loaders("scope")


def kubeconfig(folder: Path, server: str, **context: str) -> str:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **context}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    return str(path)


@pytest.mark.parametrize(("context", "namespace"), [({"namespace": "airflow"}, "airflow"), ({}, "default")])
def test_the_namespace_is_that_of_the_context(tmp_path: Path, context: dict[str, str], namespace: str) -> None:
    assert own_namespace(kubeconfig(tmp_path, "http://127.0.0.1:9", **context)) == namespace


@pytest.mark.parametrize("kube_config", [IN_CLUSTER, "/absent/kubeconfig"])
def test_a_kube_config_that_cannot_be_used_is_named(kube_config: str) -> None:
    with pytest.raises(MeasureInputError, match="kube_config of the AIStore connection cannot be used"):
        JobLoaders(CLUSTER, kube_config, "i", "ais", "scope").clear()


def test_a_kubernetes_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(MeasureTransientError, match="Kubernetes does not answer"):
        JobLoaders(CLUSTER, kubeconfig(tmp_path, "http://127.0.0.1:9"), "i", "ais", "scope").clear()


@pytest.mark.parametrize(
    ("status", "message", "kind", "words"),
    [
        (
            403,
            'jobs.batch is forbidden: User "u" cannot',
            BadInput,
            r'\["batch"\], resources: \[jobs\], verbs: \[create',
        ),
        (403, "jobs.batch is forbidden: exceeded quota: q", Transient, "refuses to create jobs.*exceeded quota: q$"),
        (401, "Unauthorized", BadInput, "renew the credentials"),
        (422, "spec: Invalid value", BadInput, "Invalid value"),
        (500, "etcd", Transient, "etcd"),
    ],
)
def test_a_refusal_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, message: str, kind: type[Exception], words: str
) -> None:
    error = kube.ApiException(status=status, reason="r")
    error.body = json.dumps({"message": message})

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(kube.BatchV1Api, "create_namespaced_job", refuse)
    with pytest.raises(MeasureError, match=words) as caught:
        Kubernetes(kubeconfig(tmp_path, "http://127.0.0.1:9")).create_job({})
    assert isinstance(caught.value, kind)


# ---- the pods, of which the real ones are in tests/kubernetes


def pod(index: int, phase: str, reason: str = "", code: int = 0, message: str = "", evicted: str = "") -> Any:
    ended = kube.V1ContainerStateTerminated(reason=reason, exit_code=code, message=message)
    state = kube.V1ContainerState(
        running=kube.V1ContainerStateRunning() if phase == "Running" else None, terminated=ended if reason else None
    )
    container = kube.V1ContainerStatus(
        name="aisloader", image="i", image_id="", ready=False, restart_count=0, state=state
    )
    return kube.V1Pod(
        metadata=kube.V1ObjectMeta(
            name=f"p{index}", annotations={"batch.kubernetes.io/job-completion-index": str(index)}
        ),
        spec=kube.V1PodSpec(containers=[], node_name="n"),
        status=kube.V1PodStatus(phase=phase, reason="Evicted", message=evicted)
        if evicted
        else kube.V1PodStatus(phase=phase, container_statuses=[container]),
    )


class Answers:
    """Kubernetes' answers: a list of pods per request, the last one repeated."""

    namespace = "airflow"

    def __init__(self, *pods: list[Any]) -> None:
        self._pods = list(pods)
        self.annotated: dict[str, str] = {}
        self.deleted: list[str] = []

    def pods(self, _label: str) -> list[Any]:
        return self._pods.pop(0) if len(self._pods) > 1 else self._pods[0]

    def own_pod(self, _name: str) -> Any:
        return None

    def create_job(self, _body: Any) -> Any:
        return kube.V1Job(metadata=kube.V1ObjectMeta(name="j", uid="u"))

    def annotate(self, name: str, _annotation: str, value: str) -> None:
        self.annotated[name] = value

    def why_it_ended(self, _name: str) -> str:
        return "DeadlineExceeded: too long"

    def why_no_pods(self, _name: str) -> str:
        return "exceeded quota"

    def why_not_started(self, _pod: Any) -> Any:
        return SimpleNamespace(is_final=False, reason="pod p0 cannot be scheduled: no room")

    def log(self, _pod: str) -> str:
        return "ERROR: bucket on fire"

    def delete(self, name: str, _label: str) -> None:
        self.deleted.append(name)


def group(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> LoaderJob:
    monkeypatch.setattr(jobs, "Kubernetes", lambda kube_config: answers)
    monkeypatch.setattr(jobs, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(jobs, "_NAP_SECONDS", 0.01)
    return JobLoaders(CLUSTER, "k", "i", "ais", "scope").group([], 2, 60)


RUN = [pod(1, "Running"), pod(0, "Running")]
DONE = [pod(n, "Succeeded", "Completed", message=TOTALS) for n in (0, 1)]


def test_loaders_get_one_start_when_all_run_and_their_totals_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers([], [RUN[0]], RUN, RUN, [RUN[0], DONE[0]], DONE)
    with group(monkeypatch, answers) as loaders:
        assert not answers.annotated
        loaders.begin()
        assert len(set(answers.annotated.values())) == 1
        assert set(answers.annotated) == {"p0", "p1"}
        assert loaders.wait(60)
        assert loaders.outcome().bytes == 400
    assert answers.deleted


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        (
            pod(1, "Failed", "Error", 3),
            r"^loader 2 of 2, pod p1 on node n: aisloader exited with 3: ERROR: bucket on",
        ),
        (pod(1, "Failed", "OOMKilled", 137), "OOMKilled at the limit of 4 GiB: use fewer workers"),
        (pod(1, "Failed", "StartError", 128, "no sh"), "StartError: no sh"),
        (pod(1, "Failed", evicted="no disk"), "pod p1 on node n: Evicted: no disk"),
        (pod(1, "Succeeded", "Completed"), r"pod p1 on node n: aisloader left no totals"),
        (pod(1, "Succeeded", "Completed", message=TOTALS.replace('"errors": 0', '"errors": 7')), "14 requests"),
        (None, "pod p1 of a loader was deleted: DeadlineExceeded: too long"),
    ],
)
def test_one_failed_pod_ends_all_with_its_reason(monkeypatch: pytest.MonkeyPatch, failed: Any, message: str) -> None:
    answers = Answers(RUN, [RUN[1], *([failed] if failed else [])])
    with group(monkeypatch, answers) as loaders:
        loaders.begin()
        assert loaders.wait(60)
        with pytest.raises(MeasureTransientError, match=message):
            loaders.outcome()
    assert answers.deleted


def test_a_start_that_takes_too_long_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "START_SECONDS", 0)
    answers = Answers([pod(0, "Pending")])
    words = r"2 loaders of Job .* did not start within 0 s: pod p0 cannot be scheduled: no room; exceeded quota; Dead"
    with pytest.raises(MeasureTransientError, match=words), group(monkeypatch, answers):
        pass
    assert answers.deleted


def test_kubernetes_may_be_silent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Answers):
        silent = 0

        def pods(self, label: str) -> list[Any]:
            if self.silent:
                self.silent -= 1
                raise MeasureTransientError("Kubernetes does not answer")
            return super().pods(label)

    answers = Silent(RUN, DONE)
    with group(monkeypatch, answers) as loaders:
        loaders.begin()
        answers.silent = 3
        assert loaders.wait(60)
        assert loaders.outcome().requests == 4
    answers = Silent(RUN, RUN)
    with group(monkeypatch, answers) as loaders:
        loaders.begin()
        answers.silent = 1000
        monkeypatch.setattr(jobs, "_SILENT_SECONDS", 0)
        with pytest.raises(MeasureTransientError, match="does not answer"):
            loaders.wait(60)


def test_loaders_that_are_killed_end_without_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers([])
    loaders = group(monkeypatch, answers)
    loaders.kill()
    with loaders:
        assert loaders.wait(60)
    assert answers.deleted
