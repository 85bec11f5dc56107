"""Infers the columns of a table for sampled objects."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import NO_COLUMNS, LoadObjectError, TransferInputError, is_transient, plain
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.encoding import refuse_encoding
from storeside.transfer.formats.registry import MESSAGES, TEXTS, TYPED
from storeside.transfer.formats.text_lines import with_line
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.members import about_member, members_of
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.samples.recognition import HEAD, SamplesError
from storeside.transfer.samples.text import NoRowsError, columns_at, merged, sampled_rows, shown_in
from storeside.transfer.staging.private import quiet
from storeside.transfer.tables.storable import refuse_unstorable
from storeside.transfer.types.inference import NoTypeError, merge

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


def columns_of(client: Client, request: Request, form: Format, contents: Sequence[Content]) -> list[Column]:
    """Return the columns of sampled objects, without objects that no table can hold, or not with most of the others.

    The load of those fails later, each alone. Raises TransferInputError when none can be read.
    """

    def columns(taken: Sequence[Any]) -> list[Column]:
        found = _merged(client, request, form, taken)
        with quiet(bool(request.read.columns.mask)):
            refuse_unstorable(client, request, found)
        return found

    try:
        return columns([_taken(request, form, content) for content in contents])
    except (LoadObjectError, DatabaseError, NoTypeError):
        return _of_most(columns, request, form, contents)


def _of_most(
    columns: Callable[[Sequence[Any]], list[Column]], request: Request, form: Format, contents: Sequence[Content]
) -> list[Column]:
    """Return the columns of samples that fit together: of most, or with the first one if no others are more."""
    taken, reasons = {}, {}
    passing: dict[str, LoadObjectError] = {}
    for content in contents:
        try:
            taken[content.key] = _taken(request, form, content)
        except LoadObjectError as e:
            passing |= {} if e.kind.is_final else {content.key: e}
            is_plain = form.is_text and not content.archive
            reasons[content.key] = with_line(str(e), content.plain, form) if is_plain else str(e)

    def together(keys: Sequence[str]) -> list[Column]:
        return columns([taken[key] for key in keys])

    kept: list[str] = []
    left = [*taken]
    while len(left) > len(kept):
        some = _fitting(together, [*left, *(key for key in taken if key not in left)], [], reasons)
        kept = max(kept, some, key=len)
        left = [key for key in left[1:] if key not in some]
    for key in reasons.keys() - kept:
        log.warning("%r is left out of the samples: %s", key, reasons[key])
    if not kept:
        key, reason = next(iter(reasons.items()))
        such = f"no sampled object can be read as {form.name}, such as {key!r}: {reason}"
        helps = key in taken and not form.is_text
        raise SamplesError(f"{such}: create {request.table} yourself" if helps else such, passing)
    return together(kept)


def _fitting(
    columns: Callable[[Sequence[str]], object], keys: Sequence[str], kept: list[str], reasons: dict[str, str]
) -> list[str]:
    """Return `kept` with those keys whose samples have `columns` together with it; `reasons` gets the others.

    One odd key among many takes fewer statements by halves than one by one.
    """
    if not keys:
        return kept
    try:
        columns([*kept, *keys])
    except NoRowsError:
        return kept
    except (LoadObjectError, DatabaseError, TransferInputError) as e:
        if isinstance(e, DatabaseError) and is_transient(e):
            raise
        if len(keys) == 1:
            reasons[keys[0]] = plain(e)
            return kept
        half = len(keys) // 2
        return _fitting(columns, keys[half:], _fitting(columns, keys[:half], kept, reasons), reasons)
    return [*kept, *keys]


def sample_columns(client: Client, request: Request, form: Format, contents: Sequence[Content]) -> list[Column]:
    """Return the columns of sampled objects, merged.

    Raises LoadObjectError, DatabaseError for text that ClickHouse cannot parse, or NoTypeError.
    """
    return _merged(client, request, form, [_taken(request, form, content) for content in contents])


def _taken(request: Request, form: Format, content: Content) -> Any:
    """Return the columns of an object with types, or what the rows of a text show. Raises LoadObjectError."""
    if form.by_schema:
        return []
    if not form.is_text:
        return typed_columns(form, content)
    rows = sampled_rows(request.read.sample_bytes, form, content)
    return shown_in(request, replace(form, csv=replace(form.csv, encoding="utf-8")), rows)


def _merged(client: Client, request: Request, form: Format, taken: Sequence[Any]) -> list[Column]:
    """Return the merged columns of what `_taken` returned; for errors see `sample_columns`."""
    options = request.read.columns
    given = {options.source(name) or name: kind for name, kind in request.table_options.columns.items()}
    if form.by_schema:
        return MESSAGES[form.name].columns(form, given)
    if not form.is_text:
        return merge(client, taken, given)
    return merged(client, request, form, taken, given)


def typed_columns(form: Format, content: Content) -> list[Column]:
    """Return the columns that an object of a format with types states, or the first member of an archive.

    Raises LoadObjectError.
    """
    if content.archive:
        return next(columns_of_members(form, content))
    if found := TYPED[form.name].columns(content):
        return found
    raise LoadObjectError(NO_COLUMNS)


def columns_of_members(form: Format, content: Content) -> Iterator[list[Column]]:
    """Yield the columns of each member of an archive. Raises LoadObjectError."""
    for member in members_of(content):
        with about_member(member.name):
            yield typed_columns(form, member)


def whole_columns(client: Client, request: Request, form: Format, content: Content) -> list[Column]:
    """Return the columns that every row of a text object shows. Raises LoadObjectError."""
    return larger_columns(client, request, form, content, [])


def larger_columns(
    client: Client, request: Request, form: Format, content: Content, others: Sequence[Content]
) -> list[Column]:
    """Return the columns of every row of a text object, and of samples of others. Raises LoadObjectError."""
    if not form.is_native:  # a row may end within a character
        return sample_columns(client, request, form, [content, *others])
    refuse_encoding(content.sample(HEAD), form)
    root = shown_in(request, form, (raw for _, raw in TEXTS[form.name].records(content.plain(), form)))
    if root is None:
        raise NoRowsError("it has no row")
    for other in others:
        with contextlib.suppress(LoadObjectError):  # its own load states why
            if (found := _taken(request, form, other)) is not None:
                root.merge(found)
    return columns_at(client, request, form, root, {})
