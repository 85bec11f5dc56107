"""The tree of errors: one kind for each, one name for each, and one mapping to Airflow."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.aistore.spec import EtlSpec
from storeside.copying.multipart import Settings
from storeside.errors import BadInput, Cancelled, Partial, StoresideError, Transient
from storeside.events.errors import TriedOutError
from storeside.hsds.errors import HsdsInputError
from storeside.hsds.imports import Importer
from storeside.operators.errors import airflow_error, airflow_errors, is_final, may_pass_soon
from storeside.operators.operators.speech import AISTranscodeAudioOperator
from storeside.operators.triggers import engine
from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.objects.streams import _Decompressed

ROOT = CHECKOUT / "include"
KINDS = (BadInput, Transient, Partial, Cancelled)
# The embedded stack is not part of the product, and transformers run in an image without the rest.
APART = ("storeside.stack", "storeside.transformers")
# They raise ValueError or LookupError internally, and convert it to an error of the tree.
OWN_USE = {
    "storeside.aistore.many", "storeside.transfer.formats.parquet_schema", "storeside.transfer.formats.thrift",
    "storeside.transfer.objects.strict_json", "storeside.transfer.formats.text_columns",
}  # fmt: skip
CLASS = re.compile(r"^class \w+\(.*(Error|Exception|BadInput|Transient|Partial|Cancelled)\b.*\):", re.MULTILINE)


def modules() -> dict[str, Path]:
    """Return all modules of the package, including those behind its links to operators and plugins."""
    folders = (ROOT / "storeside", CHECKOUT / "operators", CHECKOUT / "plugins")
    found = {}
    for folder in folders:
        prefix = () if folder.is_relative_to(ROOT) else ("storeside",)
        for path in folder.rglob("*.py"):
            parts = path.relative_to(ROOT if not prefix else CHECKOUT).with_suffix("").parts
            found[".".join((*prefix, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def ours() -> list[type[BaseException]]:
    """Return all exceptions that the package defines."""
    for name, path in MODULES.items():
        if CLASS.search(path.read_text()):
            importlib.import_module(name)
    found = {one for one in below(Exception) if one.__module__.startswith("storeside.")}
    return sorted(found - {StoresideError, *KINDS}, key=lambda one: (one.__module__, one.__qualname__))


OURS = ours()
TREE = [one for one in OURS if not one.__module__.startswith(APART)]
CONCRETE = [one for one in TREE if issubclass(one, KINDS)]
FAMILIES = [one for one in TREE if not issubclass(one, KINDS)]


def calls_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_the_tree_was_found() -> None:
    systems = {"aistore", "alerts", "copying", "doctor", "events", "hsds", "ledger", "measure", "operators", "pages"}
    assert {one.__module__.split(".")[1] for one in TREE} == systems | {"quality", "speech", "transfer"}
    assert any(one.__module__.startswith("storeside.transformers") for one in OURS)


def test_no_two_errors_have_one_name() -> None:
    names = Counter(one.__name__ for one in [*OURS, StoresideError, *KINDS])
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("kind", TREE, ids=lambda one: one.__name__)
def test_every_error_is_of_the_tree_and_of_at_most_one_kind(kind: type[BaseException]) -> None:
    assert issubclass(kind, StoresideError)
    assert sum(issubclass(kind, one) for one in KINDS) <= 1


def test_errors_without_a_kind_are_families_and_are_never_raised() -> None:
    assert [one.__name__ for one in FAMILIES if not one.__subclasses__()] == []
    names = {one.__name__ for one in (*FAMILIES, StoresideError, *KINDS)}
    made = {
        f"{module}: {name}"
        for module, path in MODULES.items()
        if not module.startswith(APART)
        for name in calls_of(ast.parse(path.read_text()))
        if name in names
    }
    assert made == set()


def test_bad_input_is_never_a_plain_error() -> None:
    """Errors without a kind are retried."""
    plain = {"ValueError", "RuntimeError", "Exception", "KeyError", "LookupError"}
    raised = set()
    for module, path in MODULES.items():
        if module.startswith(APART) or module in OWN_USE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and plain & set(calls_of(node.exc)):
                raised.add(f"{module}:{node.lineno}")
    assert raised == set()


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda one: one.__name__)
def test_each_error_becomes_one_of_airflows_by_its_kind(kind: type[Exception]) -> None:
    expected = {
        BadInput: AirflowFailException,
        Partial: AirflowFailException,
        Transient: AirflowException,
        Cancelled: AirflowException,
    }
    error = kind("object, reason, remedy")
    with pytest.raises(AirflowException, match=r"^object, reason, remedy$") as raised, airflow_errors():
        raise error
    assert type(raised.value) is next(wanted for one, wanted in expected.items() if isinstance(error, one))
    assert raised.value.__cause__ is error
    assert is_final(error) == isinstance(raised.value, AirflowFailException)


def truncated() -> Any:
    return json.loads('{"rows": [1, 2')


def truncated_answer() -> Any:
    answer = requests.Response()
    answer._content = b'{"rows": [1, 2'
    return answer.json()


@pytest.mark.parametrize("read", [truncated, truncated_answer])
def test_a_response_that_was_cut_off_is_retried(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JSONDecodeError is a ValueError."""
    with pytest.raises(ValueError, match="column") as raised, airflow_errors():
        read()
    assert not isinstance(raised.value, AirflowFailException)
    assert airflow_error(raised.value) is None
    assert not is_final(raised.value)

    class Failing(engine.EngineTrigger):
        async def engine(self) -> Any:
            return None

        def work(self, engine: Any) -> Any:
            return read()

    monkeypatch.setattr(engine, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(engine, "DELAYS", (0, 0))

    async def events() -> list[Any]:
        return [event.payload async for event in Failing().run()]

    ((payload),) = asyncio.run(events())
    assert payload["again"] is True


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda one: one.__name__)
def test_a_trigger_tries_again_what_may_pass_within_seconds(kind: type[Exception]) -> None:
    assert may_pass_soon(kind("why")) == (issubclass(kind, Transient) and kind is not TriedOutError)


