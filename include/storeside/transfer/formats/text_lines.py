"""Adds the line to a reason that states a row of a text object; editors count lines from 1."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from storeside.transfer.base.errors import TransferError
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.request.object_format import Format

# Errors of invalid JSON state row and character.
_ROW = re.compile(r"^row (\d{1,18})\b(?! is not JSON)|: \(row (\d{1,18})\)")


def with_line(reason: str, opened: Callable[[], Any], form: Format) -> str:
    """Return a reason with the line on which its row begins, or about the quote that is not closed in that row.

    `opened` returns the decompressed text, which is read up to the row. A reason without a row is unchanged.
    """
    if not (form.is_text and form.is_native and not form.joined and (found := _ROW.search(reason))):
        return reason
    row = int(next(filter(None, found.groups())))
    try:
        line, is_closed = TEXTS[form.name].line_of(opened(), form, row)
    except TransferError:  # the reason tells more
        return reason
    if not line:
        return reason
    if not is_closed:
        return (
            f"row {row} (line {line}) has a quote that is not closed: close it, or set csv.quote to an empty text if"
            " quotes are parts of values"
        )
    return f"{reason} (line {line})"
