"""Generated CSV and JSON Lines whose columns a load infers: file n of a seed is always the same."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeside.transfer.request.object_format import Csv
from tests.fuzz.differential import text_values
from tests.fuzz.differential.inferred_rules import parsed

# Columns of a file. Files whose columns get the same types share a load, so there are few shapes.
_SHAPES = (
    *((kind,) for kind in text_values.KINDS), ("small", "number"), ("text", "date"), ("code", "integer"),
    ("small", "text", "moment"), ("small", "boolean"), ("small", "numbers"),
)  # fmt: skip
_NAMES = ("a", "b", "c")
# The most orders of the rows of one file that are tried.
_MOST_ORDERS = 24
# Bytes of a sample that ends before the last rows of a file.
_SHORT_SAMPLE = 60


@dataclass(frozen=True)
class File:
    """A generated file.

    `lines` are its rows, which may come in any order between `head` and `tail`. `is_valid` says that a load must
    take it, `is_unclear` that a load must refuse it: it has no header, another delimiter than the load expects, or
    Excel's line about it.
    Otherwise a load may do either. `options` are those of its load.
    """

    number: int
    suffix: str
    head: str
    lines: tuple[str, ...]
    tail: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    is_valid: bool = True
    is_unclear: bool = False
    read: Callable[[str], list[dict[str, Any]]] = field(compare=False, kw_only=True)

    def content(self, order: Sequence[str]) -> bytes:
        """Return the file with its rows in this order."""
        return (self.head + "".join(order) + self.tail).encode()

    @property
    def is_sampled_whole(self) -> bool:
        """Whether the sample has all rows."""
        return "sample_bytes" not in dict(self.options)

    def orders(self) -> Iterator[tuple[str, ...]]:
        """Yield orders of the rows, the first one as generated: all orders of few rows, and some of many."""
        if math.factorial(len(self.lines)) <= _MOST_ORDERS:
            yield from itertools.permutations(self.lines)
            return
        yield self.lines
        rng = random.Random(self.number)  # noqa: S311
        for _ in range(_MOST_ORDERS // 4):
            yield tuple(rng.sample(self.lines, len(self.lines)))

    def rows(self, order: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows that Python reads, without those that have too few or too many fields."""
        return self.read(self.head + "".join(order) + self.tail)


def made(family: str, seed: int, number: int) -> File:
    """Return a file of a family: csv, tsv or jsonl."""
    rng = random.Random(f"{family}/{seed}/{number}")  # noqa: S311
    return _json(rng, number) if family == "jsonl" else _csv(rng, number, family)


def _csv(rng: random.Random, number: int, family: str) -> File:
    delimiter = "\t" if family == "tsv" else rng.choice((",", ",", ",", ";", "|"))
    shape = rng.choice(_SHAPES)
    makers = [text_values.mixed(rng, kind) for kind in shape]
    names = ["country", "1960", "1961"][: len(shape)] if rng.random() < 0.05 else [*_NAMES[: len(shape)]]
    fault = rng.choice((*[""] * 12, "no header", "other delimiter", "sep", "ragged", "trailing", "late"))
    count = rng.randrange(12, 20) if fault == "late" else rng.randrange(1, 7)
    table = [[_value(rng, maker) for maker in makers] for _ in range(count)]
    options: dict[str, Any] = {"format": family}
    if delimiter not in ",\t":
        options["csv"] = Csv(delimiter)
    is_unclear = False
    if fault == "no header":
        kind = rng.choice(("small", "number", "date"))
        some = [kind if kind == "small" else rng.choice((kind, "name")) for _ in shape]
        some[0] = kind
        table = [[_plain(rng, kind) for kind in some] for _ in range(count)]
        names = [_plain(rng, kind) for kind in some]
        is_unclear = len(set(names)) == len(names)
    elif fault == "other delimiter":
        other = rng.choice([d for d in ",;|\t" if d != delimiter])
        table = [[_plain(rng, "small"), rng.choice("xyz"), _plain(rng, "date")] for _ in table]
        names, written, is_unclear = [*_NAMES], other, True
    elif fault == "late":
        table = [[_plain(rng, "small") for _ in shape] for _ in range(10)] + table[10:]
        options["sample_bytes"] = _SHORT_SAMPLE
    elif fault == "ragged":
        table = [_ragged(rng, row) for row in table]
        options["on_bad_rows"] = "keep"
    first = f"sep={delimiter}\n" if fault == "sep" else ""
    is_unclear |= fault == "sep"
    written = other if fault == "other delimiter" else delimiter
    quotes = csv.QUOTE_MINIMAL if is_unclear or rng.random() < 0.75 else csv.QUOTE_ALL
    dialect = _Writer(rng, written, quotes, ends_with_delimiter=fault == "trailing")
    head, *lines = (dialect.line(row) for row in (names, *table))
    mark = "\ufeff" if rng.random() < 0.05 else ""
    return File(
        number, family, mark + first + head, tuple(lines), "", tuple(sorted(options.items(), key=str)),
        fault in ("", "trailing", "ragged"), is_unclear,
        read=lambda text: _read_csv(text, delimiter),
    )  # fmt: skip


