"""Checks the expressions of a load with ClickHouse, before it reads any object, and finds their types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import TransferInputError, is_transient, plain
from storeside.transfer.base.schema import Column, bare, resolved
from storeside.transfer.request.table_keys import Expression

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Parts of ClickHouse's query tree that an expression may have. Others are subqueries, tables, `*` and windows.
_PARTS = frozenset({"FUNCTION", "ARGUMENTS", "ARGUMENT", "LIST", "IDENTIFIER", "CONSTANT", "LAMBDA", "EXPRESSION"})
_PART = re.compile(r"(?P<indent> *+)(?P<kind>[A-Z_]++)(?: id: \d++)?(?P<rest>.*)")
_FUNCTION = re.compile(r", function_name: (?P<name>\S+), function_type: (?P<type>\w+)")
_IN = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?", re.IGNORECASE)
# Deterministic functions that wait, call servers, or read the state of the server.
_REFUSED = ("sleep", "sleepEachRow", "logTrace", "evalMLMethod", "globalVariable", "pgTableIsVisible", "indexHint")
_CATEGORIES = ("AI", "Internal", "Introspection", "Machine Learning", "Time Series")
_TYPES = {"allow_suspicious_low_cardinality_types": 1, "allow_suspicious_variant_types": 1}


@dataclass(frozen=True)
class _Node:
    """One line of a query tree."""

    indent: int
    kind: str
    rest: str


def used(client: Client, expressions: Mapping[str, Expression]) -> frozenset[str]:
    """Return the names that expressions use: columns, and parameters of lambda functions.

    Raises TransferInputError for an expression that does not parse, and for one whose result may depend on anything
    but the row: subqueries, tables, and functions that are unknown, aggregate, not deterministic or read the server.
    """
    names: set[str] = set()
    functions: dict[str, str] = {}
    for option, expression in expressions.items():
        for function, found in _parts(client, option, expression.text):
            if function:
                functions[found] = option
            else:
                names |= {found, found.partition(".")[0]}
    if unfit := sorted(functions.keys() - _allowed(client, functions)):
        raise TransferInputError(
            f"{functions[unfit[0]]}: ClickHouse has no function {unfit[0]}, or its result may differ from one run to"
            " the next, or it reads more than the row: use other functions"
        )
    return frozenset(names)


def _parts(client: Client, option: str, text: str) -> Iterator[tuple[bool, str]]:
    """Yield the names of an expression's functions (True) and columns (False), as ClickHouse parses them."""
    try:
        rows = client.query(f"EXPLAIN QUERY TREE run_passes = 0 SELECT ({text})").result_rows
    except DatabaseError as e:
        raise _refused(e, option, text) from e
    lines = [match for (line,) in rows if (match := _PART.fullmatch(line))]
    # After the projection's list, the tree has the table `system.one`.
    nodes = [_Node(len(m["indent"]), m["kind"], m["rest"]) for m in lines[3:]]
    end = next(n for n, node in enumerate(nodes) if node.kind == "JOIN" and node.indent == 2)
    for n, node in enumerate(nodes[:end]):
        function = _FUNCTION.match(node.rest) if node.kind == "FUNCTION" else None
        if node.kind not in _PARTS or (function and function["type"] != "ordinary"):
            raise TransferInputError(
                f"{option} {text!r}: write an expression of columns, without subqueries, tables, * and OVER"
            )
        if function and _IN.fullmatch(function["name"]) and _second(nodes[n + 1 : end], node.indent) == "IDENTIFIER":
            raise TransferInputError(f"{option} {text!r}: write a list of constants after IN")
        if function:
            yield True, function["name"]
        elif node.kind == "IDENTIFIER":
            yield False, node.rest.removeprefix(", identifier: ")


def _second(nodes: Sequence[_Node], indent: int) -> str:
    """Return the kind of a function's second argument; `nodes` follow the function."""
    arguments = [node.kind for node in nodes if node.indent == indent + 6]
    return arguments[1] if len(arguments) > 1 else ""


def _allowed(client: Client, functions: Mapping[str, str]) -> set[str]:
    """Return those of the functions whose result depends only on their arguments."""
    if not functions:
        return set()
    rows = client.query(
        "SELECT name, alias_to, case_insensitive FROM system.functions WHERE origin = 'System' AND NOT is_aggregate"
        f" AND deterministic = 1 AND name NOT IN ({', '.join(map(literal, _REFUSED))})"
        f" AND categories NOT IN ({', '.join(map(literal, _CATEGORIES))})"
    ).result_rows
    names = {name for name, *_ in rows}
    fit = [(name, any_case) for name, alias_to, any_case in rows if not alias_to or alias_to in names]
    any_case = {name.lower() for name, is_any in fit if is_any}
    exact = {name for name, _ in fit}
    return {name for name in functions if name in exact or name.lower() in any_case}


def types(client: Client, columns: Sequence[Column], expressions: Mapping[str, Expression]) -> dict[str, str]:
    """Return the types of expressions over columns with these types. Raises TransferInputError."""
    scope = ", ".join(
        f"materialize(defaultValueOfTypeName({literal(resolved(c.type))})) AS {identifier(c.name)}" for c in columns
    )
    found = {}
    for option, expression in expressions.items():
        try:
            rows = client.query(
                f"DESCRIBE (SELECT ({expression.text}) FROM (SELECT {scope or '1'}))", settings=_TYPES
            ).result_rows
        except DatabaseError as e:
            raise _refused(e, option, expression.text) from e
        found[option] = rows[0][1]
    if (kind := found.get("where")) and bare(kind) not in ("UInt8", "Bool"):
        raise TransferInputError(f"where {expressions['where'].text!r} is {kind}: write a condition, such as a > 0")
    return found


def _refused(error: DatabaseError, option: str, text: str) -> Exception:
    return error if is_transient(error) else TransferInputError(f"{option} {text!r}: {plain(error)}")
