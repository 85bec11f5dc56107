"""The rows of the guarantees in docs/guarantees.md, and the tests that are marked as their proof."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from storeside.stack.settings import CHECKOUT

_TABLE = re.compile(r"^\| row \|.*\n(?:\|.*\n)+", re.MULTILINE)
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \|(.*)\|$", re.MULTILINE)
_FILE = re.compile(r"`((?:unit|integration|e2e|attacks)/test_\w+\.py)`")


def rows() -> dict[str, set[str]]:
    """Return the rows of docs/guarantees.md with the test files that they name."""
    tables = _TABLE.findall((CHECKOUT / "docs" / "guarantees.md").read_text())
    return {row: set(_FILE.findall(text)) for table in tables for row, text in _ROW.findall(table)}


@cache
def marked() -> dict[str, set[str]]:
    """Return the rows that markers of tests name, with the test files that hold these markers."""
    found: dict[str, set[str]] = defaultdict(set)
    tests = CHECKOUT / "tests"
    for path in sorted(tests.glob("*/test_*.py")):
        for row in _markers(ast.parse(path.read_text())):
            found[row].add(str(path.relative_to(tests)))
    return dict(found)


def _markers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.guarantee":
            yield from (ast.literal_eval(argument) for argument in node.args)
