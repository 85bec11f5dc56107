"""The formats of objects that a load reads, each with its class."""

from __future__ import annotations

from typing import Any

from storeside.transfer.formats.avro import Avro
from storeside.transfer.formats.csv_text import CsvText
from storeside.transfer.formats.json_text import JsonText
from storeside.transfer.formats.kinds import Messages, Text, Typed
from storeside.transfer.formats.messages import MsgPack, Protobuf
from storeside.transfer.formats.orc_arrow import Columnar
from storeside.transfer.formats.parquet import Parquet
from storeside.transfer.request.object_format import Format

TYPED: dict[str, Typed] = {
    "parquet": Parquet(), "avro": Avro(),
    **{name: Columnar(name) for name in ("orc", "arrow", "arrowstream")},
}  # fmt: skip
# ``tsv`` is ``csv`` with a tab as the delimiter: see `Format`.
TEXTS: dict[str, Text] = {"csv": CsvText(), "jsonl": JsonText()}
MESSAGES: dict[str, Messages] = {
    **dict.fromkeys(("protobuf", "protobufsingle", "protobuflist"), Protobuf()), "msgpack": MsgPack(),
}  # fmt: skip


def settings_of(form: Format) -> dict[str, Any]:
    """Return the settings of statements that read a format: nothing is dropped, shifted or wrapped silently."""
    settings: dict[str, Any] = {
        "input_format_skip_unknown_fields": 0,
        "input_format_allow_errors_num": 0,
        "input_format_allow_errors_ratio": 0,
        "date_time_overflow_behavior": "throw",
        **dict.fromkeys(form.allow_missing(), 0),
    }
    if form.is_text:
        settings |= {"date_time_input_format": "best_effort", **TEXTS[form.name].settings(form)}
    if form.by_schema:
        settings |= MESSAGES[form.name].settings(form)
    return settings
