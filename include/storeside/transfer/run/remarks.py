"""Finds the dialect of samples, and the values because of which their columns are text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from storeside.transfer.base.errors import TransferError
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.formats.text_types import TEXT, Types, type_of
from storeside.transfer.objects.content import Content
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.samples.text import sampled_rows

# Rows of each sample whose values are compared.
_ROWS = 1000
# Characters of a value that are shown.
_LONGEST = 80


class TextColumn(NamedTuple):
    """A column of samples that is text because of one value, although other values have a type."""

    name: str
    value: str
    other: str


def dialect(form: Format, contents: Sequence[Content]) -> str:
    """Return how the samples are read, as text."""
    parts = [form.facts.label]
    if form.has_fields:
        csv = form.csv
        parts += [f"delimiter {csv.delimiter!r}", f"quote {csv.quote!r}" if csv.quote else "no quotes"]
        parts.append(f"names of {len(csv.names)} columns from csv.names" if csv.names else "a header with names")
        parts += [f"csv.skip_rows {csv.skip_rows}"] if csv.skip_rows else []
        parts += [f"encoding {csv.encoding}"] if not form.is_native else []
    kinds = sorted({content.compression for content in contents if form.is_stream and content.compression})
    return ", ".join([*parts, *kinds])


def text_columns(
    request: Request, form: Format, contents: Sequence[Content], names: Collection[str]
) -> list[TextColumn]:  # fmt: skip
    """Return those of the columns `names` of text objects that one value makes text.

    None if a column is masked: no value of such objects is shown.
    """
    if not form.is_text or request.read.columns.mask or not names:
        return []
    shown: dict[str, list[tuple[Types, str]]] = {name: [] for name in names}
    for content in contents:
        for fields in _values(request, form, content):
            for name, found in fields.items():
                if name in shown:
                    shown[name].append(found)
    return [column for name, values in shown.items() if (column := _because(name, values)) is not None]


def _values(request: Request, form: Format, content: Content) -> Iterator[dict[str, tuple[Types, str]]]:
    """Yield the types and the text of each value of the first rows, as the inference of types sees them."""
    text = TEXTS[form.name]
    try:
        rows = sampled_rows(request.read.sample_bytes, form, content)
    except TransferError:
        return
    form = replace(form, csv=replace(form.csv, encoding="utf-8"))
    headers = text.headers(form)
    for row in islice(rows, headers, _ROWS + headers):
        try:
            place = text.shown(iter([*rows[:headers], row]), form, request.read, skips_bad=True)
        except TransferError:
            continue
        yield {
            name: (value.types, next(iter(value.distinct or ("",))))
            for name, value in place.fields.items() if value.count
        }  # fmt: skip


def _because(name: str, values: Sequence[tuple[Types, str]]) -> TextColumn | None:
    """Return the column with the first value that the type of most other values does not hold."""
    kinds = Counter(types for types, _ in values if types != TEXT)
    if not kinds or 2 * sum(kinds.values()) < len(values):
        return None
    usual = kinds.most_common(1)[0][0]
    value = next((value for types, value in values if types & usual == TEXT), None)
    return None if value is None else TextColumn(name, value[:_LONGEST], type_of(usual))
