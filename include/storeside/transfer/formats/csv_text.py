"""CSV, and CSV with tabs: the rows of objects, and the columns that rows show."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.encoding import in_utf8, refuse_encoding
from storeside.transfer.formats.text_columns import NO_HEADER, Place, columns_of_csv
from storeside.transfer.formats.text_rows import Record, csv_lines, fields, has_faults
from storeside.transfer.formats.text_types import TEXT, held
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.csv_quotes import is_open
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import ReadOptions

_BLANK = b" \t\r\n"
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
FIRST_ROW = "its first row does not end within a sample of {} bytes: {}"


class CsvText:
    """Rows of fields, which show no types, after a header unless the request names the columns."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return the settings for the dialect."""
        settings: dict[str, Any] = {
            "cast_string_to_date_time_mode": "best_effort",  # as `date_time_input_format`: see `reading`
            "format_csv_delimiter": form.csv.delimiter,
            "input_format_csv_allow_whitespace_or_tab_as_delimiter": int(form.csv.delimiter == "\t"),
            "input_format_csv_skip_first_lines": form.csv.skip_rows,
            "input_format_csv_detect_header": 0,
            "input_format_csv_allow_variable_number_of_columns": 0,
            "input_format_csv_use_default_on_bad_values": 0,
            "input_format_csv_trim_whitespaces": 0,  # for strings and names; spaces around numbers are skipped
        }
        if form.csv.null_values:
            settings["format_csv_null_representation"] = form.csv.null_values[0]
        return settings

    def headers(self, form: Format) -> int:
        """Return 1 for the header."""
        return 0 if form.csv.names else 1

    def records(self, file: Any, form: Format, *, cut: bool = False) -> Iterator[Record]:
        """Yield the rows; the header has number 0.

        A line feed within quotes does not end a row. Blank lines are left out, except after the header of CSV with
        one column, where they are empty values. A column without a name gets the name `UNNAMED`.
        """
        return ((number, record) for number, _, record in csv_lines(file, form.csv, cut=cut))

    def sample(self, sample: bytes, form: Format, *, is_whole: bool = False) -> list[bytes]:
        """Return the rows in UTF-8. Raises LoadObjectError if the sample ends within its first row."""
        refuse_encoding(sample, form)
        if not form.is_native:
            sample = in_utf8(sample, form.csv)
            form = replace(form, csv=replace(form.csv, encoding="utf-8"))
        rows = [raw for _, raw in self.records(io.BytesIO(sample), form, cut=True)]
        is_cut = any(n >= len(rows) for n, _ in self.records(io.BytesIO(sample), form))
        if len(rows) <= self.headers(form):
            if is_cut:
                raise LoadObjectError(FIRST_ROW.format(len(sample), "close its quotes, or increase `sample_bytes`"))
            _refuse_lost_rows(sample, rows, form)
        return [raw for _, raw in self.records(io.BytesIO(sample), form)] if is_whole and is_cut else rows

    def shown(self, rows: Iterable[bytes], form: Format, read: ReadOptions, *, skips_bad: bool) -> Place:
        """Return what rows in UTF-8 show of the columns; the first is the header."""
        return columns_of_csv(rows, form, skips_bad=skips_bad)

    def is_untidy(self, file: Any, form: Format) -> bool:
        """Return whether there are blank lines, or columns without names."""
        return has_faults(file, form.csv)

    def line_of(self, file: Any, form: Format, row: int) -> tuple[int, bool]:
        """Return the first line of a row, and whether its quotes are closed."""
        number = row + self.headers(form)
        for found, line, raw in csv_lines(file, form.csv):
            if found == number:
                return line, not is_open(raw, form.csv)
        return 0, True

    def refuse_lost_rows(self, content: Content, form: Format) -> None:
        """Raise LoadObjectError if the object is no CSV without rows."""
        self.sample(content.sample(CHUNK), form)

    def check_beginning(self, sample: bytes, form: Format) -> None:
        """Raise LoadObjectError if the first row is Excel's statement of the delimiter."""
        if form.is_native:
            next(self.records(io.BytesIO(sample), form, cut=True), None)


def _refuse_lost_rows(text: bytes, rows: Sequence[bytes], form: Format) -> None:
    """Raise LoadObjectError for CSV in UTF-8 without a row of data if its only line cannot be a header."""
    line = text.strip(_BLANK)
    if b"\r" in line and b"\n" not in line:
        raise LoadObjectError("its rows end with carriage returns alone: convert them to line feeds")
    for row in rows:
        if row.lstrip(_BLANK).startswith(b"<"):
            raise LoadObjectError("its only row is XML or HTML, such as an error of a server: upload it again")
        if _BINARY.search(row):
            raise LoadObjectError(
                "its only row has control characters, so it is not CSV in UTF-8: set `format` or csv.encoding to that"
                " of the object"
            )
        values = [value for value in fields(row, form.csv) if value.strip()]
        if not form.csv.names and values and all(held(value.strip()) != TEXT for value in values):
            raise LoadObjectError(NO_HEADER.format(count=len(values)))
