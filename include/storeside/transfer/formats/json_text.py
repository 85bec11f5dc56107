"""JSON Lines, arrays of JSON objects, and documents of several lines."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.encoding import refuse_encoding
from storeside.transfer.formats.text_columns import Place, columns_of_json
from storeside.transfer.formats.text_rows import Record, documents, has_unnamed, json_rows
from storeside.transfer.objects.content import Content
from storeside.transfer.request.known_formats import is_array
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import ReadOptions


class JsonText:
    """Documents of JSON, each of which is a row."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return settings with which ClickHouse leaves out no part of a document."""
        return {
            "input_format_json_ignore_unknown_keys_in_named_tuple": 0,
            "input_format_json_ignore_unnecessary_fields": 0,  # parse fields after the last known one
            "input_format_json_read_bools_as_numbers": 0,
        }

    def headers(self, form: Format) -> int:
        """Return 0, as each document is a row."""
        return 0

    def records(self, file: Any, form: Format, *, cut: bool = False) -> Iterator[Record]:
        """Yield the documents, also those of an array; a field without a name gets the name `UNNAMED`."""
        return json_rows(file, joined=form.joined)

    def sample(self, sample: bytes, form: Format, *, is_whole: bool = False) -> list[bytes]:
        """Return the documents of a sample, which may end within an array."""
        refuse_encoding(sample, form)
        rows = []
        try:
            for _, raw in self.records(io.BytesIO(sample), form):
                rows.append(raw)
        except LoadObjectError:
            if not rows or not (form.joined or is_array(sample)):
                raise
        return rows

    def shown(self, rows: Iterable[bytes], form: Format, read: ReadOptions, *, skips_bad: bool) -> Place:
        """Return what documents show of the columns."""
        return columns_of_json(
            rows, is_strict=read.strict_json, skips_bad=skips_bad, deep=read.nested != "string"
        )  # fmt: skip

    def is_untidy(self, file: Any, form: Format) -> bool:
        """Return whether a field has no name."""
        return has_unnamed(file)

    def line_of(self, file: Any, form: Format, row: int) -> tuple[int, bool]:
        """Return the first line of a document."""
        return next((line for number, line in documents(file) if number == row), 0), True

    def refuse_lost_rows(self, content: Content, form: Format) -> None:
        """Do nothing: ClickHouse refuses a text without documents."""

    def check_beginning(self, sample: bytes, form: Format) -> None:
        """Do nothing: no beginning of JSON explains a failure."""
