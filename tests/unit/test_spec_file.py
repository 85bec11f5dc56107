"""AIStore's own specification files of ETLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.aistore.spec_file import seconds

# From AIStore's documentation (docs/cli/etl.md of v1.5.0).
DOCUMENTED = """\
name: hello-world-etl
runtime:
  image: aistorage/transformer_hello_world:latest
  # Optional: Override the container entrypoint
  # command: ["uvicorn", "fastapi_server:fastapi_app", "--host", "0.0.0.0", "--port", "8000", "--workers", "4"]

communication: hpush://
argument: fqn
init_timeout: 5m
obj_timeout: 45s
support_direct_put: true
"""
POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: etl-echo\n"
MINIMAL = "name: my-etl\nruntime: {image: 'a:1'}\n"


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(text: str, *arguments: str) -> EtlSpec:
        path = tmp_path / "etl_spec.yaml"
        path.write_text(text)
        return EtlSpec.from_yaml(path, *arguments)

    return read


def test_the_documented_example(read: Any) -> None:
    spec = read(DOCUMENTED)
    assert spec == EtlSpec(
        "hello-world-etl",
        "aistorage/transformer_hello_world:latest",
        communication="hpush",
        file_access=False,
        init_timeout=300,
        object_timeout=45,
        etl_name="hello-world-etl",
    )
    assert spec.name == "hello-world-etl"
    message = spec.message()
    assert {name: message[name] for name in ("name", "communication", "init_timeout", "support_direct_put")} == {
        "name": "hello-world-etl",
        "communication": "hpush://",
        "init_timeout": "300s",
        "support_direct_put": True,
    }


def test_everything_that_a_file_may_say(read: Any) -> None:
    assert read(
        "name: my-etl\ncommunication: ws\nsupport_direct_put: true\nobj_timeout: 1m30s\nargument: ''\n"
        "env: [{name: A, value: outer}, {name: B}]\n"
        "runtime:\n  image: a:1\n  command: [run, --fast]\n"
        "  env: [{name: A, value: inner}, {name: N, value: 4}, {name: ETL_DIRECT_FQN, value: true}]\n"
        "resources: {limits: {memory: 1Gi, cpu: 2}}\n"
    ) == EtlSpec(
        "my-etl",
        "a:1",
        ("run", "--fast"),
        {"A": "inner", "B": "", "N": "4"},
        communication="ws",
        file_access=True,
        init_timeout=300,
        object_timeout=90,
        resources={"limits": {"memory": "1Gi", "cpu": "2"}},
        etl_name="my-etl",
    )


def test_aistores_defaults(read: Any) -> None:
    spec = read(MINIMAL)
    assert (spec.communication, spec.direct_put, spec.init_timeout, spec.object_timeout) == ("hpush", False, 300, 45)


def test_one_of_several(read: Any) -> None:
    two = f"{MINIMAL}---\n{DOCUMENTED}---\n"
    assert read(two, "my-etl").image == "a:1"
    assert read(two, "hello-world-etl").object_timeout == 45
    with pytest.raises(AIStoreInputError, match=r"has 2 ETLs, my-etl, hello-world-etl: name one of them as etl_name"):
        read(two)
    with pytest.raises(AIStoreInputError, match=r"has 1 ETLs, my-etl"):
        read(MINIMAL, "other-etl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("name: [", "it cannot be read"),
        ("- a", "must be a mapping"),
        (POD, r"a Pod of Kubernetes, .* EtlSpec\.existing"),
        ("name: my-etl\n", "'runtime' is missing"),
        ("runtime: {image: a}\n", "name must be a text, not None"),
        ("name: my-etl\nruntime: {}\n", "image must be a text, not None"),
        (MINIMAL + "channel: ws\n", "unknown field channel: AIStore knows argument, communication"),
        ("name: my-etl\nruntime: {image: a, args: []}\n", r"unknown field runtime\.args"),
        ("name: my-etl\nruntime: {image: a, command: run}\n", r"runtime\.command must be a list"),
        (MINIMAL + "communication: tcp://\n", "communication 'tcp' is not one of ws, hpush, hpull"),
        (MINIMAL + "communication: ws\n", "no WebSocket transform without direct put"),
        (MINIMAL + "argument: path\n", "argument 'path': write fqn"),
        (MINIMAL + "init_timeout: 5\n", "init_timeout must be a text, not 5"),
        (MINIMAL + "obj_timeout: 5 minutes\n", "obj_timeout '5 minutes' is not a duration such as 45s or 5m"),
        (MINIMAL + "support_direct_put: maybe\n", "support_direct_put must be true or false"),
        (MINIMAL + "resources: [1]\n", "resources must have requests and limits"),
        (MINIMAL + "env: [A]\n", "env must be a list of variables"),
        (
            "name: my-etl\nruntime: {image: a, env: [{name: KEY, valueFrom: {secretKeyRef: {name: k, key: k}}}]}\n",
            r"runtime\.env: the variable KEY has no plain value; .* use EtlSpec\.existing",
        ),
        (MINIMAL.replace("my-etl", "My-etl"), "ETL name 'My-etl' is invalid"),
        (MINIMAL.replace("my-etl", "etl"), "ETL name 'etl' is too short"),
    ],
)
def test_wrong_files_say_file_field_and_remedy(read: Any, text: str, message: str) -> None:
    with pytest.raises(AIStoreInputError, match=message) as caught:
        read(text)
    assert "etl_spec.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AIStoreInputError, match=r"absent\.yaml: it cannot be read"):
        EtlSpec.from_yaml(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"), [("45s", 45), ("5m0s", 300), ("1h1m1.5s", 3662), ("100ms", 1), ("2.5m", 150), (".5h", 1800)]
)
def test_durations_of_go(text: str, expected: int) -> None:
    assert seconds(text, "x") == expected
