"""Write docs/reference.md, the reference of the public API, from its docstrings and examples: ``make docs``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import storeside.operators as public

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
EXAMPLES = ROOT / "docs" / "reference_examples.py"
KINDS = ("Operator", "Sensor", "Trigger", "Hook")
# Classes that group arguments.
OPTIONS = (
    "ReadOptions",
    "Csv",
    "MessageSchema",
    "Columns",
    "TableOptions",
    "Expression",
    "LoadLimits",
    "AfterLoad",
    "Upsert",
    "EtlSpec",
    "FailedTasks",
    "FailedObjects",
    "KnownFailures",
    "Freshness",
    "Volume",
    "DeadLetters",
    "Lag",
)
HEAD = """\
# Reference

This page describes the classes that `storeside.operators` exports. `make docs` generates it from the docstrings, and
takes the examples from `docs/reference_examples.py`, whose DAGs a test builds. `facts` in an example is an
[`EtlSpec`](#etlspec).

Operators also accept Airflow's own arguments (`task_id`, `retries`, `outlets`, …). Their `execution_timeout` also
applies while they are deferred, and starts again with each deferral. After this time the operator ends AIStore's job
or ClickHouse's queries, and the task fails or is retried. [Configuration](configuration.md) describes the
connections.

Editors and type checkers, such as pyright and mypy, know the arguments, their types and their choices. They report a
misspelt argument or a choice that does not exist before Airflow parses the DAG. A choice that is a template needs the
type `Template`: `on_failed_objects=Template("{{ params.on_failure }}")`. When the DAG runs, this is the text itself.
"""
_PARAM = re.compile(r"^:param (\w+): (.*?)(?=^:param |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Described:
    """A class of `operators` from its source.

    `meanings` are those of its arguments in its docstring, or of its keys if it is a TypedDict; `given` are the
    arguments that it passes to its base class, and `shared` is the TypedDict of those that it takes for it.
    """

    name: str
    module: str
    bases: tuple[str, ...]
    text: str
    meanings: dict[str, str]
    defaults: dict[str, str]
    given: frozenset[str]
    shared: str


def examples() -> dict[str, str]:
    """Return the source of the first call of each class in `EXAMPLES`, by its name."""
    text = EXAMPLES.read_text()
    found: dict[str, str] = {}
    calls = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    for call in sorted(calls, key=lambda node: node.lineno):
        # The segment begins with the call, also if a name precedes it on its line.
        first, _, rest = (ast.get_source_segment(text, call) or "").partition("\n")
        found.setdefault(ast.unparse(call.func), f"{first}\n{textwrap.dedent(rest)}".rstrip())
    return found


def classes() -> dict[str, Described]:
    """Return all classes of `operators` by name, without the one that accepts deprecated arguments."""
    found = {}
    for path in sorted((ROOT / "operators").rglob("*.py")):
        module = ".".join(("storeside", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name != "FlatLoadArguments":
                found[node.name] = _described(node, module)
    return found


def _described(node: ast.ClassDef, module: str) -> Described:
    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
    text = ast.get_docstring(node) or ""
    meanings = {name: " ".join(meaning.split()) for name, meaning in [*_PARAM.findall(text), *_keys(node)]}
    defaults: dict[str, str] = {}
    given: frozenset[str] = frozenset()
    shared = ""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            defaults = dict(_arguments(part.args))
            calls = (
                n for n in ast.walk(part) if isinstance(n, ast.Call) and ast.unparse(n.func) == "super().__init__"
            )
            keywords = [keyword for call in calls for keyword in call.keywords]
            given = frozenset(keyword.arg for keyword in keywords if keyword.arg)
            defaults |= dict(_other_defaults(part))
            if part.args.kwarg and part.args.kwarg.annotation:
                shared = ast.unparse(part.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
    return Described(node.name, module, bases, text, meanings, defaults, given, shared)


def _keys(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the keys of a TypedDict with the texts below them."""
    for part, after in itertools.pairwise(node.body):
        if isinstance(part, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield ast.unparse(part.target), str(after.value.value)


def _other_defaults(init: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the defaults that a class sets for its base class: ``kwargs.setdefault("workers", 8)``."""
    for node in ast.walk(init):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kwargs.setdefault":
            name, value = node.args
            if (key := ast.literal_eval(name)) != "outlets":  # Airflow's own
                yield str(key), ast.unparse(value)


def _arguments(given: ast.arguments) -> Iterator[tuple[str, str]]:
    """Yield the names of arguments with the source of their defaults; empty for required arguments."""
    positional = [a for a in given.args if a.arg != "self"]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    for argument, default in pairs:
        yield argument.arg, ast.unparse(default) if default is not None else ""


def _value(described: Described, default: str) -> str:
    """Return the value of a default from its source; the source if it is not a plain value."""
    module = import_module(described.module)
    # the sources are ours
    value = eval(default, {**vars(module), **vars(getattr(module, described.name))})  # noqa: S307
    return repr(value) if value is None or type(value) in (bool, int, float, str) else default


def chain(found: dict[str, Described], name: str) -> list[Described]:
    """Return a class and its base classes in `operators`, in this order."""
    if name not in found:
        return []
    return [found[name], *(above for base in found[name].bases for above in chain(found, base))]


def meanings_of(found: dict[str, Described], name: str) -> dict[str, str]:
    """Return the meaning of each argument of an operator; its own docstring replaces those of shared arguments."""
    ancestry = chain(found, name)
    shared = [above for d in ancestry for above in chain(found, d.shared)]
    return {argument: meaning for d in reversed([*ancestry, *shared]) for argument, meaning in d.meanings.items()}


def page() -> str:
    """Return the reference as Markdown."""
    found = classes()
    exported = sorted(found.keys() & set(public.__all__), key=lambda n: (found[n].module, n))
    parts = [HEAD]
    for kind in KINDS:
        parts.append(f"## {kind}s\n")
        parts += [_section(chain(found, name), found) for name in exported if name.endswith(kind)]
    parts.append("## Options\n")
    parts += [_options(getattr(public, name)) for name in OPTIONS]
    return "\n".join(parts)


def _options(options: type) -> str:
    """Return the section of a dataclass that groups arguments."""
    text = inspect.getdoc(options) or ""
    meanings = {name: " ".join(meaning.split()) for name, meaning in _PARAM.findall(text)}
    lines = [f"### {options.__name__}\n", f"`from storeside.operators import {options.__name__}`\n"]
    lines.append(_markdown(_PARAM.sub("", text)) + ("\n" if dataclasses.fields(options) else ""))
    if dataclasses.fields(options):
        lines += ["| field | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = "required" if default is dataclasses.MISSING else f"`{default!r}`"
        lines.append(f"| `{field.name}` | {shown} | {_markdown(meanings[field.name])} |".replace("||", "\\|\\|"))
    return "\n".join([*lines, ""])


def _section(ancestry: list[Described], found: dict[str, Described]) -> str:
    described = ancestry[0]
    lines = [f"### {described.name}\n", f"`from storeside.operators import {described.name}`\n"]
    lines.append(_markdown(_PARAM.sub("", described.text)) + "\n")
    if example := examples().get(described.name):
        lines.append(f"```python\n{example}\n```\n")
    meanings = meanings_of(found, described.name)
    defaults: dict[str, str] = {}
    for d in reversed(ancestry):
        defaults = {n: v for n, v in defaults.items() if n not in d.given}
        defaults |= {n: v and _value(d, v) for n, v in d.defaults.items()}
    operator = getattr(import_module(described.module), described.name)
    for name in getattr(operator, "refused", ()):
        defaults.pop(name, None)  # the reference has no deprecated ones
    templated = getattr(operator, "template_fields", ())
    if defaults:
        lines += ["| argument | default | meaning |", "|---|---|---|"]
        for name in sorted(defaults, key=lambda n: bool(defaults[n])):
            shown = f"`{defaults[name]}`" if defaults[name] else "required"
            meaning = _markdown(meanings[name])
            note = "templated" if name in templated else ""
            text = "; ".join(filter(None, [meaning, note])).replace("|", "\\|")
            lines.append(f"| `{name}` | {shown} | {text} |")
        lines.append("")
    return "\n".join(lines)


def _markdown(text: str) -> str:
    """Convert the reStructuredText of docstrings to Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", text.strip())


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
