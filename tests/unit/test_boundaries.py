"""One named function checks what crosses each trust boundary: who calls it, and that no path goes around it.

A new caller belongs in `BOUNDARIES` if it handles a refusal. docs/security.md has the functions.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import pytest
from fastapi.routing import APIRoute

from storeside.stack.settings import CHECKOUT
from tests import structure

# The function of each boundary, and the functions that call it.
BOUNDARIES = {
    "form": (
        "storeside.operators.restrictions.check_form",
        {"operators/restrictions.py:FormOperator.pre_execute"},
    ),
    "object name": (
        "storeside.transformers.contract.names.unfit",
        {
            "include/storeside/aistore/stored_objects.py:_found",
            "include/storeside/aistore/names.py:require_fit",
            "include/storeside/copying/prefetch.py:Prefetch._reason",
            "include/storeside/copying/prefetch.py:Prefetch.missing",
            "include/storeside/copying/s3.py:AIStoreStore.refused",
            "include/storeside/transform/naming.py:Naming.refusal",
            "include/storeside/transform/shard_plan.py:_Names.begins",
            "include/storeside/transform/shard_plan.py:_refusal",
            "include/storeside/transform/shard_plan.py:check_name",
            "include/storeside/transformers/contract/results.py:unfit_name",
            "include/storeside/transformers/shards/gathering.py:planned",
            "include/storeside/transformers/workers/sidecar.py:Sidecars.put",
            "plugins/pages/audio.py:listen",
        },
    ),
    "object content": (
        "storeside.transformers.isolation.decoders.isolate",
        {"include/storeside/transformers/workers/decoder.py:run"},
    ),
    "SQS message": (
        "storeside.events.notifications.parse",
        {"include/storeside/doctor/s3.py:_is_of", "include/storeside/events/deliveries.py:Delivery.read"},
    ),
    "page address": ("storeside.plugins.pages.access.require_read", set()),  # a dependency of routes
    "ETL request": (
        "storeside.transformers.server.sender.Senders.refusal",
        {
            "include/storeside/transformers/server/guard.py:Guard._refusal",
            "include/storeside/transformers/sdk_servers.py:flask_app.guarded",
            "include/storeside/transformers/sdk_servers.py:_serve_http.Server.RequestHandler.parse_request",
        },
    ),
    "transformer's answer": (
        "storeside.transformers.workers.worker.Worker._deliver",
        {"include/storeside/transformers/workers/worker.py:Worker.work"},
    ),
    "ClickHouse's answer": (
        "storeside.sql.answers.whole_answers",
        {
            "include/storeside/doctor/connections.py:_clickhouse",
            "include/storeside/stack/demo.py:clickhouse_client",
            "include/storeside/transfer/cli.py:_client",
            "operators/hooks/transfer.py:_client_of",
        },
    ),
}  # fmt: skip
# The objects whose methods have the name of a boundary's function, if those of others have it, too.
PLACES = {"SQS message": r".*/(events|doctor)/(?!connections)"}
METHODS = {"ETL request": r"(?!_?senders$).*"}


@cache
def trees() -> dict[str, ast.Module]:
    return {path: ast.parse(source) for path, source in structure.modules()}


def calls(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield all calls with the function that contains them."""
    for node in ast.iter_child_nodes(tree):
        here = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            here = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call):
            yield inside, node
        yield from calls(node, here)


@cache
def receivers() -> list[tuple[str, str, str, str]]:
    """Return path, calling function, receiver and name of the called function of all calls."""
    return [
        (path, inside, *ast.unparse(call.func).rpartition(".")[::2])
        for path, tree in trees().items()
        for inside, call in calls(tree)
    ]


def callers(called: str, *, of: str = ".*", without: str = "(?!)") -> set[str]:
    """Return the functions that call one of this name, in modules whose paths match `of`.

    Calls of methods of what `without` matches are left out.
    """
    return {
        f"{path}:{inside}"
        for path, inside, receiver, name in receivers()
        if name == called and re.match(of, path) and not re.fullmatch(without, receiver.rpartition(".")[2])
    }


def test_the_walk_finds_calls_and_their_functions() -> None:
    tree = ast.parse(
        "class A:\n    def b(self):\n        c(d.e())\n\n        def f():\n            return e()\nx.e()"
    )
    assert [(inside, ast.unparse(call.func)) for inside, call in calls(tree)] == [
        ("A.b", "c"), ("A.b", "d.e"), ("A.b.f", "e"), ("", "x.e"),
    ]  # fmt: skip


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_callers_of_the_function_of_a_boundary(boundary: str) -> None:
    function, expected = BOUNDARIES[boundary]
    parts = function.split(".")
    depth = next(n for n in range(len(parts) - 1, 0, -1) if (CHECKOUT / "include" / "/".join(parts[:n])).exists()
                 or (CHECKOUT / "include" / ("/".join(parts[:n]) + ".py")).exists())  # fmt: skip
    found = import_module(".".join(parts[:depth]))
    for name in parts[depth:]:
        found = getattr(found, name)
    assert callable(found)
    assert callers(parts[-1], without=METHODS.get(boundary, "(?!)"), of=PLACES.get(boundary, ".*")) == expected


