"""Options of a transfer, grouped by purpose, for operators, the command line, forms and events.

An operator's options may contain templates until a task renders them. So an options object checks nothing when it is
created; a `Request` calls its `check`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv, MessageSchema, Ranges
from storeside.transfer.request.table_keys import Expression, key, ttl, unquoted
from storeside.transfer.request.template import Template
from storeside.transfer.request.upsert import NO_UPSERT, Upsert

# Optional columns that a load adds to the columns of the data, with their types.
SYSTEM_COLUMNS = {
    "_object": "LowCardinality(String)",
    "_row_number": "UInt64",
    "_version": "LowCardinality(String)",
    "_loaded_at": "DateTime64(3)",
}
REST = "_rest"
# The columns that loads create and fill, with their types: a column with such a name and another type has data.
OWN_COLUMNS = {**SYSTEM_COLUMNS, REST: "Map(String, String)"}
# Columns of tables that a load writes itself: see `table.LOAD_ID` and `upsert.DELETED`.
HIDDEN_COLUMNS = ("_storeside_load", "_storeside_deleted", REST)
# Choices of `ReadOptions`, and what a load does with rows that break expectations.
Nested = Literal["tuple", "json", "string"]
OnNullNested = Literal["refuse", "empty"]
Codes = Literal["auto", "refuse", "number"]
OnFailedExpectations = Literal["fail", "quarantine"]
# Engines of destinations. Others change rows when they merge parts, so that a row's load is lost.
ENGINES = (
    *("MergeTree", "ReplicatedMergeTree", "SharedMergeTree"),
    *("ReplacingMergeTree", "ReplicatedReplacingMergeTree", "SharedReplacingMergeTree"),
)
# `LoadLimits.ratio` applies to objects whose rows have more bytes than this.
_ANY_RATIO = 1 << 30
# Maximum bytes of all samples of a load, which the worker holds in memory.
_MOST_SAMPLED = 1 << 29
_DAY = 24 * 3600
# Arguments of an engine: the quoted paths of a replicated one, and a version column.
_ENGINE_ARGUMENTS = re.compile(r"\(\s*(?:(?:'[^'\\]*'|\w+)\s*(?:,\s*(?:'[^'\\]*'|\w+)\s*)*)?\)")
# A type's name and its arguments, after the quoted text in these was removed. Two hyphens begin a comment, in which
# ClickHouse counts no brackets.
_TYPE = re.compile(r"(?P<name>\w+)(?:\s*\((?:[\w\s(),.=:+]|-(?!-))*\))?")
# Words with an expression that ClickHouse accepts after the name of a column in the place of a type.
_DEFAULTS = ("ALIAS", "DEFAULT", "EPHEMERAL", "MATERIALIZED")


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise TransferInputError for a value that the option `name` does not allow."""
    if value not in choices:
        raise TransferInputError(f"{name} {value!r}: choose one of {', '.join(choices)}")


def require_numbers(prefix: str, options: ReadOptions | LoadLimits | Batches) -> None:
    """Raise TransferInputError for a number of `options` outside its range; messages name it with the `prefix`."""
    for name, (least, most) in options.RANGES.items():
        require_number(f"{prefix}{name}", getattr(options, name), least, most)


def require_number(name: str, value: float, least: int, most: int) -> None:
    """Raise TransferInputError for a number outside a range, and for NaN."""
    if not value >= least:
        raise TransferInputError(f"{name} {value}: needs to be {least} or more")
    if value > most:
        raise TransferInputError(f"{name} {value}: needs to be {most} or less")


def require_engine(engine: str, table: str) -> None:
    """Raise TransferInputError for a table engine that changes rows, so that a row's load is lost."""
    if engine not in ENGINES:
        raise TransferInputError(
            f"{table} has the engine {engine}, which changes rows: load into a MergeTree or ReplacingMergeTree, and"
            " let a materialized view fill the other table"
        )


