"""The formats of objects: how ClickHouse reads each format, and how a load recognizes it."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.known_formats import (
    KNOWN,
    Facts,
    begun_format,
    format_by_extension,
    has_kind,
    typed_format,
)

# Formats of tables, whose metadata state of which Parquet files a snapshot consists.
Lake = Literal["iceberg", "delta"]
LAKES: tuple[Lake, ...] = get_args(Lake)

# First bytes: the specifications of gzip (RFC 1952), Zstandard (RFC 8878), xz, bzip2, and the two framings of snappy
# and LZ4.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bz2",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\x04\x22\x4d\x18": "lz4",
}
_SUFFIX = {
    ".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".xz": "xz", ".lzma": "xz", ".bz2": "bz2",
    ".lz4": "lz4", ".snappy": "snappy", ".br": "br",
}  # fmt: skip
# Delimiters that ClickHouse's CSV does not accept.
_NOT_NATIVE = " \"'.UL"
# Encodings of names and of literals in Python's source. No object has them, and punycode takes quadratic time.
_NOT_OF_OBJECTS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
_LARGEST_SCHEMA = 32 << 10
# The least and the greatest value of each number of a group of options.
Ranges = Mapping[str, tuple[int, int]]


def _is_of_texts(encoding: str) -> bool:
    """Return whether Python knows an encoding, and objects can have it."""
    try:
        if codecs.lookup(encoding).name in _NOT_OF_OBJECTS:
            return False
        "".encode(encoding)  # it raises for codecs that are not of texts
    except LookupError:
        return False
    return True


@dataclass(frozen=True)
class Csv:
    """The dialect of CSV objects.

    If ClickHouse has no setting for a choice (a space as `delimiter`, `quote`, `escape`, several `null_values`,
    `true_values`, `timestamp_formats`, an `encoding` other than UTF-8), pyarrow parses the objects, and the worker
    pushes them.

    :param delimiter: one character between the fields of a row
    :param quote: one character around a field; empty if fields are never quoted
    :param escape: one character before a quote within a field; empty if quotes are doubled
    :param names: names of the columns, if objects have no header
    :param skip_rows: lines to leave out before the header
    :param null_values: unquoted texts that mean NULL
    :param true_values: texts that mean true
    :param false_values: texts that mean false
    :param timestamp_formats: strptime formats of times, besides ISO 8601; with ``%z`` in one of them, every date and
        time has an offset from UTC
    :param encoding: Python's name of the encoding
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    names: tuple[str, ...] = ()
    skip_rows: int = 0
    null_values: tuple[str, ...] = ("\\N",)
    true_values: tuple[str, ...] = ()
    false_values: tuple[str, ...] = ()
    timestamp_formats: tuple[str, ...] = ()
    encoding: str = "utf-8"

    RANGES: ClassVar[Ranges] = {"skip_rows": (0, 10**6)}

    def __post_init__(self) -> None:
        for name in ("names", "null_values", "true_values", "false_values", "timestamp_formats"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has only lists

    def check(self) -> None:
        """Raise TransferInputError for a dialect that cannot be read."""
        for name, most in (("delimiter", 1), ("quote", 1), ("escape", 1)):
            if len(value := getattr(self, name)) > most or (name == "delimiter" and not value):
                raise TransferInputError(f"csv {name} {value!r}: needs one character")
        least, most = self.RANGES["skip_rows"]
        if not least <= self.skip_rows <= most:
            raise TransferInputError(f"csv skip_rows {self.skip_rows}: needs a number of lines, {least} to {most}")
        if not _is_of_texts(self.encoding):
            raise TransferInputError(
                f"csv encoding {self.encoding!r}: use an encoding of Python for texts, such as utf-8 or cp1252"
            )

    @property
    def is_native(self) -> bool:
        """Whether ClickHouse itself can read this dialect."""
        return (
            self.quote == '"'
            and self.delimiter not in _NOT_NATIVE
            and not self.escape
            and len(self.null_values) <= 1
            and not (self.true_values or self.false_values or self.timestamp_formats)
            and self.is_utf8
        )

    @property
    def is_utf8(self) -> bool:
        """Whether the encoding is UTF-8, or a part of it."""
        return self.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "ascii")

    @property
    def has_offsets(self) -> bool:
        """Whether times have offsets from UTC, so that they need no zone of a column."""
        return any("%z" in form for form in self.timestamp_formats)


@dataclass(frozen=True)
class MessageSchema:
    """The schema of Protobuf and MsgPack objects, which do not state their columns.

    :param text: the text of a ``.proto`` file, in proto3 or proto2 and without imports
    :param message: the name of the message that is a row, without its package
    :param names: for MsgPack, the columns of a row's values, in their order; empty for all columns of the table, or
        of `TableOptions.columns`
    """

    text: str = ""
    message: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # JSON has only lists

    def check(self, form: str) -> None:
        """Raise TransferInputError for a schema that does not fit the format `form`."""
        part = KNOWN[form].schema if form in KNOWN else ""
        if part == "text" and not (self.text.strip() and self.message):
            raise TransferInputError(
                f"format {form!r}: set the schema's text and the name of the message (schema.text, schema.message)"
            )
        if part != "text" and (self.text or self.message):
            raise TransferInputError(f"schema.text, schema.message: format {form!r} has no schema: omit them")
        if self.names and part != "names":
            raise TransferInputError(f"schema.names: only rows of 'msgpack' need names, not {form!r}: omit them")
        if len(self.text.encode()) > _LARGEST_SCHEMA:  # a field of a request has 128 KB, with 3 bytes for one
            raise TransferInputError(f"schema.text exceeds {_LARGEST_SCHEMA >> 10} KB: remove comments and messages")


