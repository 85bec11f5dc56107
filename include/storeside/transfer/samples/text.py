"""Reads the rows of sampled text objects, and infers the columns that they show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.csv_text import FIRST_ROW
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.formats.text_columns import Place
from storeside.transfer.formats.text_lists import listed
from storeside.transfer.formats.text_rows import LONGEST_ROW
from storeside.transfer.objects.content import Content
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.samples.recognition import SamplesError
from storeside.transfer.staging.private import quiet

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# How many times as large as asked for a sample of text becomes, one after the other, until it has a row.
_GROWTHS = (1, 4, 16)


class NoRowsError(SamplesError):
    """No sampled object has a row that could show columns."""


def sampled_rows(most: int, form: Format, content: Content) -> list[bytes]:
    """Return the rows in about the first `most` bytes of a text, or in more if these have no whole row.

    Rows with thousands of fields are that long. Raises LoadObjectError.
    """
    text, before = TEXTS[form.name], -1
    for growth in _GROWTHS:
        sample = content.sample(min(most * growth, LONGEST_ROW))
        is_whole = len(sample) == content.size and not content.compression
        is_all = is_whole or len(sample) == before
        try:
            rows = text.sample(sample, form, is_whole=is_whole)
        except LoadObjectError:
            if is_all or growth == _GROWTHS[-1]:
                raise
            continue
        if is_all or len(rows) > text.headers(form):
            return rows
        before = len(sample)
    raise LoadObjectError(FIRST_ROW.format(before, "increase `sample_bytes`"))


def shown_in(request: Request, form: Format, rows: Iterable[bytes]) -> Place | None:
    """Return what the rows of a text show of its columns; None if there are none. Raises LoadObjectError."""
    read, found, rows = request.read, TEXTS[form.name], iter(rows)
    first = [*itertools.islice(rows, found.headers(form) + 1)]
    if len(first) <= found.headers(form):
        return None
    with quiet(bool(read.columns.mask)):
        return found.shown(itertools.chain(first, rows), form, read, skips_bad=request.on_bad_rows != "fail")


def merged(
    client: Client, request: Request, form: Format, shown: Sequence[Place | None], given: Mapping[str, str]
) -> list[Column]:
    """Return the columns that the rows of several texts show together. Raises NoRowsError."""
    root, found = Place(), [place for place in shown if place is not None]
    if not found:
        raise NoRowsError(f"no sampled object has a row: create {request.table} yourself")
    for place in found:
        root.merge(place)
    if not root.fields:
        raise NoRowsError(f"no sampled object has a row with a field: create {request.table} yourself")
    return columns_at(client, request, form, root, given)


def columns_at(client: Client, request: Request, form: Format, root: Place, given: Mapping[str, str]) -> list[Column]:
    """Return the columns of text objects; no statement has values of masked columns."""
    masked = request.read.columns.mask
    if form.has_fields and masked and not root.fields.keys() & masked.keys():
        raise TransferInputError(
            f"mask {', '.join(map(repr, sorted(masked)))}: no sampled object has these columns: correct the names"
        )
    nested: Any = request.read.nested
    return root.columns(
        nested, {**dict.fromkeys(masked, "Nullable(String)"), **given}, lambda values: listed(client, values)
    )
