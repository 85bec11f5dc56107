"""Arguments that mean the same in all operators: `deferrable` and `on_nothing`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from storeside import operators
from storeside.aistore.spec import EtlSpec
from storeside.operators import AISCopyBucketOperator, S3ToClickHouseOperator
from storeside.operators.arguments import LiteralArgumentError
from storeside.operators.bases.deferring import DeferringOperator, WaitingOperator
from storeside.operators.bases.selecting import SelectingOperator
from storeside.operators.errors import OperatorInputError
from storeside.stack.settings import CHECKOUT

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
# Its argument `where` chooses the process whose connections it checks; it waits for nothing.
EXEMPT = {"CheckConnectionsOperator"}
WAITS = ("defer", "follow", "wait_for", "sleep")
ARGUMENTS = {
    "bucket": "s3://in", "destination": "ais://out", "effect": "e", "etl": EtlSpec("e", "image"), "facts": "ais://facts",
    "objects": ["a"], "segments": "ais://c/a.rttm", "source": "s3://in", "sqs_queue": "queue", "table": "data.trips",
}  # fmt: skip
SPECIAL = {
    "S3EventsToClickHouseOperator": {"bucket": "trips"},
    "S3ToClickHouseOperator": {"bucket": "trips"},
}


def kinds() -> list[type[BaseOperator]]:
    paths = (path.relative_to(CHECKOUT).with_suffix("") for path in (CHECKOUT / "operators").rglob("[a-z]*.py"))
    modules = [import_module(".".join(("storeside", *path.parts))) for path in paths]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, BaseOperator) and kind.__module__ == module.__name__
    ]


def calls(node: ast.AST) -> set[str]:
    """Return the names of the methods that the code calls."""
    found = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return {f.attr for f in found if isinstance(f, ast.Attribute)}


def methods(kind: type[Any]) -> Iterator[ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(kind))
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def test_every_operator_that_waits_has_the_argument() -> None:
    ours = {k for k in kinds() if k not in (DeferringOperator, WaitingOperator)}
    assert len(ours) > 30
    found = {k for k in ours if any(calls(m) & set(WAITS) for m in methods(k)) or issubclass(k, DeferringOperator)}
    assert len(found) >= 10
    assert {k.__name__ for k in found if not issubclass(k, WaitingOperator)} == EXEMPT


def test_nothing_defers_without_a_look_at_the_argument() -> None:
    deferring = [(k, m) for k in kinds() if k is not DeferringOperator for m in methods(k) if "defer" in calls(m)]
    assert len(deferring) >= 5
    blind = {f"{k.__name__}.{m.name}" for k, m in deferring if "self.deferrable" not in ast.unparse(m)}
    assert {name.partition(".")[0] for name in blind} == EXEMPT


def made(kind: type[Any], **more: Any) -> Any:
    """Make the operator with a value for each argument that it requires."""
    required = {
        name
        for owner in kind.__mro__
        if owner.__module__.startswith("storeside.")
        for name, p in inspect.signature(owner.__init__).parameters.items()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and name in ARGUMENTS
    } - {*getattr(kind, "refused", ())}
    given = {**{name: ARGUMENTS[name] for name in required}, **SPECIAL.get(kind.__name__, {})}
    return kind(task_id="t", **given, **more)


def has(kind: type[Any], argument: str) -> bool:
    """Whether an operator takes an argument of its bases."""
    return argument not in getattr(kind, "refused", ())


PUBLIC = [
    kind for kind in kinds()
    if issubclass(kind, WaitingOperator) and kind.__name__ in operators.__all__ and has(kind, "deferrable")
]  # fmt: skip


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_the_default_is_airflows(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (True, False):
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(setting))
        assert made(kind).deferrable is setting
        assert made(kind, deferrable=not setting).deferrable is not setting
        assert made(kind, default_args={"deferrable": not setting}).deferrable is not setting


def test_mapped_tasks_have_the_argument() -> None:
    for kind in (AISCopyBucketOperator, S3ToClickHouseOperator):
        mapped = kind.partial(task_id="t", deferrable=False)  # type: ignore[attr-defined]
        assert mapped.kwargs["deferrable"] is False
        mapped.expand(source=["s3://a", "s3://b"])


# Parts of the names of operators that select objects or messages.
SELECTING = ("CopyBucket", "TransformBucket", "TransformObjects", "TranscodeAudio", "ProbeAudio", "SplitShards",
             "InspectBucket", "PrefetchBucket", "ToClickHouse", "LeaseS3Events")  # fmt: skip


def test_operators_that_select_objects_have_on_nothing() -> None:
    public_ones = {kind for kind in kinds() if kind.__name__ in operators.__all__}
    selecting = {kind for kind in public_ones if issubclass(kind, SelectingOperator) and has(kind, "on_nothing")}
    assert selecting >= {kind for kind in public_ones if any(part in kind.__name__ for part in SELECTING)}
    for kind in selecting:
        assert made(kind).on_nothing == "succeed", kind
        assert "on_nothing" in kind.template_fields, kind
        with pytest.raises(LiteralArgumentError, match="on_nothing 'ignore': use 'succeed', 'skip' or 'fail'"):
            made(kind, on_nothing="ignore")
        ours = [owner for owner in kind.__mro__ if owner.__module__.startswith("storeside.")]
        ends = [owner for owner in ours if "end_without" in calls(ast.parse(inspect.getsource(owner)))]
        assert ends, f"{kind} never calls end_without"


def test_the_three_ends_of_a_task_without_objects() -> None:
    made(AISCopyBucketOperator).end_without("no object of s3://in")
    for policy, error in (("skip", AirflowSkipException), ("fail", AirflowFailException)):
        with pytest.raises(error, match=r"^no object of s3://in"):
            made(AISCopyBucketOperator, on_nothing=policy).end_without("no object of s3://in")


def test_a_policy_from_a_form_is_checked() -> None:
    late = made(AISCopyBucketOperator)
    late.on_nothing = "ignore"
    with pytest.raises(OperatorInputError, match="on_nothing 'ignore'"):
        late.end_without("no object")