@dataclass(frozen=True)
class Format:
    """A format with its options; ``tsv`` is ``csv`` with a tab as the delimiter.

    `joined` documents of JSON are not divided into lines.
    """

    name: str
    csv: Csv = field(default_factory=Csv)
    schema: MessageSchema = field(default_factory=MessageSchema)
    joined: bool = False

    def __post_init__(self) -> None:
        if not has_kind(self.name, "documents"):
            object.__setattr__(self, "joined", False)
        if self.name == "tsv":
            object.__setattr__(self, "name", "csv")
            object.__setattr__(self, "csv", replace(self.csv, delimiter="\t"))

    @property
    def facts(self) -> Facts:
        """The facts about the format."""
        return KNOWN[self.name]

    @property
    def choice(self) -> str:
        """The name with which a process that has the same dialect can make this format again."""
        return "tsv" if self.name == "csv" and self.csv.delimiter == "\t" else self.name

    @property
    def clickhouse(self) -> str:
        """The format's name in ClickHouse."""
        name = self.facts.clickhouse
        return name.removesuffix("WithNames") if self.has_fields and self.csv.names else name

    @property
    def is_native(self) -> bool:
        """Whether ClickHouse itself can read it."""
        return not self.has_fields or self.csv.is_native

    @property
    def is_text(self) -> bool:
        """Whether values must be parsed, and so may have any type."""
        return self.facts.is_text

    @property
    def has_fields(self) -> bool:
        """Whether an object is a text whose values show no types, and may have spaces around them."""
        return self.facts.kind == "fields"

    @property
    def has_documents(self) -> bool:
        """Whether an object is a text of JSON."""
        return self.facts.kind == "documents"

    @property
    def by_schema(self) -> bool:
        """Whether the request states the columns of objects, which do not."""
        return self.facts.kind == "messages"

    @property
    def is_stream(self) -> bool:
        """Whether an object consists of rows alone, so that it may be compressed as a whole, or be empty."""
        return self.is_text or self.by_schema

    def allow_missing(self) -> dict[str, int]:
        """Return the setting with which ClickHouse accepts columns that an object lacks, if it needs one."""
        return {self.facts.missing: 1} if self.facts.missing else {}


def compression_of(head: bytes) -> str:
    """Return the compression of content with these first bytes (10 are enough); empty if it is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def skippable(head: bytes) -> int:
    """Return the size of the skippable frame of zstd or lz4 (RFC 8878, 3.1.2) that begins so; 0 for other content."""
    is_skippable = len(head) >= 8 and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"
    return 8 + int.from_bytes(head[4:8], "little") if is_skippable else 0


def is_hadoop_snappy(key: str, head: bytes) -> bool:
    """Return whether an object has Hadoop's framing of snappy, by its name and its first two block lengths.

    ClickHouse reads this framing, which has no magic number.
    """
    blocks = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    return key.lower().endswith(".snappy") and len(head) >= 8 and 0 < blocks[1] <= 2 * blocks[0] + 32 < 1 << 28


def compression_within(head: bytes, name: str) -> str:
    """Return the compression of content that has this beginning and name, also after skippable frames."""
    at = 0
    while skipped := skippable(head[at : at + 8]):
        at += skipped
    return compression_of(head[at:]) or ("hadoop-snappy" if is_hadoop_snappy(name, head[at:]) else "")


# Compressions of text, and archives, that ClickHouse cannot read, or in which it does not detect a truncated stream.
BY_WORKER = frozenset({"zstd", "lz4", "bz2", "snappy", "archive"})


def compression_by_name(key: str) -> str:
    """Return the compression that an object's name suggests, by ClickHouse's rules for names."""
    return next((name for suffix, name in _SUFFIX.items() if key.lower().endswith(suffix)), "")


def format_by_name(key: str) -> str | None:
    """Return the format that a name shows, without the suffixes of compressions; None if it shows none."""
    name = key.lower()
    for suffix in _SUFFIX:
        name = name.removesuffix(suffix)
    return format_by_extension(name)


def format_of(key: str, head: bytes) -> str:
    """Return the format of an object by its decompressed content, otherwise by its name.

    Raises TransferInputError when neither shows the format.
    """
    if shown := typed_format(head) or begun_format(head):
        return shown
    if named := format_by_name(key):
        return named
    first = head.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    if b"," in first and b"\0" not in first:
        return "csv"
    raise TransferInputError(f"the format of {key!r} is clear from neither its content nor its name: set `format`")