@dataclass(frozen=True)
class ReadOptions:
    """How objects are read, and how the columns of a new table are inferred.

    The worker holds all samples in memory, together at most 512 MiB.

    :param csv: dialect of CSV objects
    :param nested: type of JSON objects within JSON Lines: ``tuple``, ``json`` or ``string``
    :param on_null_nested: what happens to an object with a NULL list, map or struct that its column cannot hold:
        ``refuse`` fails the object, ``empty`` loads ``[]``, ``{}`` or a tuple of NULLs
    :param codes: for text in CSV that a column of numbers does not keep, such as ``02134``, ``+49`` or ``12E4``:
        ``refuse`` fails the object, ``number`` loads the number; ``auto`` refuses it in columns whose types a load
        has inferred
    :param strict_json: check JSON Lines against RFC 8259, which ClickHouse's parser does not do
    :param joined: whether JSON documents follow one another without line feeds, as Firehose writes them; the worker
        pushes the objects
    :param max_bad_rows: maximum skipped or kept rows per object; an object with more fails; at most 10 million
    :param sample_objects: number of objects sampled to infer format and columns, at most 1000
    :param sample_bytes: bytes read of each sampled text object, at most 64 MiB; up to 16 times as many without a row
    :param partition_columns: columns whose values are in the keys, such as ``("year",)`` for ``year=2024/x.csv``
    :param columns: `Columns`: columns to select, rename, cast, mask and compute, and the rows to load
    :param schema: `MessageSchema` of Protobuf and MsgPack objects
    """

    csv: Csv = field(default_factory=Csv)
    nested: Nested | Template = "tuple"
    on_null_nested: OnNullNested | Template = "refuse"
    strict_json: bool = True
    max_bad_rows: int = 1000
    sample_objects: int = 5
    sample_bytes: int = 1 << 18
    partition_columns: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns)
    schema: MessageSchema = field(default_factory=MessageSchema)
    codes: Codes | Template = "auto"
    joined: bool = False

    def __post_init__(self) -> None:
        given = self.partition_columns  # a form has one text with commas, JSON has only lists
        texts = [given] if isinstance(given, str) else given
        names = (name.strip() for text in texts for name in text.split(","))
        object.__setattr__(self, "partition_columns", tuple(filter(None, names)))

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "nested": get_args(Nested), "on_null_nested": get_args(OnNullNested), "codes": get_args(Codes),
    }  # fmt: skip
    RANGES: ClassVar[Ranges] = {
        "max_bad_rows": (0, 10**7), "sample_objects": (1, 1000), "sample_bytes": (1, 1 << 26),
    }  # fmt: skip

    @property
    def keeps_codes(self) -> bool | None:
        """Whether columns of numbers refuse codes; None if only those do that were inferred from text."""
        return {"auto": None, "refuse": True, "number": False}[self.codes]

    def check(self) -> None:
        """Raise TransferInputError for invalid options."""
        for name, choices in self.CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        require_numbers("read.", self)
        if self.sample_objects * self.sample_bytes > _MOST_SAMPLED:
            raise TransferInputError(
                f"{self.sample_objects} samples of {self.sample_bytes} bytes: the worker holds all samples in memory,"
                f" at most {_MOST_SAMPLED} bytes: lower read.sample_objects or read.sample_bytes"
            )
        self.csv.check()
        for name in self.partition_columns:
            if "/" in name or name in SYSTEM_COLUMNS or self.partition_columns.count(name) > 1:
                raise TransferInputError(
                    f"partition_columns {name!r}: write each name once, without '/', and not a system column's"
                )
        self.columns.check((*SYSTEM_COLUMNS, *HIDDEN_COLUMNS, *self.partition_columns))
        require_types(self.columns.cast)