def test_a_format_that_does_not_exist_is_bad_input() -> None:
    """Transformers raise plain ValueErrors."""
    operator = AISTranscodeAudioOperator(task_id="t", source="ais://a", destination="ais://b")
    operator.container = "mkv"  # as if a template had become it
    with pytest.raises(BadInput, match="container 'mkv' is not one of"):
        operator.audio()


def test_the_name_of_an_etl_that_is_none_is_bad_input() -> None:
    """The SDK raises a plain ValueError."""
    with pytest.raises(BadInput, match="ETL name"):
        EtlSpec("a", "i", etl_name="Nope!")


# Bad input is a ValueError: code that catches the ValueErrors of libraries must let it pass.


def test_a_missing_bucket_is_no_broken_compression() -> None:
    class Refused:
        def read(self, _: int) -> bytes:
            raise TransferInputError("there is no bucket 'b' at this endpoint")

    with pytest.raises(TransferInputError, match="there is no bucket"):
        _Decompressed(Refused()).read(1)


def test_an_import_that_may_not_read_how_far_it_is_does_not_begin_anew() -> None:
    def refuse(*_: Any) -> str:
        raise HsdsInputError("the user may not do this", 403)

    importer = Importer.__new__(Importer)
    importer.client = SimpleNamespace(attribute=refuse)  # type: ignore[assignment]
    with pytest.raises(HsdsInputError, match="may not do this"):
        importer._progress(None)  # type: ignore[arg-type]


def test_settings_out_of_range_say_so() -> None:
    with pytest.raises(BadInput, match="multipart concurrency 300: more than 256 threads do not help"):
        Settings.from_values({"concurrency": 300})