def test_the_documentation_names_the_functions() -> None:
    text = (CHECKOUT / "docs" / "security.md").read_text()
    section = text.partition("## Trust boundaries")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| `([\w.]+)`", section, re.MULTILINE)
    assert dict(rows) == {boundary: function for boundary, (function, _) in BOUNDARIES.items()}


# --- paths that would go around them


def test_no_operator_runs_without_the_check_of_forms() -> None:
    """`tests/unit/test_forms.py` verifies that each operator is a `FormOperator`; a subclass may only add checks."""
    defined = {
        f"{path}:{node.name}": ast.unparse(part)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "pre_execute"
    }
    assert "check_form(context)" in defined.pop("operators/restrictions.py:FormOperator")
    assert [name for name, code in defined.items() if "super().pre_execute(context)" not in code] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("bucket.handle(client).object(name).head()", [1]),
        ("handle.object(name=key)", [1]),
        ("group = handle.objects(obj_names=names)", [1]),
        ('client.request("put", path=f"objects/{bucket}/{name}")', [1]),
        ("bucket.object(client, name).head()\nbucket.objects(client, names)", []),
        ("handle.object(self.fit(name))", []),
        ('path = f"objects/{bucket}/{prefix}"', [1]),
        ('path = f"objects/{bucket}/{require_fit_prefix(prefix, what)}"', []),
        ('client.request("put", path=f"objects/{bucket}/{bucket.fit(name)}")', []),
        ('record.object("s3")\ntext.object()\nhandle.objects(obj_template=prefix)', []),
    ],
)
def test_no_object_of_aistore_has_an_unchecked_name(source: str, lines: list[int]) -> None:
    """`make lint` applies the rule to the product."""
    assert list(structure.unchecked(ast.parse(source))) == lines


def test_no_name_of_the_product_is_unchecked() -> None:
    assert structure.unchecked_names() == []


def test_only_isolated_decoders_load_code_that_decodes() -> None:
    """Servers and workers hold secrets and connections: libav, numpy and the transforms are not for them."""
    modules = ("serve", "server.asgi", "server.guard", "shards.shard_pool", "shards.gathering")
    modules += ("workers.worker", "workers.worker_process", "workers.pool")
    script = f"import sys\nfor name in {modules}: __import__('storeside.transformers.' + name)\n"
    script += "print(sorted({'av', 'numpy', 'storeside.transformers.audio.transcoding'} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT / "include"
    )
    assert run.stdout.strip() == "[]"
    assert callers("transform", of=".*/transformers/", without="(?!transformer$).*") == {
        "include/storeside/transformers/workers/decoder.py:_transformed"
    }
    assert callers("transform_stream", of=".*/transformers/") == {
        "include/storeside/transformers/workers/stream_sender.py:_Yielded.pieces"
    }


def test_no_message_is_read_without_the_parser() -> None:
    """Only the parser reads JSON in this package; the queue's attributes come from SQS itself."""
    assert callers("loads", of=".*/events/") == {
        "include/storeside/events/notifications.py:_Object.read",
        "include/storeside/events/queue.py:Queue.redrive_policy",
        "include/storeside/events/setup.py:_policy",
    }


def test_no_page_is_shown_without_the_check_of_its_reader() -> None:
    from storeside.plugins.pages.access import require_read, require_same_origin
    from storeside.plugins.pages.app import app

    def depends(dependant: object) -> Iterator[Callable[..., object]]:
        for part in getattr(dependant, "dependencies", ()):
            yield part.call
            yield from depends(part)

    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 15
    for route in routes:
        required = set(depends(route.dependant))
        assert require_read in required, route.path
        assert route.methods <= {"GET", "HEAD"} or require_same_origin in required, route.path
    others = {getattr(route, "path", "") for route in app.routes if not isinstance(route, APIRoute)}
    assert others == {"/static"}


def test_no_transformer_serves_requests_without_the_guard() -> None:
    """Those of AIStore's SDK are no exception."""
    for path, tree in trees().items():
        for _, call in calls(tree) if "/transformers/" in path else ():
            if ast.unparse(call.func) in ("uvicorn.Config", "uvicorn.run"):
                assert ast.unparse(call.args[0]).startswith("Guard("), path
    assert callers("Guard") == {
        "include/storeside/stack/podrunner/runtime_python.py:load_app",
        "include/storeside/transformers/sdk_servers.py:fastapi_app",
        "include/storeside/transformers/serve.py:_serve",
    }


def test_no_answer_of_a_decoder_is_used_without_the_check() -> None:
    worker = "include/storeside/transformers/workers/worker.py"
    assert callers("transform", of=".*/transformers/", without="(?!_decoder$).*") == {f"{worker}:Worker.work"}
    assert callers("DecoderProcess") == {f"{worker}:run"}


def test_no_client_of_clickhouse_takes_truncated_answers() -> None:
    assert callers("get_client") <= callers("whole_answers")
    assert callers("create_client") | callers("create_async_client") | callers("get_async_client") == set()
