"""Every public operator, sensor and trigger states its arguments with their types and their meanings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ForwardRef, Literal, get_args, get_origin, get_type_hints

import pytest
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger

from docs import make_reference
from storeside import operators
from storeside.copying.multipart import PartSettings, Settings
from storeside.measure.throughput.load import WORKLOADS, Workload
from storeside.operators import restrictions
from storeside.operators.bases.deprecated import CsvFields
from storeside.operators.bases.task import TaskArguments
from storeside.operators.operators.shards import AISSplitShardsOperator
from storeside.operators.operators.transform_benchmark import SWITCHES, Switch
from storeside.speech.export import FORMATS, ManifestFormat
from storeside.transfer.request.named_options import NamedOptions, named_options
from storeside.transfer.request.object_format import Csv
from storeside.transformers.audio.formats import CODECS, CodecName, Container

PUBLIC = [
    kind
    for kind in (getattr(operators, name) for name in operators.__all__)
    if inspect.isclass(kind) and issubclass(kind, BaseOperator | BaseTrigger)
]
FOUND = make_reference.classes()
OURS = "storeside."


def parameters(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's own `__init__`, or of the one that it inherits."""
    return {name: p for name, p in inspect.signature(kind.__init__).parameters.items() if name != "self"}


def keys(shared: type[Any]) -> dict[str, str]:
    """Return the annotations of a TypedDict's keys, as they are written."""
    return {
        name: re.sub(
            r"^Required\[(.*)\]$", r"\1", hint.__forward_arg__ if isinstance(hint, ForwardRef) else str(hint)
        )
        for name, hint in shared.__annotations__.items()
    }


def shared_by(kind: type[Any]) -> type[Any] | None:
    """Return the TypedDict of the keyword arguments of a class; None without keyword arguments."""
    given = [p.annotation for p in parameters(kind).values() if p.kind is p.VAR_KEYWORD]
    if not given:
        return None
    name = re.fullmatch(r"Unpack\[(\w+)\]", given[0])
    assert name, f"{kind.__name__}: **kwargs is {given[0]}: write Unpack[…] of a TypedDict"
    return inspect.unwrap(kind.__init__).__globals__[name[1]]


def wrong(kind: type[Any]) -> list[str]:
    """Return the faults of the arguments of a class."""
    own = {name: p.annotation for name, p in parameters(kind).items() if p.kind is not p.VAR_KEYWORD}
    shared = keys(shared_by(kind)) if shared_by(kind) else {}
    airflows = keys(TaskArguments)
    if found := own.keys() & shared.keys():
        return [f"{found} twice"]
    typed = {**own, **{name: hint for name, hint in shared.items() if name not in airflows}}
    meanings = make_reference.meanings_of(FOUND, kind.__name__)
    return [
        *(f"{name}: no type" for name, hint in own.items() if hint is inspect.Parameter.empty),
        *(f"{name}: {hint}" for name, hint in typed.items() if re.search(r"\bAny\b", str(hint))),
        *(f"{name}: no meaning" for name in typed if not meanings.get(name)),
    ]


def test_all_kinds_are_looked_at() -> None:
    names = {kind.__name__ for kind in PUBLIC}
    assert len(names) > 30
    assert names >= {"S3ToClickHouseOperator", "SqsS3EventsSensor", "S3EventsTrigger"}


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_every_argument_has_a_type_and_a_meaning(kind: type[Any]) -> None:
    assert wrong(kind) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def __init__(self, *, path, **kwargs: Unpack[TaskArguments]): ...", "path: no type"),
        ("def __init__(self, *, path: Any, **kwargs: Unpack[TaskArguments]): ...", "path: Any"),
        ("def __init__(self, *, path: str, **kwargs: Unpack[TaskArguments]): ...", "path: no meaning"),
    ],
)
def test_the_test_finds_what_is_wrong(text: str, problem: str) -> None:
    space: dict[str, Any] = {"TaskArguments": TaskArguments}
    exec(f"from __future__ import annotations\nclass New:\n    {text}", space)  # noqa: S102 - the code is above
    assert problem in wrong(space["New"])


def test_keyword_arguments_without_names_are_found() -> None:
    class New:
        def __init__(self, **kwargs: Any) -> None: ...

    with pytest.raises(AssertionError, match=r"write Unpack\[…\] of a TypedDict"):
        wrong(New)


# Deprecated arguments that an operator accepts although no base class has them.
DEPRECATED = {
    "AISMeasureThroughputOperator": {"loader"},
    "S3EventsToClickHouseOperator": {"retry_failed", "overlap_seconds"},
}


@pytest.mark.parametrize(
    "kind", [kind for kind in PUBLIC if issubclass(kind, BaseOperator)], ids=lambda k: k.__name__
)
def test_the_types_list_what_the_base_classes_accept(kind: type[Any]) -> None:
    own = {name: p.annotation for name, p in parameters(kind).items() if p.kind is not p.VAR_KEYWORD}
    typed = own | keys(shared_by(kind) or TaskArguments)
    accepted: dict[str, str] = {}
    known: set[str] = set()
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith(OURS) and "__init__" in vars(owner):
            given = FOUND[owner.__name__].given if owner.__name__ in FOUND else frozenset()
            accepted = {name: hint for name, hint in accepted.items() if name not in given}
            accepted |= {n: p.annotation for n, p in parameters(owner).items() if p.kind is not p.VAR_KEYWORD}
            known |= accepted.keys()
    for name in getattr(kind, "refused", ()):
        assert name in known, name
        accepted.pop(name, None)  # a subclass may pass it to its base class itself
    extra = DEPRECATED.get(kind.__name__, set())
    assert typed.keys() - keys(TaskArguments).keys() - extra == accepted.keys()
    assert {n: h for n, h in typed.items() if n in accepted and n not in own} == {
        n: h for n, h in accepted.items() if n not in own
    }


def test_a_refused_argument_has_no_type() -> None:
    assert "in_place" in AISSplitShardsOperator.refused
    assert "in_place" not in keys(shared_by(AISSplitShardsOperator) or TaskArguments)


def test_airflows_arguments_are_complete() -> None:
    assert keys(TaskArguments).keys() == parameters(BaseOperator).keys() - {"kwargs"}


def test_options_by_name_have_their_types() -> None:
    kinds = {"boolean": bool, "integer": int, "number": float, "array": Sequence[str], "object": Mapping[str, str]}
    hints = get_type_hints(NamedOptions)
    assert list(hints) == list(named_options())
    for name, option in named_options().items():
        if get_origin(hints[name]) is Literal:
            assert get_args(hints[name]) == option.choices, name
        else:
            assert hints[name] == kinds.get(option.kind, str), name
            assert not option.choices or name == "table.engine"


def test_the_choices_are_those_of_the_engine() -> None:
    assert get_args(Container) == tuple(CODECS)
    assert get_args(CodecName) == tuple(codec for codecs in CODECS.values() for codec in codecs)
    assert get_args(Workload) == tuple(WORKLOADS)
    assert get_args(Switch) == tuple(SWITCHES)
    assert get_args(restrictions.Kind) == tuple(restrictions._KINDS)
    assert get_args(ManifestFormat) == tuple(FORMATS)


@pytest.mark.parametrize(
    ("typed", "group", "others"),
    [(CsvFields, Csv, set()), (PartSettings, Settings, {"preferred_transfer_client"})],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_dictionaries_have_the_fields_of_their_groups(typed: type[Any], group: Any, others: set[str]) -> None:
    assert typed.__annotations__.keys() - others == {field.name for field in fields(group)}
