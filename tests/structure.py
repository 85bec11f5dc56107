"""Figures of the code's structure, with limits: ``make lint`` prints them and fails above a limit.

It also fails at a sleep in the tests that has no reason in a comment beside it. A test waits for an event, with
`tests.support.until`; it sleeps only where an outside clock has that resolution, or where the sleep stands for work.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePath

import grimp

from storeside.stack.settings import CHECKOUT

# Tests that `make test` and `make lint` run, and the modules that they share.
TESTS = ("tests/unit", "tests/integration", "tests/attacks", "tests/e2e", "tests/tools")
_COMMENT = re.compile(r"#\s*(?:noqa\b[^#]*?-\s*)?(?!noqa\b|type:|fmt:)\w")
FOLDERS = ("dags", "operators", "plugins", "include/storeside")
# Arguments of a function or fields of a class that its fields construct, and places where there should be none.
LIMITS = {
    "most_arguments": 19,
    "most_modules_in_a_folder": 25,
    "most_own_imports": 15,
    "any_clients": 0,
    "sleeps_without_reason": 0,
    "unchecked_names": 0,
    "circles": 0,
    "undocumented_fields": 0,
}
# Classes with this number of fields, or more, describe each field on a line of their docstring.
MANY_FIELDS = 10
# Modules that collect names for users, or commands: they import what they show.
FACES = frozenset({"storeside.operators", "storeside.stack.cli"})


@dataclass(frozen=True)
class Found:
    """One value of a figure, and its place."""

    value: int
    where: str


def modules() -> Iterator[tuple[str, str]]:
    """Yield the path and the source of each module of the product."""
    for folder in FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            yield str(path.relative_to(CHECKOUT)), path.read_text()


def arguments() -> list[Found]:
    """Return the number of arguments of each function, and of fields of each class."""
    return [
        Found(count, f"{path}:{node.lineno}")
        for path, source in modules()
        for node, count in counted(ast.parse(source))
    ]


def counted(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, int]]:
    """Yield functions with the number of their arguments, without ``self``, and dataclasses with that of fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield node, sum(argument.arg not in ("self", "cls") for argument in given)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            yield node, sum(isinstance(part, ast.AnnAssign) for part in node.body)


def undocumented_fields() -> list[str]:
    """Return the classes with many fields that do not describe each of them."""
    return [f"{path}: class {found}" for path, source in modules() for found in undocumented(ast.parse(source))]


def undocumented(tree: ast.AST) -> Iterator[str]:
    """Yield dataclasses and NamedTuples with many fields, with those that have no line ``:param name:``.

    The keys of a TypedDict have separate texts.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        kinds = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
        if not any("dataclass" in kind or kind == "NamedTuple" for kind in kinds):
            continue
        annotated = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        fields = [ast.unparse(part.target) for part in annotated if "ClassVar" not in ast.unparse(part.annotation)]
        text = ast.get_docstring(node) or ""
        missing = [name for name in fields if f":param {name}:" not in text]
        if len(fields) >= MANY_FIELDS and missing:
            yield f"{node.name}: {', '.join(missing)}"


def untyped_clients() -> list[str]:
    """Return the places that give a client the type ``Any``."""
    return [f"{path}:{line}" for path, source in modules() for line in untyped(ast.parse(source))]


def untyped(tree: ast.AST) -> Iterator[int]:
    """Yield the lines on which an argument or a field called client has the type ``Any``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, annotation = ast.unparse(node.target), node.annotation
        else:
            continue
        if name.rpartition(".")[2].lstrip("_") in ("client", "clickhouse") and ast.unparse(annotation) == "Any":
            yield node.lineno


def sleeps_without_reason() -> list[str]:
    """Return the places in tests that sleep without a reason."""
    paths = [path for folder in TESTS for path in sorted((CHECKOUT / folder).rglob("*.py"))]
    paths += sorted((CHECKOUT / "tests").glob("*.py"))
    return [f"{path.relative_to(CHECKOUT)}:{line}" for path in paths for line in sleeps(path.read_text())]


def sleeps(source: str) -> Iterator[int]:
    """Yield the lines of calls of ``sleep`` without a comment on their line or on the one before.

    A call with the constant 0 does not sleep.
    """
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "sleep":
            continue
        if [ast.unparse(argument) for argument in node.args] == ["0"]:
            continue
        above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
        beside = lines[node.end_lineno - 1 if node.end_lineno else node.lineno - 1][node.end_col_offset or 0 :]
        if not _COMMENT.search(beside) and not (above.startswith("#") and _COMMENT.search(above)):
            yield node.lineno


def unchecked_names() -> list[str]:
    """Return the places that take an object of AIStore by a name without the checks of `Bucket`."""
    return [
        f"{path}:{line}: use Bucket.object, Bucket.objects or Bucket.fit, which refuse names that lead elsewhere"
        for path, source in modules()
        for line in unchecked(ast.parse(source))
    ]


def unchecked(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that call the SDK's ``object(name)`` or ``objects(obj_names=…)``, or write an object's path.

    `Bucket.object` has two arguments. A constant name is no name from outside. The statement itself may check.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr | ast.Call):
            continue
        text = ast.unparse(node)
        if ".fit(" in text or "require_fit_prefix(" in text:
            continue
        if isinstance(node, ast.JoinedStr):
            if "objects/{" in text:
                yield node.lineno
        elif isinstance(node.func, ast.Attribute):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            one = node.func.attr == "object" and len(given) == 1 and not isinstance(given[0], ast.Constant)
            if one or (node.func.attr == "objects" and any(k.arg == "obj_names" for k in node.keywords)):
                yield node.lineno


def folders() -> list[Found]:
    """Return the number of modules in each folder."""
    count = Counter(str(PurePath(path).parent) for path, _ in modules())
    return [Found(number, folder) for folder, number in count.items()]


def imports() -> dict[str, Set[str]]:
    """Return the modules of the product that each of its modules imports, also for annotations only."""
    graph = grimp.build_graph("storeside", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circle(imported: Mapping[str, Set[str]]) -> list[str]:
    """Return a circle of imports, from a module back to it; empty if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as e:
        return [str(module) for module in e.args[1]]
    return []


def main() -> int:
    """Print the figures; return 1 when one is above its limit."""
    imported = imports()
    numbers = {
        "most_arguments": (arguments(), "arguments"),
        "most_modules_in_a_folder": (folders(), "modules"),
        "most_own_imports": (
            [Found(len(own), name) for name, own in imported.items() if name not in FACES],
            "modules",
        ),
    }
    circles = [" imports ".join(found)] if (found := circle(imported)) else []
    places = {
        "any_clients": untyped_clients(),
        "sleeps_without_reason": sleeps_without_reason(),
        "unchecked_names": unchecked_names(),
        "circles": circles,
        "undocumented_fields": undocumented_fields(),
    }
    over = places | {
        name: [f"{f.where}: {f.value} {unit}" for f in counts if f.value > LIMITS[name]]
        for name, (counts, unit) in numbers.items()
    }
    for name, found in over.items():
        for place in found:
            print(f"{name}: {place} (limit: {LIMITS[name]})", file=sys.stderr)
    for name, (counts, unit) in numbers.items():
        print(f"BENCH structure.{name} {max(f.value for f in counts)} {unit}")
    for name, found in places.items():
        print(f"BENCH structure.{name} {len(found)} places")
    return 1 if any(over.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