def _value(rng: random.Random, maker: text_values.Maker) -> str:
    share = rng.random()
    if share < 0.08:
        return rng.choice(("", "", "", "\\N", " "))
    return rng.choice((" ", "\t", "", "  ")) + maker(rng) + rng.choice(("", " ")) if share > 0.95 else maker(rng)


def _plain(rng: random.Random, kind: str) -> str:
    """Return a value whose form is certain."""
    if kind == "number":
        return f"{rng.randrange(1000)}.{rng.randrange(1, 10)}"
    if kind == "name":
        return "".join(rng.choices("abcdefghij", k=8))
    return text_values.small(rng) if kind == "small" else f"20{rng.randrange(10, 99)}-0{rng.randrange(1, 10)}-11"


def _ragged(rng: random.Random, row: list[str]) -> list[str]:
    share = rng.random()
    if share < 0.7:
        return row
    return [*row, "x"] if share < 0.85 or len(row) == 1 else row[:-1]


class _Writer:
    """Writes rows as one program does: which values it quotes, and how it ends lines."""

    def __init__(self, rng: random.Random, delimiter: str, quoting: Any, *, ends_with_delimiter: bool) -> None:
        self.sink = io.StringIO()
        end = rng.choice(("\n", "\n", "\r\n"))
        self.end = delimiter + end if ends_with_delimiter else end
        self.writer = csv.writer(self.sink, delimiter=delimiter, lineterminator=self.end, quoting=quoting)

    def line(self, row: Sequence[str]) -> str:
        self.sink.seek(0)
        self.sink.truncate()
        self.writer.writerow(row)
        return self.sink.getvalue()


def _read_csv(text: str, delimiter: str) -> list[dict[str, Any]]:
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    header, *rows = csv.reader(lines, delimiter=delimiter, strict=True)
    if all(row and not row[-1] for row in (header, *rows)) and len(header) > 1:
        header = header[:-1]  # each row ends with a delimiter
    most = len(header)
    kept = [row[:most] for row in rows if len(row) == most or (len(row) == most + 1 and not row[-1])]
    return [dict(zip(header, row, strict=True)) for row in kept]


# JSON

_JSON_SHAPES = (
    *((kind,) for kind in ("small", "integer", "number", "code", "date", "moment", "boolean", "text", "identifier")),
    ("small", "array"), ("small", "object"), ("small", "mixed"), ("small", "text", "number"),
)  # fmt: skip
_NUMBERS = (
    "5.0", "-0.0", "1E5", "1e-05", "2.5e+3", "1.50", "0", "-1", "100", "1e0", "0.1", "3.14159265358979",
    "0.12345678901234567890", "9007199254740993", "0.30000000000000004", "100000.00000000000000000",
)  # fmt: skip


