from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from include.stack.settings import CHECKOUT
from include.transform.etl import EtlSpec

# AIStore's k8s.ValidateEtlName (cmn/k8s/util.go of v1.5.0).
ETL_NAME = re.compile(r"[a-z0-9-]{6,32}", re.ASCII)
# Kubernetes: names of services (DNS-1035); AIStore makes one of the ETL's name and the target's.
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
        "from include.transform.etl import EtlSpec\n"
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
