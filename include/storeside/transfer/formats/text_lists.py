"""The types of lists and maps in CSV: those that ClickHouse infers, if the rules in `text_types` agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import is_transient
from storeside.transfer.base.schema import is_nested
from storeside.transfer.formats.text_types import ANY, held, type_of
from storeside.transfer.state.loads import LONG_STATEMENT
from storeside.transfer.types.conversion import CODE_IN_LIST

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_NUMBERS = re.compile(r"\b(?:U?Int\d+|Float64)\b")
_CODE_IN_LIST = re.compile(CODE_IN_LIST)
_QUOTED_IN_LIST = re.compile(r"'(?:[^'\\]|\\.?)*+(?:'|\Z)", re.DOTALL)
_NUMBER_IN_LIST = re.compile(r"[-.]?[0-9][-+.0-9eE]*")
_REST_OF_LIST = re.compile(r"(?:[\[\]{}(),:\s]|null|nan|-?inf(?:inity)?|true|false)*", re.IGNORECASE)
_LISTED = {
    "max_query_size": LONG_STATEMENT, "input_format_max_rows_to_read_for_schema_inference": 1 << 40,
    # ClickHouse 26.9 takes any text that it can guess a date from for a date.
    "input_format_try_infer_dates": 0, "input_format_try_infer_datetimes": 0,
}  # fmt: skip


def listed(client: Client, values: Sequence[str]) -> str:
    """Return the type that ClickHouse infers for lists or maps in CSV, with a type of numbers that holds all of them.

    Text if they have no type, if a number is a code, or if no type holds all numbers.
    """
    if any(_CODE_IN_LIST.search(value) for value in values):
        return "Nullable(String)"
    rows = "".join('"' + value.replace('"', '""') + '"\n' for value in values)
    text = literal(rows)
    try:
        row = first_row(client.query(f"DESCRIBE TABLE format(CSV, {text})", settings=_LISTED))
    except DatabaseError as e:
        if is_transient(e):
            raise
        return "Nullable(String)"
    return _holding(str(row[1]), values) if is_nested(row[1]) else "Nullable(String)"


def _holding(kind: str, values: Sequence[str]) -> str:
    """Return the type of lists or maps with the type of numbers that holds those in all values; text if none does."""
    if not _NUMBERS.search(kind):
        return kind
    numbers: set[str] = set()
    for value in values:
        text = _QUOTED_IN_LIST.sub("", value)
        if not _REST_OF_LIST.fullmatch(_NUMBER_IN_LIST.sub("", text)):  # ClickHouse 26.9 takes [.] for a number
            return "Nullable(String)"
        numbers.update(_NUMBER_IN_LIST.findall(text))
    if not numbers:
        return kind
    types = reduce(and_, map(held, numbers), ANY)
    holding = type_of(types)
    return _NUMBERS.sub(holding, kind) if _NUMBERS.fullmatch(holding) else "Nullable(String)"
