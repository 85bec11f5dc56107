"""JSON Lines: files through the product's loaders, and through Python's json module in its strict mode."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any, NoReturn

from storeside.stack.settings import Stack
from tests.fuzz.differential.jsonlines_rules import section
from tests.fuzz.differential.outcome import Outcome
from tests.fuzz.differential.text import TOGETHER, Group, Refused, Rows, compare_groups, damaged, server

COLUMNS = {
    "i": "Nullable(Int64)", "b": "Nullable(Int128)", "f": "Nullable(Float64)", "t": "Nullable(Bool)",
    "s": "Nullable(String)", "a": "Array(Nullable(Int64))",
    "o": "Nullable(Tuple(x Nullable(Int64), y Nullable(String)))",
}  # fmt: skip
_TEXTS = (
    "", " ", "x", "é", "😀", 'say "hi"', "\\", "\\a", "a\nb", "\t", "\u0000", "\u2028", "null", "true", "12", "NaN",
    "/", "{", "]", "\u007f", "\ufeff", "2026-01-02",
)  # fmt: skip
_LETTERS = [bytes([c]) for c in b'{}[]",:\\+-.0eEntaux \t\n\r\x00\x01\x0b\x1f\x7f\xff/;']
_LETTERS += [b"\\a", b"\\u12", b"NaN", b"null", b"01", b",,", b"\n\n", b"\\ud800", b"1e400", b"\xc2\xa0"]

# The share of files with faults.
FAULTY = 0.08


def compare(files: int, seed: int) -> Outcome:
    """Compare a number of files of a seed."""
    with server() as (stack, client, store):
        return compare_with(stack, client, store, files, seed)


def compare_with(stack: Stack, client: Any, store: Any, files: int, seed: int) -> Outcome:
    """Compare with servers that run."""
    return compare_groups(Outcome("jsonlines"), groups(files, seed), client, store)


def groups(files: int, seed: int) -> Iterator[Group]:
    """Yield files; file n of a seed is always the same."""
    for begin in range(0, files, TOGETHER):
        contents = {}
        for n in range(begin, min(begin + TOGETHER, files)):
            one = random.Random(f"jsonlines/{seed}/{n}")  # noqa: S311
            content = _file(one)
            contents[f"{n:06}.jsonl"] = damaged(one, content, _LETTERS) if one.random() < FAULTY else content
        yield Group(COLUMNS, {"format": "jsonl"}, contents, expected, _same, _section, f"seed {seed}")


def _section(content: bytes, rows: Rows) -> str:
    return section(content, rows, COLUMNS)


def _file(rng: random.Random) -> bytes:
    end = rng.choice(("\n", "\n", "\r\n"))
    separators = rng.choice(((", ", ": "), (",", ":"), (" ,\t", " : ")))
    lines = []
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.05:
            lines.append("")
        row = {name: _value(rng, name) for name in COLUMNS if rng.random() < 0.9 or name == "a"}
        lines.append(json.dumps(row, separators=separators, ensure_ascii=rng.random() < 0.5))
    text = end.join(lines) + (end if rng.random() < 0.9 else "")
    return ("\ufeff" if rng.random() < 0.05 else "").encode() + text.encode()


def _value(rng: random.Random, name: str) -> Any:
    if rng.random() < 0.1 and name != "a":
        return None
    number = rng.randrange(-(10 ** rng.randrange(1, 18)), 10 ** rng.randrange(1, 18))
    text = rng.choice(_TEXTS) if rng.random() < 0.7 else "".join(rng.choices('ab\\"/\né{}', k=rng.randrange(8)))
    values = {
        "i": number, "b": number * 10**18, "f": rng.choice((number / 1000, number, 1e300, 5e-324, -0.0)),
        "t": rng.random() < 0.5, "s": text, "a": [rng.choice((number, None, n)) for n in range(rng.randrange(4))],
        "o": {"x": rng.choice((number, None)), "y": text},
    }  # fmt: skip
    return values[name]


def _constant(name: str) -> NoReturn:
    raise Refused(f"{name} is no JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused("a name comes twice")
    return found


def expected(content: bytes) -> Rows:
    """Return the rows that Python's json module reads, a document a line. Raises Refused."""
    try:
        text = content.decode("utf-8-sig")
        documents = [
            json.loads(line, parse_constant=_constant, object_pairs_hook=_pairs)
            for line in text.split("\n")
            if line.strip(" \t\r")
        ]
    except (ValueError, RecursionError) as e:
        raise Refused(str(e)) from e
    return [_row(document) for document in documents]


def _row(document: Any) -> tuple[Any, ...]:
    if not isinstance(document, dict):
        raise Refused("a document is no object")
    if unknown := set(document) - set(COLUMNS):
        raise Refused(f"unknown fields {unknown}")
    row = []
    for name in COLUMNS:
        value = document.get(name, [] if name == "a" else None)
        if not _fits(name, value):
            raise Refused(f"{name} has another type: {value!r}")
        row.append(value)
    return tuple(row)


def _fits(name: str, value: Any) -> bool:
    if value is None:
        return name != "a"
    if name in ("i", "b"):
        bits = 63 if name == "i" else 127
        return type(value) is int and -(2**bits) <= value < 2**bits
    if name == "f":
        return type(value) in (int, float) and math.isfinite(value)
    if name == "a":
        return isinstance(value, list) and all(v is None or _fits("i", v) for v in value)
    if name == "o":
        return (
            isinstance(value, dict)
            and set(value) <= {"x", "y"}
            and _fits("i", value.get("x"))
            and _fits("s", value.get("y"))
        )
    return isinstance(value, bool) if name == "t" else isinstance(value, str) and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same(a: Any, b: Any, kind: str) -> bool:
    if kind.startswith("Nullable(Tuple") and a is not None:
        a = {"x": a.get("x"), "y": a.get("y")}
    if kind == "Nullable(Float64)" and a is not None:
        return float(a) == b
    return type(a) is type(b) and a == b
