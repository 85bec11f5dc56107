"""Checks the style of documents, docstrings, comments and messages with proselint and the rules in `RULES`.

``python -m tests.prose`` prints ``file:line: rule: message`` for each finding and ends with status 1 if there is one.
Arguments limit the check to files or folders. ``--count`` prints the findings per rule and folder instead.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import proselint.checks
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult
from proselint.registry.checks.engine import Fancy, RegexOptions
from proselint.registry.checks.types import ExistenceSimple
from proselint.tools import LintFile

from storeside.stack.settings import CHECKOUT

RULES = CHECKOUT / "docs" / "style" / "prose.toml"
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    ".github",
    "docs",
    "dags",
    "operators",
    "plugins",
    "include",
    "tests",
)
# Pages that programs write from checked sources, and transcriptions of speech.
EXCLUDED = ("docs/reference.md", "docs/benchmarks.md", "tests/data/speech/README.md")
# Marks the beginning of a sentence: of a cell, an item, a heading, a comment or a string.
BEGINNING = "¶"
_BEGIN = r"(?:¶\s*|(?<=[.!?:])\s+|\n\s*\n\s*)"
# White space within a paragraph.
_SPACE = r"(?:[ \t]+|[ \t]*\n[ \t]*)"
_SQL = re.compile(
    r"\W*(?:SELECT|INSERT|CREATE|ALTER|DROP|WITH|GRANT|REVOKE|DELETE|FROM|WHERE|AND|OR|ORDER|GROUP|JOIN)\b"
)
# Number of words that make a string a sentence.
_WORDS = 3
# Comments for tools.
_DIRECTIVE = re.compile(r"\s*(?:noqa|type:|fmt:|pragma|ruff:|!).*")


@dataclass(frozen=True)
class Rule:
    """A rule of `RULES`: its patterns, and sentences that it must find or accept."""

    name: str
    message: str
    patterns: tuple[str, ...]
    bad: tuple[str, ...]
    good: tuple[str, ...]
    case: bool = False
    off: bool = False

    @classmethod
    def of(cls, values: dict[str, object]) -> Rule:
        """Build a rule from a table of the file."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})  # type: ignore[arg-type]

    def check(self) -> Check:
        """Return the rule as a check of proselint."""
        pattern = "|".join(f"(?:{one})" for one in self.patterns).replace(" ", _SPACE).replace("<begin>", _BEGIN)
        return Check(
            ExistenceSimple(pattern),
            Fancy(RegexOptions(case_insensitive=not self.case)),
            path=f"storeside.{self.name}",
            message=self.message.replace("{", "{{").replace("}", "}}"),
            flags=CheckFlags(allow_quotes=True),
        )


@dataclass(frozen=True, order=True)
class Finding:
    """A text that a rule found, and its place."""

    file: str
    line: int
    rule: str
    text: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text!r}: {self.message}"


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of `RULES`."""
    return tuple(Rule.of(values) for values in tomllib.loads(RULES.read_text())["rule"])


@cache
def _config() -> Config:
    """Register the rules with proselint once, and return its configuration."""
    registry = CheckRegistry()
    registry.register_many(proselint.checks.__register__)
    registry.register_many(tuple(rule.check() for rule in rules()))
    chosen = tomllib.loads(RULES.read_text())["proselint"]
    names = [f"storeside.{rule.name}" for rule in rules() if not rule.off]
    return Config(max_errors=100_000, checks=dict.fromkeys([*names, *chosen], True))


def check(name: str, prose: str) -> list[Finding]:
    """Return the findings in prose whose lines are those of the file `name`."""
    if not prose.strip():
        return []
    file = LintFile(name, prose)
    return sorted({_finding(file, result.check_result) for result in file.lint(_config())})


def _finding(file: LintFile, result: CheckResult) -> Finding:
    """Return the place of a result: a match may begin with the white space before a sentence."""
    start, end = result.span
    while start < end - 1 and not file.content[start].isalnum():
        start += 1
    text = " ".join(file.content[start:end].split())
    line = file.content.count("\n", 0, start)  # proselint adds a line feed before the text
    return Finding(file.source_name, line, result.check_path.removeprefix("storeside."), text, result.message)


def markdown(text: str) -> str:
    """Return the prose of Markdown, without code and addresses; line n of it is from line n of the text."""
    lines, fenced = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        lines.append("" if fenced or fence else _inline(line))
    return "\n".join(lines)


def _inline(line: str) -> str:
    line = re.sub(r"<!--.*?-->|``.+?``|`[^`]*`", "CODE", line)
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
    if line.startswith("|"):
        return line.replace("|", f" {BEGINNING} ")
    if line.startswith("#"):
        return f"{BEGINNING} {line.lstrip('#')} {BEGINNING}"
    return re.sub(r"^\s*(?:-|\*|\d+\.|>)\s+", f"{BEGINNING} ", line)


def python(source: str, *, strings: bool = True) -> str:
    """Return the prose of a module: docstrings, comments and, with `strings`, messages; line n is from line n."""
    tree = ast.parse(source)
    parts = [*_comments(source), *((node.lineno, str(node.value)) for node in _docstrings(tree))]
    if strings:
        parts += _messages(tree)
    lines = [""] * (source.count("\n") + 2)
    for first, text in parts:
        for line, part in enumerate(_code_removed(text).split("\n"), first):
            lines[min(line, len(lines)) - 1] += f" {part}" if line > first else f" {BEGINNING} {part}"
    return "\n".join(lines)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments with their lines; comments on consecutive lines are one text."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != first + len(lines):
            yield first, "\n".join(lines)
            first, lines = token.start[0], []
        lines.append(_DIRECTIVE.sub("", token.string.lstrip("#")))
    yield first, "\n".join(lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as docstring), *_]:
                    yield docstring


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings that are sentences, without docstrings and SQL; X stands for inserted values."""
    skipped: set[ast.AST] = set(_docstrings(tree))
    for node in ast.walk(tree):  # parents before their parts
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(re.findall(r"\b[a-z]{2,}\b", text)) >= _WORDS and not _SQL.match(text):
            yield node.lineno, text


def _code_removed(text: str) -> str:
    text = re.sub(r"``.+?``|`[^`\n]*`", "CODE", text)
    return re.sub(r"(?m)^(\s*):(?:param|raises|return)[^:]*:", rf"\1{BEGINNING}", text)


def prose_of(path: Path) -> str:
    """Return the prose of a file, by its kind; tests have messages in their expectations, which are not checked."""
    text = path.read_text()
    if path.suffix == ".md":
        return markdown(text)
    return python(text, strings="tests" not in path.relative_to(CHECKOUT).parts)


def files(names: Sequence[str] = PLACES) -> Iterator[Path]:
    """Yield the Markdown and Python files below the names, without those of `EXCLUDED`."""
    for name in names:
        top = (CHECKOUT / name).resolve()
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in (".md", ".py") and str(path.relative_to(CHECKOUT)) not in EXCLUDED:
                yield path


def main() -> int:
    """Check the files and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=PLACES, help="files and folders of the checkout")
    parser.add_argument("--count", action="store_true", help="print the number of findings per rule and folder")
    arguments = parser.parse_args()
    found = [
        finding
        for path in files(arguments.names)
        for finding in check(str(path.relative_to(CHECKOUT)), prose_of(path))
    ]
    if arguments.count:
        for (rule, folder), count in sorted(Counter((f.rule, f.file.split("/")[0]) for f in found).items()):
            print(f"{count:5} {rule} {folder}")
    else:
        print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
