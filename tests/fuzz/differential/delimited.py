"""CSV: files of many dialects through the product's loaders, and through Python's csv module in its strict mode."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from storeside.stack.settings import Stack
from storeside.transfer.request.object_format import Csv
from tests.fuzz.differential.delimited_rules import SPACE, section
from tests.fuzz.differential.outcome import Outcome
from tests.fuzz.differential.text import TOGETHER, Group, Refused, Rows, compare_groups, damaged, server

DIALECTS = (
    Csv(), Csv(), Csv(";"), Csv("|"), Csv(null_values=("NA",)), Csv("\t"), Csv(" "), Csv(quote="'"),
    Csv(null_values=("NA", "-")), Csv(";", encoding="latin-1"), Csv(skip_rows=2), Csv("\t", skip_rows=1),
)  # fmt: skip
TYPES = ("Int64", "Int128", "Float64", "Date32", "Decimal(18, 4)", "String")
_TEXTS = (
    "", " ", "\t", " a", "b ", " c d ", "x", "é", "😀", 'say "hi"', "it's", "1", "007", "+1", "1.50", "1e5",
    "NA", "-", "null", "NULL", "\\N", "true", "2026-01-02", "a\nb", "a\r\nb", "a,b", "a;b", "a|b", "a\tb", "\\",
    'a\\"b',
    "''", '"', "0x10", "#", "[1,2]", '{"a": 1}', "nan", "\u00a0", "\u2028",
)  # fmt: skip
_LETTERS = [bytes([c]) for c in b"\",;\n\r \t'\\x0|-+."] + [b"\n\n", b"\r\n", b'""']
# The share of files with faults.
FAULTY = 0.08


def compare(files: int, seed: int) -> Outcome:
    """Compare a number of files of a seed."""
    with server() as (stack, client, store):
        return compare_with(stack, client, store, files, seed)


def compare_with(stack: Stack, client: Any, store: Any, files: int, seed: int) -> Outcome:
    """Compare with servers that run."""
    return compare_groups(Outcome("delimited"), groups(files, seed), client, store)


def groups(files: int, seed: int) -> Iterator[Group]:
    """Yield files by dialect and columns; file n of a seed is always the same."""
    for begin in range(0, files, TOGETHER):
        rng = random.Random(f"delimited/{seed}/{begin}")  # noqa: S311
        dialect = DIALECTS[begin // TOGETHER % len(DIALECTS)]
        is_text = rng.random() < 0.6
        kinds = ["String" if is_text else rng.choice(TYPES) for _ in range(rng.randrange(1, 5))]
        columns = {f"c{n}": f"Nullable({kind})" for n, kind in enumerate(kinds)}
        contents = {}
        for n in range(begin, min(begin + TOGETHER, files)):
            one = random.Random(f"delimited/{seed}/{n}/file")  # noqa: S311
            content = _file(one, dialect, kinds)
            contents[f"{n:06}.csv"] = damaged(one, content, _LETTERS) if one.random() < FAULTY else content
        yield _group(dialect, columns, contents, f"seed {seed}, {dialect}, {kinds}")


def _group(dialect: Csv, columns: dict[str, str], contents: dict[str, bytes], notes: str) -> Group:
    return Group(
        columns, {"format": "csv", "csv": dialect}, contents,
        lambda content: expected(content, dialect, columns),
        lambda a, b, kind: _same(a, b, dialect),
        lambda content, rows: section(content, rows, dialect, columns),
        notes, dialect.is_native,
    )  # fmt: skip


def _file(rng: random.Random, dialect: Csv, kinds: list[str]) -> bytes:
    sink = io.StringIO()
    end = rng.choice(("\n", "\n", "\r\n"))
    quoting: Any = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC))
    writer = csv.writer(
        sink, delimiter=dialect.delimiter, quotechar=dialect.quote, lineterminator=end, quoting=quoting
    )
    writer.writerow([f"c{n}" for n in range(len(kinds))])
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.05:
            sink.write(end)
        writer.writerow([_value(rng, kind) for kind in kinds])
    text = "".join(f"left out{end}" for _ in range(dialect.skip_rows)) + sink.getvalue()
    if rng.random() < 0.1:
        text = text.removesuffix(end)
    content = text.encode(dialect.encoding, "replace")
    return b"\xef\xbb\xbf" + content if rng.random() < 0.05 and dialect.encoding == "utf-8" else content


def _value(rng: random.Random, kind: str) -> str:
    if kind == "String":
        return (
            rng.choice(_TEXTS) if rng.random() < 0.8 else "".join(rng.choices(" \tab\"',;|é\n", k=rng.randrange(8)))
        )
    if rng.random() < 0.1:
        return ""
    number = rng.randrange(-(10 ** rng.randrange(1, 19)), 10 ** rng.randrange(1, 19))
    text = {
        "Int64": str(number % 2**63), "Int128": str(number * 10**15), "Float64": repr(number / 1000),
        "Date32": str(dt.date(1900, 1, 1) + dt.timedelta(abs(number) % 100_000)),
        "Decimal(18, 4)": str(Decimal(number % 10**14) / 10_000),
    }[kind]  # fmt: skip
    return rng.choice(("", " ", "\t", "  ")) + text + rng.choice(("", " ")) if rng.random() < 0.2 else text


def expected(content: bytes, dialect: Csv, columns: dict[str, str]) -> Rows:
    """Return the rows that Python's csv module reads, in the columns' types. Raises Refused."""
    try:
        text = content.decode("utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding)
    except UnicodeDecodeError as e:
        raise Refused(str(e)) from e
    lines = io.StringIO(text, newline="")
    for _ in range(dialect.skip_rows):
        lines.readline()
    reader = csv.reader(lines, delimiter=dialect.delimiter, quotechar=dialect.quote, strict=True)
    try:
        rows = list(reader)
    except csv.Error as e:
        raise Refused(str(e)) from e
    while rows and not "".join(rows[0]).strip():
        rows.pop(0)
    if not rows:
        return []
    header = rows.pop(0)
    if unknown := set(header) - set(columns):
        raise Refused(f"unknown columns {unknown}")
    if len(set(header)) < len(header):
        raise Refused("a column comes twice")
    rows = [row or [""] for row in rows] if len(header) == 1 else [row for row in rows if row]
    if any(len(row) != len(header) for row in rows):
        raise Refused("a row has another number of fields than the header")
    each = (dict(zip(header, row, strict=True)) for row in rows)
    return [tuple(_parsed(row.get(name, ""), kind, dialect) for name, kind in columns.items()) for row in each]


def _parsed(text: str, kind: str, dialect: Csv) -> Any:
    """Return a value; one that is empty or stands for NULL stays as it is."""
    kind = kind.removeprefix("Nullable(").removesuffix(")" if "(" in kind else "")
    if kind == "String" or text in dialect.null_values or not text.strip(SPACE):
        return text if kind == "String" else None
    text = text.strip(SPACE)
    try:
        if kind.startswith("Int"):
            if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2 ** (int(kind[3:]) - 1)) <= int(text) < 2 ** (
                int(kind[3:]) - 1
            ):
                raise Refused(f"{text!r} is no {kind}")
            return int(text)
        if kind == "Float64":
            if "_" in text:
                raise Refused(f"{text!r} is no float")
            return float(text)
        if kind == "Date32":
            return dt.date.fromisoformat(text)
        return _decimal(text)
    except (ValueError, ArithmeticError) as e:
        raise Refused(f"{text!r}: {e}") from e


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite() or value != value.quantize(Decimal("0.0001")) or abs(value) >= 10**14:
        raise Refused(f"{text!r} is no Decimal(18, 4)")
    return value


def _same(a: Any, b: Any, dialect: Csv) -> bool:
    """Compare a value of Python's with a loaded one: the csv module does not tell NULL from the empty text."""
    if b is None:
        return a is None or a == "" or a in dialect.null_values
    if isinstance(b, float) and isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return a == b
