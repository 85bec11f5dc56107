"""Write docs/reference.md, the reference of the public API, from its docstrings: ``make docs``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import storeside.operators as public

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
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
    "EtlSpec",
)
HEAD = """\
# Reference

This page describes the classes that `storeside.operators` exports. `make docs` generates it from the docstrings.

Operators also accept Airflow's own arguments (`task_id`, `retries`, `outlets`, …). Their `execution_timeout` also
applies while they are deferred, and starts again with each deferral. After this time the operator ends AIStore's job
or ClickHouse's queries, and the task fails or is retried. [Configuration](configuration.md) describes the
connections.
"""
# Arguments that mean the same in all operators; their docstrings do not describe them.
COMMON = {
    "aistore_conn_id": "connection to AIStore",
    "clickhouse_conn_id": "connection to ClickHouse",
    "aws_conn_id": "connection to S3 and SQS",
    "hsds_conn_id": "connection to HSDS",
    "poll_interval": "seconds between two polls",
    "deferrable": "True waits in the triggerer, False in the worker; None means Airflow's `default_deferrable`",
}
_PARAM = re.compile(r"^:param (\w+): (.*?)(?=^:param |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Described:
    """A class of `operators` from its source; `given` are the arguments that it passes to its base class."""

    name: str
    module: str
    bases: tuple[str, ...]
    text: str
    defaults: dict[str, str]
    given: frozenset[str]


def classes() -> dict[str, Described]:
    """Return all classes of `operators` by name, without the classes for deprecated arguments."""
    found = {}
    paths = set((ROOT / "operators").rglob("*.py")) - {ROOT / "operators" / "bases" / "deprecated.py"}
    for path in sorted(paths):
        module = ".".join(("storeside", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = _described(node, module)
    return found


def _described(node: ast.ClassDef, module: str) -> Described:
    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
    defaults: dict[str, str] = {}
    given: frozenset[str] = frozenset()
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            defaults = dict(_arguments(part.args))
            calls = (
                n for n in ast.walk(part) if isinstance(n, ast.Call) and ast.unparse(n.func) == "super().__init__"
            )
            keywords = [keyword for call in calls for keyword in call.keywords]
            given = frozenset(keyword.arg for keyword in keywords if keyword.arg)
            for dictionary in (k.value for k in keywords if isinstance(k.value, ast.Dict) and not k.arg):
                pairs = zip(dictionary.keys, dictionary.values, strict=True)  # **{"workers": 8, **kwargs}
                defaults |= {str(ast.literal_eval(key)): ast.unparse(value) for key, value in pairs if key}
    return Described(node.name, module, bases, ast.get_docstring(node) or "", defaults, given)


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
    lines += [_markdown(_PARAM.sub("", text)) + "\n", "| field | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = "required" if default is dataclasses.MISSING else f"`{default!r}`"
        lines.append(f"| `{field.name}` | {shown} | {_markdown(meanings[field.name])} |".replace("||", "\\|\\|"))
    return "\n".join([*lines, ""])


def _section(ancestry: list[Described], found: dict[str, Described]) -> str:
    described = ancestry[0]
    base = [d for d in found.values() if d.module in ("storeside.operators.operators.aistore", described.module)]
    elsewhere = {n: " ".join(m.split()) for d in reversed(base) for n, m in _PARAM.findall(d.text)}
    lines = [f"### {described.name}\n", f"`from storeside.operators import {described.name}`\n"]
    lines.append(_markdown(_PARAM.sub("", described.text)) + "\n")
    meanings = {n: " ".join(m.split()) for d in reversed(ancestry) for n, m in _PARAM.findall(d.text)}
    defaults: dict[str, str] = {}
    for d in reversed(ancestry):
        defaults = {n: v for n, v in defaults.items() if n not in d.given}
        defaults |= {n: v and _value(d, v) for n, v in d.defaults.items()}
    operator = getattr(import_module(described.module), described.name)
    for name in getattr(operator, "refused", ()):
        del defaults[name]
    templated = getattr(operator, "template_fields", ())
    if defaults:
        lines += ["| argument | default | meaning |", "|---|---|---|"]
        for name in sorted(defaults, key=lambda n: bool(defaults[n])):
            shown = f"`{defaults[name]}`" if defaults[name] else "required"
            meaning = _markdown(meanings.get(name) or COMMON.get(name) or elsewhere.get(name, ""))
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
