"""Loaders that measure throughput from pods of a Job, with the rights of Airflow's workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.measure.errors import MeasureInputError, MeasureTransientError
from storeside.measure.throughput import job_spec
from storeside.measure.throughput.jobs import JobLoaders
from storeside.measure.throughput.load import Load
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.session import Session
from tests.support import put, sizes, unique, until

pytestmark = pytest.mark.timeout(300)
OBJECT = 64 << 10
SECONDS = 8
TOKEN = "eyJ-secret-of-the-test"


@pytest.fixture
def bucket(cluster: Session) -> Iterator[Bucket]:
    bucket = Bucket("ais", unique("bench"))
    put(cluster.aistore, bucket, {f"in/{n}": bytes(OBJECT) for n in range(8)})
    yield bucket
    bucket.handle(cluster.aistore).delete()


@pytest.fixture
def kubectl(cluster: Session) -> Kubectl:
    """Kubectl with all rights in the namespace of the loaders."""
    return replace(cluster.kubectl, namespace=cluster.airflow)


@pytest.fixture
def loaders(cluster: Session, kubectl: Kubectl) -> Iterator[JobLoaders]:
    """Loaders of a measurement, of which nothing may be left."""
    made = JobLoaders(
        Cluster(cluster.proxy_url, token=TOKEN), str(cluster.worker), cluster.loader, cluster.namespace, unique("run")
    )
    yield made
    until(lambda: not objects(kubectl, made), 30, "removal of the loaders")


def objects(kubectl: Kubectl, loaders: JobLoaders) -> list[str]:
    """Return the Job, the Secret and the pods of loaders that exist."""
    label = f"{job_spec.LABEL}={loaders.labels[job_spec.LABEL]}"
    found = kubectl("get", "jobs,pods", "--output=name", f"--selector={label}")
    return [*found.split(), *kubectl("get", "secret", loaders.name, "--output=name", "--ignore-not-found").split()]


def read(bucket: Bucket, number: int, seconds: int = SECONDS) -> list[str]:
    return Load(bucket, "read", OBJECT, 4, seconds, prefix="in/", loaders=number).arguments("")


def test_several_loaders_start_together_and_have_one_outcome(
    loaders: JobLoaders, kubectl: Kubectl, bucket: Bucket
) -> None:
    loaders.clear()  # of no earlier try
    with loaders.group(read(bucket, 3), 3, SECONDS) as group:
        group.begin()
        assert not group.wait(0.5)
        job = kubectl.json("get", "job", loaders.name)
        pods = kubectl.json("get", "pods", f"--selector=job-name={loaders.name}")["items"]
        assert TOKEN not in json.dumps([job, pods])
        assert group.wait(60)
        found = group.outcome()
    assert len(pods) == 3
    assert found.requests > 0
    assert found.bytes == found.requests * OBJECT
    since, ended = found.together
    # each sees its start within 50 ms; starting aisloader takes longer on a busy machine
    assert since - found.began < 2.5
    assert ended - since > SECONDS - 3


def test_what_a_killed_try_has_left_is_deleted(loaders: JobLoaders, kubectl: Kubectl, bucket: Bucket) -> None:
    """The block of a killed process does not end."""
    group = loaders.group(read(bucket, 2, 120), 2, 120)
    group.__enter__()
    assert len(objects(kubectl, loaders)) == 4  # Job, Secret and two pods
    loaders.clear()
    until(lambda: not objects(kubectl, loaders), 10, "removal by the garbage collector")


def test_killed_loaders_end_at_once(loaders: JobLoaders, kubectl: Kubectl, bucket: Bucket) -> None:
    with loaders.group(read(bucket, 2, 120), 2, 120) as group:
        group.begin()
        threading.Timer(1, group.kill).start()
        assert group.wait(20)
        began = time.monotonic()
    assert time.monotonic() - began < 15
    assert not kubectl("get", "pods", f"--selector=job-name={loaders.name}", "--output=name").split()


def test_one_failed_loader_ends_the_job_and_is_named(loaders: JobLoaders, cluster: Session, bucket: Bucket) -> None:
    absent = Bucket("ais", unique("absent"))
    with loaders.group([*read(absent, 2)[1:], "-bucket=nothing://x"], 2, SECONDS) as group:
        group.begin()
        assert group.wait(60)
        with pytest.raises(
            MeasureTransientError, match=r"^loader \d of 2, pod \S+ on node \S+: aisloader exited with"
        ):
            group.outcome()
    assert sizes(cluster.aistore, bucket)


def test_a_deleted_pod_is_named(loaders: JobLoaders, kubectl: Kubectl, bucket: Bucket) -> None:
    with loaders.group(read(bucket, 2, 120), 2, 120) as group:
        group.begin()
        pod = kubectl("get", "pods", f"--selector=job-name={loaders.name}", "--output=name").split()[0]
        kubectl("delete", pod, "--grace-period=1", "--wait=false")
        assert group.wait(60)
        with pytest.raises(MeasureTransientError, match=r"pod \S+"):
            group.outcome()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        pytest.param("no/such-image:9", "no/such-image:9.*correct the extra aisloader_image", id="absent"),
        pytest.param("ais-init:test", "StartError.*sh.*correct the extra aisloader_image", id="without-a-shell"),
    ],
)
def test_an_image_that_cannot_run_is_named(
    cluster: Session, loaders: JobLoaders, bucket: Bucket, image: str, words: str
) -> None:
    if cluster.own_folder is None and image.startswith("ais-init"):
        pytest.skip("AIStore's own image may contain a shell")
    wrong = replace(loaders, image=f"{cluster.images}/{image}")
    with pytest.raises(MeasureInputError, match=words), wrong.group(read(bucket, 1), 1, 5):
        pass


def test_a_missing_right_is_named_with_its_rule(cluster: Session, loaders: JobLoaders, bucket: Bucket) -> None:
    other = replace(loaders, kube_config=str(cluster.account("airflow-triggerer")))
    rule = (
        r'add the rule {apiGroups: \["batch"\], resources: \[jobs\], verbs: \[create\]} to the Role storeside-loaders'
    )
    with pytest.raises(MeasureInputError, match=rule), other.group(read(bucket, 1), 1, SECONDS):
        pass
