"""The formats of objects, each with the facts that a load knows before it reads an object."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Literal, get_args

FormatName = Literal[
    "parquet", "csv", "tsv", "jsonl", "avro", "orc", "arrow", "arrowstream", "protobuf", "protobufsingle",
    "protobuflist", "msgpack",
]  # fmt: skip
# The content of objects: text has "fields", which show no types, or "documents" of JSON, which show some. Others
# state their "types", or have "messages" of a schema that the request gives.
Kind = Literal["fields", "documents", "types", "messages"]
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Facts:
    """The facts about a format that a load knows before it reads an object.

    :param name: the choice of a request
    :param clickhouse: the format's name in ClickHouse
    :param kind: the content of its objects
    :param label: its name in forms
    :param title: its name in messages, with the article
    :param extensions: the endings of names, in lower case
    :param begins: whether content begins as no other format does; None if any content may begin so
    :param missing: the setting by which ClickHouse accepts columns that an object lacks, if it needs one
    :param is_numbered: whether ClickHouse numbers the rows of objects that it reads
    :param schema: the part of the request's schema that describes messages
    """

    name: str
    clickhouse: str
    kind: Kind
    label: str
    title: str = "a text"
    extensions: tuple[str, ...] = ()
    begins: Callable[[bytes], bool] | None = None
    missing: str = ""
    is_numbered: bool = True
    schema: Literal["", "text", "names"] = ""

    @property
    def is_text(self) -> bool:
        """Whether values must be parsed, and so may have any type."""
        return self.kind in ("fields", "documents")


def _begins_like_orc(head: bytes) -> bool:
    return head.startswith(b"ORC") and bool(_BINARY.search(head))  # "ORC" may begin a text


def is_array(head: bytes) -> bool:
    """Return whether a text with these first bytes is an array of objects, or an empty array."""
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return text.startswith(b"[") and text[1:].lstrip()[:1] in (b"{", b"]")


def _begins_like_json(head: bytes) -> bool:
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{") or is_array(head)


_ARROW = "input_format_arrow_allow_missing_columns"
_PROTOBUF, _MSGPACK = "a Protobuf", "a MsgPack"
KNOWN: dict[str, Facts] = {
    facts.name: facts
    for facts in (
        Facts(
            "parquet", "Parquet", "types", "Parquet", "a Parquet", (".parquet", ".pq"),
            lambda head: head.startswith(b"PAR1"), "input_format_parquet_allow_missing_columns",
        ),
        Facts("csv", "CSVWithNames", "fields", "CSV", extensions=(".csv",)),
        Facts("tsv", "CSVWithNames", "fields", "CSV with tabs (TSV)", extensions=(".tsv",)),
        Facts(
            "jsonl", "JSONEachRow", "documents", "JSON Lines", extensions=(".jsonl", ".ndjson", ".json"),
            begins=_begins_like_json,
        ),
        Facts(
            "avro", "Avro", "types", "Avro", "an Avro", (".avro",), lambda head: head.startswith(b"Obj\x01"),
            "input_format_avro_allow_missing_fields",
        ),
        Facts(
            "orc", "ORC", "types", "ORC", "an ORC", (".orc",), _begins_like_orc,
            "input_format_orc_allow_missing_columns", is_numbered=False,
        ),
        Facts(
            "arrow", "Arrow", "types", "Arrow or Feather file", "an Arrow", (".arrow", ".feather"),
            lambda head: head.startswith(b"ARROW1"), _ARROW, is_numbered=False,
        ),
        Facts(
            "arrowstream", "ArrowStream", "types", "Arrow stream", "an Arrow stream", (".arrows",),
            # the mark of the first message
            lambda head: head.startswith(b"\xff\xff\xff\xff"), _ARROW, is_numbered=False,
        ),
        Facts(
            "protobuf", "Protobuf", "messages", "Protobuf, with its length before each message", _PROTOBUF,
            schema="text",
        ),
        Facts(
            "protobufsingle", "ProtobufSingle", "messages", "Protobuf, one message per object", _PROTOBUF,
            schema="text",
        ),
        Facts(
            "protobuflist", "ProtobufList", "messages", "Protobuf, an envelope of messages", _PROTOBUF, schema="text"
        ),
        Facts("msgpack", "MsgPack", "messages", "MsgPack", _MSGPACK, schema="names"),
    )
}  # fmt: skip


def has_kind(name: str, kind: Kind) -> bool:
    """Return whether a choice of a request is a format of a kind; ``auto`` and tables in S3 are none."""
    return name in KNOWN and KNOWN[name].kind == kind


def typed_format(head: bytes) -> str | None:
    """Return the format of content with these first bytes if it is one that states its types."""
    return begun_format(head, ("types",))


def begun_format(head: bytes, kinds: Container[Kind] = get_args(Kind)) -> str | None:
    """Return the format, of these kinds, that begins as no other does and as this content; None if there is none."""
    for facts in KNOWN.values():
        if facts.kind in kinds and facts.begins and facts.begins(head):
            return facts.name
    return None


def format_by_extension(name: str) -> str | None:
    """Return the format that the end of a name shows; None if it shows none."""
    return next((facts.name for facts in KNOWN.values() if name.lower().endswith(facts.extensions)), None)