@dataclass(frozen=True)
class TableOptions:
    """How a new table is created, and which columns a load adds to the columns of the data.

    Users enter `order_by` and `partition_by` in forms, so a text may contain only columns and some functions of a
    column. Any other expression must be an `Expression`. With `cluster`, the new table is Distributed, and the other
    options describe the table ``<table>_local`` on each shard.

    :param columns: ClickHouse types by column; these columns are not inferred
    :param system_columns: any of ``_object``, ``_row_number`` (from 0), ``_version``, ``_loaded_at``
    :param engine: ``MergeTree``, ``ReplacingMergeTree``, or a replicated variant
    :param order_by: ORDER BY, such as ``(city, taken_at)``
    :param partition_by: PARTITION BY, such as ``toYYYYMM(taken_at)``
    :param ttl: TTL, such as ``taken_at + INTERVAL 30 DAY``
    :param cluster: ClickHouse's name of a cluster of shards
    :param sharding_key: the column, or function of a column, that decides the shard of a row, such as
        ``cityHash64(city)``
    :param upsert: the argument `upsert` of operators sets it; it decides `order_by` and the engine's arguments
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    system_columns: tuple[str, ...] = ()
    engine: str = "MergeTree"
    order_by: str | Expression = "tuple()"
    partition_by: str | Expression = ""
    ttl: str | Expression = ""
    cluster: str = ""
    sharding_key: str | Expression = ""
    upsert: Upsert = NO_UPSERT

    def __post_init__(self) -> None:
        object.__setattr__(self, "system_columns", tuple(self.system_columns))  # JSON has only lists

    @property
    def sorting_key(self) -> str:
        """The SQL between the parentheses of ORDER BY. All clauses raise TransferInputError."""
        return key("order_by", self.order_by)

    @property
    def partition_key(self) -> str:
        """The SQL between the parentheses of PARTITION BY; empty without partitions."""
        return key("partition_by", self.partition_by)

    @property
    def division(self) -> str:
        """The SQL of the sharding key; empty without one."""
        return key("sharding_key", self.sharding_key)

    @property
    def lifetime(self) -> str:
        """The SQL of TTL; empty without one."""
        return ttl(self.ttl)

    def check(self) -> None:
        """Raise TransferInputError for options that cannot define a table."""
        engine, bracket, arguments = self.engine.partition("(")
        require_engine(engine, "a new table")
        if bracket and not _ENGINE_ARGUMENTS.fullmatch(bracket + arguments):
            raise TransferInputError(f"engine {self.engine!r}: write its arguments as columns and quoted text")
        require_types(self.columns)
        _ = self.sorting_key, self.partition_key, self.lifetime  # each raises for invalid text
        if bool(self.division) != bool(self.cluster):
            raise TransferInputError("a Distributed table needs both `cluster` and `sharding_key`: set both, or none")
        unknown = set(self.system_columns) - set(SYSTEM_COLUMNS)
        if unknown:
            raise TransferInputError(
                f"system columns {', '.join(sorted(unknown))}: choose from {', '.join(SYSTEM_COLUMNS)}"
            )


def refuse_own(names: Collection[str], own: Iterable[str]) -> None:
    """Raise LoadObjectError if an object's columns have the name of a column that the load fills itself."""
    for name in own:
        if name in names:
            remedy = f"rename it with rename={{{name!r}: 'other'}}, or leave {name} out of system_columns"
            remedy = "choose another on_drift than 'rest'" if name == REST else remedy
            raise LoadObjectError(f"column {name!r} has the name of a column that the load adds itself: {remedy}")


def require_types(columns: Mapping[str, str]) -> None:
    """Raise TransferInputError for a text that is no type of a column."""
    for name, text in columns.items():
        if not _is_type(text):
            raise TransferInputError(f"column {name!r} has the type {text!r}: write a type, such as Nullable(Date)")


