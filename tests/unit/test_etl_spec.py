from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer
from hypothesis import example, given
from hypothesis import strategies as st

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.spec import EtlSpec
from storeside.stack.settings import CHECKOUT

# AIStore's k8s.ValidateEtlName (cmn/k8s/util.go of v1.5.0).
ETL_NAME = re.compile(r"[a-z0-9-]{6,32}", re.ASCII)
# Kubernetes: names of services (DNS-1035); AIStore makes one from the ETL's name and the target's.
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
SPEC = EtlSpec("transcode", "image:1", ("serve", "--x"), {"A": "1", "B": "2"}, {"NUM_WORKERS": "1"})


def test_same_specification_same_name() -> None:
    again = EtlSpec(
        "transcode",
        "image:1",
        ("serve", "--x"),
        {"B": "2", "A": "1"},
        tuning={"NUM_WORKERS": "1"},
        communication="ws",
    )
    assert again.name == SPEC.name
    assert again.effect == SPEC.effect


def test_name_and_effect_are_the_same_in_another_process() -> None:
    code = (
        "from storeside.aistore.spec import EtlSpec\n"
        "s = EtlSpec('transcode', 'image:1', ('serve', '--x'), {'A': '1', 'B': '2'}, {'NUM_WORKERS': '1'})\n"
        "print(s.name, s.effect)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    assert said.stdout.split() == [SPEC.name, SPEC.effect]


@pytest.mark.parametrize(
    "change",
    [
        {"communication": "hpush"},
        {"communication": "hpull", "direct_put": False},
        {"communication": "hpush", "direct_put": False},
        {"tuning": {"NUM_WORKERS": "2"}},
        {"tuning": {}},
        {"file_access": False},
        {"init_timeout": 61},
        {"object_timeout": 301},
        {"label": "other"},
    ],
)
def test_how_bytes_travel_changes_the_name_and_not_the_effect(change: dict[str, Any]) -> None:
    changed = replace(SPEC, **change)
    assert changed.name != SPEC.name
    assert changed.effect == SPEC.effect


@pytest.mark.parametrize(
    "change",
    [
        {"environment": {"A": "1"}},
        {"environment": {"A": "2", "B": "1"}},
        {"environment": {}},
        {"image": "image:2"},
        {"command": ("serve",)},
        {"command": ("serve --x",)},
        {"command": ("--x", "serve")},
    ],
)
def test_what_is_done_changes_both(change: dict[str, Any]) -> None:
    changed = replace(SPEC, **change)
    assert changed.name != SPEC.name
    assert changed.effect != SPEC.effect


def test_tuning_is_not_environment() -> None:
    moved = replace(SPEC, environment={**SPEC.environment, **SPEC.tuning}, tuning={})
    assert moved.name != SPEC.name
    assert moved.effect != SPEC.effect


@given(st.text(max_size=60))
@example("")
@example("-")
@example("___")
@example("Überträgung")
@example("a" * 19 + "-b")
@example("group.sub_task__1")
@example("x" * 250)
@example("İstanbul")
@example("١٢٣")
def test_names_fit_aistores_rule(label: str) -> None:
    spec = EtlSpec(label, "image:1")
    assert ETL_NAME.fullmatch(spec.name), spec.name
    assert DNS_LABEL.fullmatch(spec.name), spec.name
    assert ETL_NAME.fullmatch(replace(spec, communication="hpush").name)


def test_name_begins_with_the_label() -> None:
    assert re.fullmatch(r"group-sub-task-[0-9a-f]{10}", replace(SPEC, label="Group.sub_task").name)


def test_websocket_without_direct_put_is_refused() -> None:
    with pytest.raises(ValueError, match="no WebSocket transform without direct put: use hpush, or direct_put"):
        EtlSpec("a", "image:1", direct_put=False)
    assert EtlSpec("a", "image:1", communication="hpush", direct_put=False).communication == "hpush"


@pytest.mark.parametrize("communication", ["", "WS", "io", "websocket"])
def test_other_communication_is_refused(communication: str) -> None:
    with pytest.raises(ValueError, match="is not one of ws, hpush, hpull") as caught:
        EtlSpec("a", "image:1", communication=communication)
    assert repr(communication) in str(caught.value)


# ---- chains, classes, messages


def test_a_chain_is_its_stages_in_order() -> None:
    a, b, c = (EtlSpec(label, f"image-{label}") for label in "abc")
    chain = a >> b >> c
    assert chain.stages == (a, b, c)
    assert (a >> (b >> c)).stages == (a, b, c)
    assert chain.name == a.name
    assert len({chain.effect, (a >> c >> b).effect, (a >> b).effect, a.effect}) == 4
    assert {s.communication for s in chain.over("hpush").stages} == {"hpush"}
    assert chain.over("hpush").effect == chain.effect
    assert chain.names == (a.name, b.name, c.name)
    specs = [chain, chain.over("hpush"), chain.without_files(), chain.without_files().over("hpush")]
    assert chain.all_names == tuple(name for spec in specs for name in spec.names)
    assert replace(a, etl_name="my-etl").all_names == ("my-etl",)
    assert not any(s.file_access for s in chain.without_files().stages)


def test_a_chain_needs_direct_put() -> None:
    with pytest.raises(ValueError, match="direct put"):
        EtlSpec("a", "i", communication="hpush", direct_put=False) >> EtlSpec("b", "i")


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(ValueError, match="ETL name"):
        EtlSpec("a", "i", etl_name="Nope!")


def test_the_message_has_what_the_sdk_leaves_out() -> None:
    spec = EtlSpec(
        "a", "i", ("run",), {"A": "1"}, {"NUM_WORKERS": "2"}, "hpush", file_access=False, object_timeout=9,
        resources={"limits": {"memory": "1Gi"}},
    )  # fmt: skip
    message = spec.message()
    environment = {v["name"]: v["value"] for v in message["runtime"].pop("env")}
    assert environment == {"A": "1", "NUM_WORKERS": "2", "OBJECT_TIMEOUT": "9", "STORESIDE_SPEC": spec.mark}
    assert message == {
        "name": spec.name,
        "communication": "hpush://",
        "init_timeout": "60s",
        "obj_timeout": "69s",
        "support_direct_put": True,
        "runtime": {"image": "i", "command": ["run"]},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    assert "ETL_DIRECT_FQN" in {v["name"] for v in EtlSpec("a", "i").message()["runtime"]["env"]}


class Server(FastAPIServer):
    def transform(self, data: bytes, _path: str, _etl_args: str) -> bytes:
        return data


def test_a_class_is_named_by_its_source_and_sent_by_value() -> None:
    spec = EtlSpec.of_class(Server, dependencies=["numpy"], communication="hpush")
    assert spec.name.startswith("server-")
    assert spec.environment["PACKAGES"] == "numpy"
    sent = spec.payload["ETL_CLASS_PAYLOAD"]
    assert spec.name == replace(spec, payload={}).name
    code = "import base64, os, pickle, sys; print(pickle.loads(base64.b64decode(os.environ['SENT'])).__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SENT": sent},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "Server"


def test_what_a_class_uses_of_its_module_makes_another_etl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for gain in (1, 2):
        folder = tmp_path / str(gain)
        folder.mkdir()
        (folder / "gains.py").write_text(
            "from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer\n"
            f"GAIN = {gain}\n"
            "class Louder(FastAPIServer):\n"
            "    def transform(self, data, _path, _etl_args):\n"
            "        return data * GAIN\n"
        )
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            patched.delitem(sys.modules, "gains", raising=False)
            made.append(EtlSpec.of_class(importlib.import_module("gains").Louder))
            patched.delitem(sys.modules, "gains")
    assert made[0].name != made[1].name
    assert made[0].effect != made[1].effect


def test_something_else_than_a_server_is_refused() -> None:
    with pytest.raises(TypeError, match="ETLServer"):
        EtlSpec.of_class(dict)


# ---- existing ETLs


def test_an_existing_etl_is_used_as_it_is() -> None:
    spec = EtlSpec.existing("hello-world-etl")
    assert spec.names == ("hello-world-etl",)
    assert (spec.own_names, spec.all_names) == ((), ())
    assert spec.over("hpush") == spec.without_files() == spec
    with pytest.raises(ValueError, match="hello-world-etl: read its image from its cluster first"):
        spec.effect  # noqa: B018


def test_a_chain_of_ours_and_an_existing_etl() -> None:
    ours, theirs = EtlSpec("a", "image"), EtlSpec.existing("hello-world-etl", "hpull")
    for chain in (ours >> theirs, theirs >> ours):
        assert set(chain.names) == {ours.name, theirs.name}
        assert chain.own_names == (ours.name,)
        assert chain.all_names == ours.all_names
        assert {stage.communication for stage in chain.over("hpush").stages} == {"hpush", "hpull"}
    described = replace(theirs, image="i", object_timeout=45)
    assert (ours >> described).effect != (ours >> replace(described, image="j")).effect
    assert described.request_timeout == "45s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "needs the name"),
        (("etl",), "too short"),
        (("My-etl",), "invalid"),
        (("my-etl", "tcp"), "'tcp' is not"),
    ],
)
def test_an_etl_that_cannot_exist_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(AIStoreInputError, match=message):
        EtlSpec.existing(*arguments)
