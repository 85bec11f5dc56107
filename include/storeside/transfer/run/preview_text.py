"""A preview of a load as text for people, and as values for XCom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from storeside.amounts import counted, others, size
from storeside.transfer.base.errors import shown
from storeside.transfer.run.first_rows import LONGEST_CELL
from storeside.transfer.run.previewed import Preview

# Characters of a value in the table of rows.
_WIDEST = 40
# A preview in XCom has at most these: characters of each statement, other items of each list, columns of rows.
_STATEMENT, _ITEMS, _COLUMNS = 20_000, 100, 50


def preview_text(found: Preview) -> str:
    """Return a preview as lines of text."""
    return "\n".join(_lines(found))


def preview_values(found: Preview) -> dict[str, Any]:
    """Return a preview as values for JSON, of bounded size: long lists and statements are cut."""
    values = asdict(found)
    for name in ("drift", "texts", "refused", "columns", "known_failures"):
        values[name] = [_cut(item) for item in values[name][:_ITEMS]]
    values["statements"] = [text[:_STATEMENT] for text in values["statements"]]
    values["rows"] = [list(row[:_COLUMNS]) for row in values["rows"]]
    return values


def _cut(item: Any) -> Any:
    return item[:LONGEST_CELL] if isinstance(item, str) else [str(part)[:LONGEST_CELL] for part in item]


def _lines(found: Preview) -> Iterator[str]:
    yield f"preview of {shown(found.source)} -> {found.table}: nothing is loaded or changed"
    before = others(
        (found.listed - found.planned - found.known_bad, "loaded before"), (found.known_bad, "failed for good before")
    )
    if found.listed or not found.problem:  # an error of the planning leaves the numbers unknown
        yield f"objects: {found.listed:,} match, {found.planned:,} to load ({size(found.bytes)}){before}"
    yield from (f"failed before: {shown(str(key))}: {reason}" for key, reason in found.known_failures)
    if found.ignored:
        yield "ignored markers: " + ", ".join(f"{count} of {kind}" for kind, count in found.ignored.items())
    if found.not_foreseen:
        yield f"not foreseen: {found.not_foreseen}"
    if found.problem:
        yield f"the load would fail: {found.problem}"
    if not found.planned or not found.loader:
        return
    how = "ClickHouse pulls the objects" if found.loader == "pull" else "the worker pushes the objects"
    yield f"loader: {found.loader}, {how}"
    yield f"time: {_time(found.seconds)}"
    if found.options:
        yield f"read as: {found.options}"
    yield from (
        f"text: column {name!r} is text because of the value {value!r}; most other values are {other}"
        for name, value, other in found.texts
    )
    yield from (f"drift: {difference}" for difference in found.drift)
    refused = others((len(found.refused), "refused"))
    yield f"read the first rows of {counted(found.read, 'object')}{refused}"
    yield from (f"refused: {shown(key)}: {reason}" for key, reason in found.refused)
    yield from (f"statement: {statement}" for statement in found.statements)
    if found.rows:
        yield f"first {counted(len(found.rows), 'row')}:"
        yield from _table([name for name, _ in found.columns], found.rows)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "no speed of a load is recorded, so none is estimated"
    return f"about {max(seconds, 1):.0f} s at the recorded speed of the last loads"


def _table(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Iterator[str]:
    """Yield names and rows with aligned columns."""
    cells = [[_cell(name) for name in names[: len(rows[0])]], *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(value: str | None) -> str:
    if value is None:
        return "NULL"
    text = shown(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