def _is_type(text: str) -> bool:
    """Return whether a text is one type of ClickHouse and nothing else, such as a default expression."""
    bare = unquoted(text.strip(), "=")
    depths = list(itertools.accumulate((c == "(") - (c == ")") for c in bare))
    closed = [n for n, depth in enumerate(depths) if not depth and bare[n] == ")"]
    found = _TYPE.fullmatch(bare)
    if found is None or found["name"].upper() in _DEFAULTS:
        return False
    return closed == [len(bare) - 1] if "(" in bare else True


@dataclass(frozen=True)
class LoadLimits:
    """Limits of one object: an object that exceeds a limit fails alone, and the others are loaded.

    For small objects that one statement reads, the limits in bytes apply to their sum. A statement uses at most half
    of the server's memory, unless the user's profile has another limit.

    :param bytes: bytes of an object's rows in ClickHouse, and of its content, uncompressed; at most 1 PiB
    :param ratio: bytes of an object's rows divided by its size, at most 1 million; below 1 GiB of rows any ratio is
        allowed
    :param rows: rows of an object, at most 10^13
    :param columns: columns of a table that is created or extended, at most 100,000
    :param seconds: time of one statement, which may read several small objects; at most 30 days
    """

    bytes: int = 1 << 40
    ratio: int = 1000
    rows: int = 10**10
    columns: int = 10_000
    seconds: int = 6 * 3600

    RANGES: ClassVar[Ranges] = {
        "bytes": (1, 1 << 50), "ratio": (1, 10**6), "rows": (1, 10**13), "columns": (1, 10**5),
        "seconds": (1, 30 * _DAY),
    }  # fmt: skip

    def check(self) -> None:
        """Raise TransferInputError for numbers outside their ranges."""
        require_numbers("limits.", self)

    def bytes_of(self, size: int) -> int:
        """Return the maximum number of bytes for the rows of objects of `size` bytes."""
        return min(self.bytes, max(self.ratio * size, _ANY_RATIO))


@dataclass(frozen=True)
class Batches:
    """Sizes of batches: at most `bytes` and `objects` per batch, and `parallel` batches, each a thread, at a time.

    If the worker sends the objects, a batch has at most 250.
    """

    bytes: int = 1 << 30
    objects: int = 2500
    parallel: int = 2

    RANGES: ClassVar[Ranges] = {"bytes": (1, 1 << 44), "objects": (1, 100_000), "parallel": (1, 64)}

    def check(self) -> None:
        """Raise TransferInputError for numbers outside their ranges."""
        require_numbers("batches.", self)


@dataclass(frozen=True)
class Expectations:
    """A Great Expectations suite that checks staged rows before they are published.

    :param suite: ``package.module:function``, which returns an ExpectationSuite, or the path of a YAML or JSON file
        in the format of Great Expectations, or the content of such a file as a mapping; empty checks nothing. A
        function's module is imported: never take its name from a form that no list restricts
    :param on_failed: when rows break expectations of severity critical: ``fail`` publishes nothing of the load,
        ``quarantine`` moves these rows to ``<table>_quarantine`` and publishes the others
    :param by_object: with ``fail``, fail the objects with these rows, and publish the others, as loads by events do
    :param key_column: the column whose value names a row in examples of the verdict; empty for the row's object
    """

    suite: str | Mapping[str, Any] = ""
    on_failed: OnFailedExpectations | Template = "fail"
    by_object: bool = False
    key_column: str = ""

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"on_failed": get_args(OnFailedExpectations)}

    @property
    def forbid_all(self) -> bool:
        """Whether the load is checked as a whole, because bad rows keep all of it from being published."""
        return bool(self.suite) and self.on_failed == "fail" and not self.by_object

    def check(self) -> None:
        """Raise BadInput for invalid options."""
        require_choice("on_failed_expectations", self.on_failed, self.CHOICES["on_failed"])
        if self.suite:
            from storeside.quality.given import check_suite, load_suite

            if isinstance(self.suite, str):
                check_suite(self.suite)
            else:
                load_suite(self.suite)
