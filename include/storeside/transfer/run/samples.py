"""Infers the format of sampled objects, and the columns of a table for them."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import NO_COLUMNS, LoadObjectError, TransferInputError, is_transient, plain
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.csv_text import FIRST_ROW
from storeside.transfer.formats.encoding import refuse_encoding
from storeside.transfer.formats.registry import MESSAGES, TEXTS, TYPED
from storeside.transfer.formats.text_columns import Place
from storeside.transfer.formats.text_lines import with_line
from storeside.transfer.formats.text_lists import listed
from storeside.transfer.formats.text_rows import LONGEST_ROW
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.members import about_member, members_of
from storeside.transfer.request.known_formats import KNOWN
from storeside.transfer.request.object_format import Csv, Format, format_of
from storeside.transfer.request.request import Request
from storeside.transfer.staging.private import quiet
from storeside.transfer.tables.storable import refuse_unstorable
from storeside.transfer.types.inference import NoTypeError, merge

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The errors of objects that may be readable later, by key.
Passing = Mapping[str, LoadObjectError]

_HEAD = 1 << 12
# How many times as large as asked for a sample of text becomes, one after the other, until it has a row.
_GROWTHS = (1, 4, 16)


def recognise(request: Request, contents: Sequence[Content]) -> tuple[Format, list[Content]]:
    """Return the request's format, or that of most objects, and the objects with that format.

    The other objects fail when they are loaded. Raises TransferInputError when the objects show no format.
    """
    if request.has_kind("messages"):  # no content shows these
        return request.form(request.format), [*contents]
    found, blank, reasons, passing = _found(request, contents)
    name = request.format
    if name == "auto":
        if not found:
            key = next(iter(reasons or (content.key for content in contents)), "")
            such, why = f", such as {key!r}" if key else "", reasons.get(key, "")
            if why and not why.endswith("set `format`"):
                raise SamplesError(f"no sampled object can be read{such}: {why}", passing)
            raise SamplesError(f"no sampled object shows its format{such}: set `format`", passing)
        name = Counter(form for _, form in found).most_common(1)[0][0]
    if name == "tsv" and request.format == "auto" and request.read.csv.delimiter != Csv.delimiter:
        name = "csv"  # with the delimiter of the request
    wanted = request.form(name)
    is_text = wanted.is_text
    fitting = [content for content, form in found if form == name or (is_text and KNOWN[form].is_text)]
    fitting += blank if is_text else []
    reasons |= {content.key: f"it is {KNOWN[form].title} file" for content, form in found}
    if reasons and not fitting:
        key, reason = next(iter(reasons.items()))
        raise SamplesError(f"no sampled object can be read as {wanted.name}, such as {key!r}: {reason}", passing)
    return wanted, fitting


def _found(
    request: Request, contents: Sequence[Content]
) -> tuple[list[tuple[Content, str]], list[Content], dict[str, str], Passing]:
    """Return the objects with their formats, those without content, and why the others cannot be read, by key.

    The errors of those that may be readable later are the last part.
    """
    found: list[tuple[Content, str]] = []
    blank, reasons = [], {}
    passing: dict[str, LoadObjectError] = {}
    for content in contents:
        try:
            if head := content.sample(_HEAD):
                found.append((content, format_of(content.title, head)))
            else:
                blank.append(content)
        except LoadObjectError as e:
            reasons[content.key] = str(e)
            passing |= {} if e.kind.is_final else {content.key: e}
        except TransferInputError as e:
            if request.format == "auto":
                reasons[content.key] = str(e)
            else:
                found.append((content, request.format))
    for key, reason in reasons.items():
        log.warning("%r cannot be sampled: %s", key, reason)
    if passing and len(passing) == len(contents):
        key, error = next(iter(passing.items()))
        raise SamplesError(f"no sampled object can be read, such as {key!r}: {error}", passing)
    return found, blank, reasons, passing


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
    return _of_text(request, replace(form, csv=replace(form.csv, encoding="utf-8")), rows)


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


def _of_text(request: Request, form: Format, rows: Iterable[bytes]) -> Place | None:
    """Return what the rows of a text show of its columns; None if there are none. Raises LoadObjectError."""
    read, found, rows = request.read, TEXTS[form.name], iter(rows)
    first = [*itertools.islice(rows, found.headers(form) + 1)]
    if len(first) <= found.headers(form):
        return None
    with quiet(bool(read.columns.mask)):
        return found.shown(itertools.chain(first, rows), form, read, skips_bad=request.on_bad_rows != "fail")


def _merged(client: Client, request: Request, form: Format, taken: Sequence[Any]) -> list[Column]:
    """Return the merged columns of what `_taken` returned; for errors see `sample_columns`."""
    options = request.read.columns
    given = {options.source(name) or name: kind for name, kind in request.table_options.columns.items()}
    if form.by_schema:
        return MESSAGES[form.name].columns(form, given)
    if not form.is_text:
        return merge(client, taken, given)
    root, found = Place(), [place for place in taken if place is not None]
    if not found:
        raise NoRowsError(f"no sampled object has a row: create {request.table} yourself")
    for place in found:
        root.merge(place)
    if not root.fields:
        raise NoRowsError(f"no sampled object has a row with a field: create {request.table} yourself")
    return _columns_at(client, request, form, root, given)


def _columns_at(
    client: Client, request: Request, form: Format, root: Place, given: Mapping[str, str]
) -> list[Column]:
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


class SamplesError(TransferInputError):
    """No sampled object shows a format or columns: all are damaged, archived or denied, for example. Others may.

    `passing` has the errors of those that may be readable later, by key.
    """

    def __init__(self, message: str, passing: Passing | None = None) -> None:
        super().__init__(message)
        self.passing = passing or {}


class NoRowsError(SamplesError):
    """No sampled object has a row that could show columns."""


def whole_columns(client: Client, request: Request, form: Format, content: Content) -> list[Column]:
    """Return the columns that every row of a text object shows. Raises LoadObjectError."""
    return larger_columns(client, request, form, content, [])


def larger_columns(
    client: Client, request: Request, form: Format, content: Content, others: Sequence[Content]
) -> list[Column]:
    """Return the columns of every row of a text object, and of samples of others. Raises LoadObjectError."""
    if not form.is_native:  # a row may end within a character
        return sample_columns(client, request, form, [content, *others])
    refuse_encoding(content.sample(_HEAD), form)
    root = _of_text(request, form, (raw for _, raw in TEXTS[form.name].records(content.plain(), form)))
    if root is None:
        raise NoRowsError("it has no row")
    for other in others:
        with contextlib.suppress(LoadObjectError):  # its own load states why
            if (found := _taken(request, form, other)) is not None:
                root.merge(found)
    return _columns_at(client, request, form, root, {})
