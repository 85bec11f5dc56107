"""The import rules of the design: which folder may import which."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

ROOMS = ("dags", "operators", "plugins", "include", "tests")
FILES = [path for room in ROOMS for path in sorted((CHECKOUT / room).rglob("*.py"))]


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    at_once: bool  # when the module is loaded; not inside a function or for type checking


def imports(source: str, package: str) -> Iterator[Import]:
    """Yield every import of a file, relative ones resolved against `package`."""

    def walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (Import(f"{base}.{alias.name}", node.lineno, at_once) for alias in node.names)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        ):
            at_once = False
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_once)

    yield from walk(ast.parse(source), True)


def package(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).parent.parts
    if parts[0] == "include":
        parts = parts[1:]
    return ".".join(("storeside", *parts) if parts[0] in ("operators", "plugins") else parts)


def of(path: Path) -> list[Import]:
    return list(imports(path.read_text(), package(path)))


def below(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def wrong(room: str, *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(CHECKOUT)}:{found.line} imports {found.module}"
        for path in sorted((CHECKOUT / room).rglob("*.py"))
        for found in of(path)
        if below(found.module, *forbidden)
    ]


def test_the_walk_sees_every_kind_of_import() -> None:
    source = (
        "import a.b\nfrom c import d\nfrom . import e\nfrom .f import g\nfrom ..h import i\n"
        "if TYPE_CHECKING:\n    import j\ndef k():\n    import l\n    def m():\n        from n import o\n"
        "try:\n    import p\nexcept ImportError:\n    import q\n"
    )
    found = {i.module: i.at_once for i in imports(source, "x.y")}
    assert found == {
        "a.b": True, "c.d": True, "x.y.e": True, "x.y.f.g": True, "x.h.i": True, "j": False, "l": False,
        "n.o": False, "p": True, "q": True,
    }  # fmt: skip


def test_there_is_something_to_look_at() -> None:
    for room in ("dags", "operators", "include"):
        assert any(of(path) for path in (CHECKOUT / room).rglob("*.py")), room


@pytest.mark.guarantee("engine-alone")
def test_the_engine_works_without_airflow() -> None:
    assert wrong("include", "airflow", "storeside.operators", "dags", "storeside.plugins", "tests") == []


def test_transformers_stand_alone() -> None:
    foreign = [
        f"{path.name}:{found.line} imports {found.module}"
        for path in (CHECKOUT / "include" / "storeside" / "transformers").rglob("*.py")
        for found in of(path)
        if below(found.module, "storeside", *ROOMS) and not below(found.module, "storeside.transformers")
    ]
    assert foreign == []


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_imports_dags(room: str) -> None:
    assert wrong(room, "dags") == []


def test_operators_import_the_engine_and_airflow() -> None:
    assert wrong("operators", "storeside.plugins", "tests") == []
    foreign = [
        f"{path.relative_to(CHECKOUT)}:{found.line} imports {found.module}"
        for path in (CHECKOUT / "operators").rglob("*.py")
        for found in of(path)
        if found.at_once
        and not below(found.module, "airflow", "storeside")
        and found.module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == [], "libraries are imported where they are used: a DAG file is parsed again and again"


@pytest.mark.guarantee("engine-alone")
def test_operators_leave_the_stack_alone() -> None:
    """Code that runs in production does not know the embedded stack (contract 8)."""
    assert wrong("operators", "storeside.stack") == []
    assert wrong("dags", "storeside.stack") == []


def test_dags_import_operators_and_airflow_only() -> None:
    foreign = [
        f"{path.name}:{found.line} imports {found.module}"
        for path in (CHECKOUT / "dags").rglob("*.py")
        for found in of(path)
        if not below(found.module, "storeside.operators", "airflow.sdk")
        and found.module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


@pytest.mark.guarantee("engine-alone")
def test_the_engine_leaves_the_stack_alone() -> None:
    outside = [
        f"{path.relative_to(CHECKOUT)}:{found.line} imports {found.module}"
        for path in (CHECKOUT / "include").rglob("*.py")
        if "stack" not in path.parts
        for found in of(path)
        if below(found.module, "storeside.stack")
    ]
    assert outside == []


LEDGER_TABLES = r"storeside\.(objects|listings|runs)\b"


def writes(text: str) -> bool:
    """Return whether a source inserts into a table of the ledger, in SQL or through the client's `insert`."""
    return re.search(rf"INSERT INTO {LEDGER_TABLES}|insert\(\s*f?\"{LEDGER_TABLES}", text) is not None


def test_only_the_ledger_writes_its_tables() -> None:
    engine = CHECKOUT / "include" / "storeside"
    statements = {path.stem for path in (engine / "sql").glob("*.sql") if writes(path.read_text())}
    assert {"settle", "settle_copies", "settle_in_place", "settle_invalid", "plan"} <= statements
    used = re.compile(rf"query\(\"({'|'.join(statements)})\"\)")
    places = [path for room in ("include", "operators", "plugins") for path in (CHECKOUT / room).rglob("*.py")]
    found = {path.parent.name for path in places if writes(text := path.read_text()) or used.search(text)}
    assert found == {"ledger"}
