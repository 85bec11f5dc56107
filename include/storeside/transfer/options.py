"""Options of a transfer, grouped by purpose; operators, command line, forms and events share them.

An operator's options may contain templates until a task renders them, so an options object checks nothing when it is
created: a `Request` calls its `check`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from storeside.transfer.errors import TransferInputError
from storeside.transfer.formats import Csv

# Optional columns in addition to those of the data, with their types.
SYSTEM_COLUMNS = {
    "_object": "LowCardinality(String)",
    "_row_number": "UInt64",
    "_version": "LowCardinality(String)",
    "_loaded_at": "DateTime64(3)",
}
# The other engines change rows when they merge parts, and lose track of a row's load.
_ENGINE = re.compile(r"(Replicated|Shared)?(Replacing)?MergeTree")
# Strings and quoted names, which are removed before the check whether the text could end its expression.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_EXPRESSION = re.compile(r"(?:[\w\s(),.+*%=<>!:?|\[\]]|-(?!-)|/(?!\*))*")


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise TransferInputError for a value that the option `name` does not allow."""
    if value not in choices:
        raise TransferInputError(f"{name} {value!r}: choose one of {', '.join(choices)}")


def require_positive(**values: float) -> None:
    """Raise TransferInputError for a number that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise TransferInputError(f"{name} {value}: needs to be 1 or more")


def require_engine(engine: str, table: str) -> None:
    """Raise TransferInputError for a table engine that loses track of a row's load."""
    if not _ENGINE.fullmatch(engine):
        raise TransferInputError(
            f"{table} is of engine {engine}: exactly-once needs a MergeTree or ReplacingMergeTree, whose rows stay"
            " what they were; load into one, and let a materialized view of it do the rest"
        )


@dataclass(frozen=True)
class ReadOptions:
    """How objects are read, and how the columns of a new table are inferred.

    :param csv: dialect of CSV objects
    :param nested: type of JSON objects within JSON Lines: ``tuple``, ``json`` or ``string``
    :param on_null_nested: what happens to an object with a NULL list, map or struct that its column cannot hold:
        ``refuse`` fails the object, ``empty`` loads ``[]``, ``{}`` or a tuple of NULLs
    :param strict_json: check JSON Lines against RFC 8259, which ClickHouse's parser does not do
    :param max_bad_rows: maximum skipped rows per object; an object with more fails
    :param sample_objects: number of objects sampled to infer format and columns
    :param sample_bytes: bytes read of each sampled text object
    """

    csv: Csv = field(default_factory=Csv)
    nested: str = "tuple"
    on_null_nested: str = "refuse"
    strict_json: bool = True
    max_bad_rows: int = 1000
    sample_objects: int = 5
    sample_bytes: int = 1 << 18

    CHOICES = {"nested": ("tuple", "json", "string"), "on_null_nested": ("refuse", "empty")}  # noqa: RUF012

    def check(self) -> None:
        """Raise TransferInputError for invalid options."""
        for name, choices in self.CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        require_positive(sample_objects=self.sample_objects, sample_bytes=self.sample_bytes)
        self.csv.check()


@dataclass(frozen=True)
class TableOptions:
    """How a new table is created, and which columns it has in addition to the data's.

    Users enter `order_by` and `partition_by` in forms, so each must be exactly one expression.

    :param columns: ClickHouse types by column; these columns are not inferred
    :param system_columns: any of ``_object``, ``_row_number`` (from 0), ``_version``, ``_loaded_at``
    :param engine: ``MergeTree`` or ``ReplacingMergeTree``, also replicated
    :param order_by: ORDER BY, such as ``(city, taken_at)``
    :param partition_by: PARTITION BY, such as ``toYYYYMM(taken_at)``
    :param ttl: TTL
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    system_columns: tuple[str, ...] = ()
    engine: str = "MergeTree"
    order_by: str = "tuple()"
    partition_by: str = ""
    ttl: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "system_columns", tuple(self.system_columns))  # JSON turned it into a list

    def check(self) -> None:
        """Raise TransferInputError for options that cannot define a table."""
        require_engine(self.engine.partition("(")[0], "a new table")
        for name in ("order_by", "partition_by"):
            if not _is_expression(text := getattr(self, name)):
                raise TransferInputError(
                    f"{name} {text!r}: write one expression of columns and functions, such as (city, day)"
                )
        unknown = set(self.system_columns) - set(SYSTEM_COLUMNS)
        if unknown:
            raise TransferInputError(
                f"system columns {', '.join(sorted(unknown))}: there are {', '.join(SYSTEM_COLUMNS)}"
            )


def _is_expression(text: str) -> bool:
    """Tell whether a text stays within parentheses around it."""
    bare = _QUOTED.sub("_", text)
    depths = list(itertools.accumulate((c == "(") - (c == ")") for c in bare))
    return _EXPRESSION.fullmatch(bare) is not None and min(depths, default=0) >= 0 and not (depths and depths[-1])


@dataclass(frozen=True)
class Batches:
    """Sizes of batches: at most `bytes` and `objects` per batch, `parallel` batches at a time."""

    bytes: int = 1 << 30
    objects: int = 2500
    parallel: int = 2

    def check(self) -> None:
        """Raise TransferInputError for numbers below 1."""
        require_positive(batch_bytes=self.bytes, batch_objects=self.objects, parallel=self.parallel)
