"""Recognises the format of sampled objects."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.objects.content import Content
from storeside.transfer.request.known_formats import KNOWN
from storeside.transfer.request.object_format import Csv, Format, format_of
from storeside.transfer.request.request import Request

log = logging.getLogger(__name__)

# The errors of objects that may be readable later, by key.
Passing = Mapping[str, LoadObjectError]

# Bytes of a sample that show the format.
HEAD = 1 << 12


class SamplesError(TransferInputError):
    """No sampled object shows a format or columns: all are damaged, archived or denied, for example. Others may.

    `passing` has the errors of those that may be readable later, by key.
    """

    def __init__(self, message: str, passing: Passing | None = None) -> None:
        super().__init__(message)
        self.passing = passing or {}


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
            if head := content.sample(HEAD):
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
