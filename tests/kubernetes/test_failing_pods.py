"""ETLs whose pods cannot start: the task's error contains the reason that Kubernetes has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from storeside.aistore import etl as etls
from storeside.aistore.errors import AIStoreError, AIStoreInputError, AIStoreTransientError
from storeside.aistore.spec import EtlSpec
from tests.kubernetes.session import Session
from tests.support import unique

pytestmark = pytest.mark.timeout(240)

PYTHON = ("python", "-c")
MEMORY = "x = bytearray(b'1') * (1 << 30); print(len(x))"


@pytest.fixture
def spec(cluster: Session) -> Iterator[EtlSpec]:
    """An ETL that starts; a test changes one part of it."""
    made = EtlSpec(unique("fails"), cluster.transformer, communication="hpush", init_timeout=25)
    yield made
    left = [pod["metadata"]["name"] for pod in cluster.kubectl.json("get", "pods")["items"]]
    assert not [name for name in left if name.startswith(made.label)]


@pytest.mark.parametrize(
    ("change", "words", "kind"),
    [
        pytest.param(
            {"image": "no/such-image:9"}, ("ErrImagePull", "no/such-image:9"), AIStoreInputError, id="image"
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "640"}}, "init_timeout": 10},
            ("cannot be scheduled", "Insufficient cpu"),
            AIStoreTransientError,
            id="resources",
        ),
        pytest.param({"command": ("/nothing",)}, ("StartError", "/nothing"), AIStoreInputError, id="command"),
        pytest.param(
            {"command": (*PYTHON, "print('I give up'); raise SystemExit(3)")},
            ("exit code 3", "I give up"),
            AIStoreInputError,
            id="exit",
        ),
        pytest.param(
            {"command": (*PYTHON, MEMORY), "resources": {"limits": {"memory": "64Mi"}}},
            ("OOMKilled", "exit code 137", "raise the memory limit"),
            AIStoreInputError,
            id="memory",
        ),
        pytest.param(
            {"command": (*PYTHON, "import time; print('I wait', flush=True); time.sleep(999)"), "init_timeout": 10},
            ("is not ready", "I wait"),
            AIStoreTransientError,
            id="readiness",
        ),
    ],
)
def test_the_reason_is_that_of_kubernetes(
    cluster: Session, spec: EtlSpec, change: dict[str, Any], words: tuple[str, ...], kind: type[AIStoreError]
) -> None:
    with pytest.raises(AIStoreError) as caught:
        etls.ensure(cluster.aistore, replace(spec, **change), cluster.pods())
    assert not [word for word in words if word not in str(caught.value)], caught.value
    assert type(caught.value) is kind