def _json(rng: random.Random, number: int) -> File:
    shape = rng.choice(_JSON_SHAPES)
    makers = dict(zip(_NAMES, (_json_maker(rng, kind) for kind in shape), strict=False))
    fault = rng.choice((*[""] * 12, "array", "late", "bad row"))
    count = rng.randrange(12, 20) if fault == "late" else rng.randrange(1, 7)
    separators = rng.choice((":", ": ", " : "))
    options: dict[str, Any] = {"format": "jsonl"}
    if "object" in shape:
        options["nested"] = rng.choice(("tuple", "tuple", "json", "string"))
    documents = [_document(rng, makers, separators) for _ in range(count)]
    if fault == "late":
        early = rng.choice(("small", "number"))
        wraps = {"array": "[{}]", "object": '{{"x": {}, "y": "a"}}'}
        forms = {name: wraps.get(kind, "{}") for name, kind in zip(_NAMES, shape, strict=False)}
        plain = {name: _formatted(form, early) for name, form in forms.items()}
        documents[:10] = [_document(rng, plain, separators) for _ in range(10)]
        options["sample_bytes"] = _SHORT_SAMPLE
    if fault == "bad row":
        bad = rng.choice(('{"a": 01}', "[1]", "1", '{"a": nan}', '{"a": "\t"}', '{"a" 1}'))
        documents[rng.randrange(count)] = bad
        options["on_bad_rows"] = "keep"
    if fault == "array" and count > 1:
        return File(
            number, "jsonl", "[", tuple(f"{document},\n" for document in documents), '{"a": null}]\n',
            tuple(options.items()), read=parsed,
        )  # fmt: skip
    end = rng.choice(("\n", "\n", "\r\n"))
    return File(
        number, "jsonl", "", tuple(document + end for document in documents), "",
        tuple(sorted(options.items())), fault != "late", read=_read_json,
    )  # fmt: skip


def _formatted(form: str, kind: str) -> text_values.Maker:
    """Return a maker of texts with a plain value."""
    return lambda rng: form.format(_plain(rng, kind))


def _json_maker(rng: random.Random, kind: str) -> text_values.Maker:
    """Return a maker of the JSON texts of one field."""
    if kind in ("small", "boolean"):
        return {"small": text_values.small, "boolean": lambda rng: rng.choice(("true", "false"))}[kind]
    if kind in ("integer", "number"):
        share = rng.choice((0, 0, 0.3, 0.9)) if kind == "integer" else 0.7
        return lambda rng: rng.choice(_NUMBERS) if rng.random() < share else _json_integer(rng)
    if kind == "array":
        part = _json_maker(rng, rng.choice(("small", "integer", "number", "text", "code", "date", "mixed")))
        return lambda rng: f"[{', '.join(_or_null(rng, part) for _ in range(rng.randrange(4)))}]"
    if kind == "object":
        x, y = (_json_maker(rng, rng.choice(("small", "text", "number", "date", "array"))) for _ in "xy")
        return lambda rng: f'{{"x": {_or_null(rng, x)}, "y": {_or_null(rng, y)}}}'
    if kind == "mixed":
        parts = [_json_maker(rng, rng.choice(("small", "boolean", "text", "array", "object"))) for _ in range(2)]
        return lambda rng: rng.choice(parts)(rng)
    texts = text_values.mixed(rng, kind)
    return lambda rng: json.dumps(texts(rng), ensure_ascii=rng.random() < 0.5)


def _json_integer(rng: random.Random) -> str:
    return text_values.integer(rng)


def _or_null(rng: random.Random, maker: text_values.Maker) -> str:
    return "null" if rng.random() < 0.08 else maker(rng)


def _document(rng: random.Random, makers: dict[str, text_values.Maker], colon: str) -> str:
    fields = [f'"{name}"{colon}{_or_null(rng, maker)}' for name, maker in makers.items() if rng.random() < 0.95]
    rng.shuffle(fields)
    return f"{{{', '.join(fields)}}}"


def _read_json(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.split("\n"):
        try:
            document = parsed(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found
