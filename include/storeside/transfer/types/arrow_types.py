"""Maps the Arrow types of Parquet columns to ClickHouse types.

Each Parquet type maps to the type in the table of DoubleCloud's connector
(https://double.cloud/blog/posts/2023/10/native-s3-connector-vs-airbyte-s3-connector/), or to a more precise
ClickHouse type if there is one. The table in docs/transfer/formats.md lists all types, with the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import NOTHING, Column, nullable

if TYPE_CHECKING:
    import pyarrow

_SIMPLE = {
    "bool": "Bool", "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "uint8": "UInt8",
    "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64", "halffloat": "Float32", "float": "Float32",
    "double": "Float64", "string": "String", "large_string": "String", "string_view": "String", "binary": "String",
    "large_binary": "String", "binary_view": "String", "date32[day]": "Date32", "date64[ms]": "Date32",
    # Parquet has no time in seconds: pyarrow writes milliseconds.
    "time32[s]": "Time64(3)", "time32[ms]": "Time64(3)", "time64[us]": "Time64(6)", "time64[ns]": "Time64(9)",
    "null": NOTHING,
    # Stored as text: ClickHouse's JSON type accepts only objects, and loses nulls, order and the notation of numbers.
    "extension<arrow.json>": "String",
    "extension<arrow.uuid>": "UUID",
}  # fmt: skip
# Bytes: ClickHouse refuses columns of a longer FixedString.
_LONGEST_FIXED = 256


def arrow_columns(found: pyarrow.Schema) -> list[Column]:
    """Return a Parquet file's columns.

    Raises TransferInputError for types without a counterpart in ClickHouse, and for duplicate names.
    """
    for name, times in Counter(found.names).items():
        if times > 1:
            raise TransferInputError(f"column {name!r} occurs {times} times: give each column its own name")
    return [Column(field.name, field_type(field)) for field in found]


def field_type(field: pyarrow.Field, *, in_optional: bool = False, keep: bool = False) -> str:
    """Return the type of a field's values; `in_optional` marks the fields of a struct that may be NULL.

    With `keep`, structs that may be NULL become Nullable tuples. Without it, their fields become Nullable, so that a
    NULL struct can be written as a tuple of NULLs.
    """
    kind = arrow_type(field.type, field.name, optional=field.nullable or in_optional, keep=keep)
    if keep and field.nullable and kind.startswith("Tuple("):
        return f"Nullable({kind})"
    return nullable(kind) if field.nullable or in_optional else kind


def arrow_type(kind: pyarrow.DataType, name: str, *, optional: bool = False, keep: bool = False) -> str:
    """Return the ClickHouse type of an Arrow type; errors name the column `name`.

    `optional` and `keep` apply to structs: see `field_type`.
    """
    import pyarrow as pa
    import pyarrow.types as of

    if found := _SIMPLE.get("extension<arrow.json>" if _is_json(kind) else str(kind)):
        return found
    if isinstance(kind, pa.BaseExtensionType):
        return arrow_type(kind.storage_type, name, optional=optional, keep=keep)
    if of.is_dictionary(kind) or of.is_run_end_encoded(kind):
        return arrow_type(kind.value_type, name, optional=optional, keep=keep)
    if of.is_nested(kind):
        return _nested_type(kind, name, optional=optional, keep=keep)
    if plain := _plain_type(kind):
        return plain
    raise TransferInputError(
        f"column {name!r}: ClickHouse has no type for Arrow's {kind}: write another type, or set the column's type"
    )


def _plain_type(kind: pyarrow.DataType) -> str:
    """Return the ClickHouse type of an unnested Arrow type with parameters; empty if there is none."""
    import pyarrow.types as of

    if of.is_timestamp(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        return f"DateTime64({digits}, 'UTC')"  # without a zone, the column shows the digits of the file, too
    if of.is_decimal(kind) and kind.scale >= 0:
        return f"Decimal({kind.precision}, {kind.scale})"
    if of.is_fixed_size_binary(kind) and kind.byte_width:
        return f"FixedString({kind.byte_width})" if kind.byte_width <= _LONGEST_FIXED else "String"
    return "Int64" if of.is_duration(kind) else ""  # Parquet stores durations as integers


def _is_json(kind: pyarrow.DataType) -> bool:
    return str(kind).startswith("extension<arrow.json")


def _nested_type(kind: pyarrow.DataType, name: str, *, optional: bool, keep: bool) -> str:
    import pyarrow.types as of

    if of.is_map(kind):
        return f"Map({arrow_type(kind.key_type, name, keep=keep)}, {field_type(kind.item_field, keep=keep)})"
    if of.is_struct(kind):
        _check_fields([part.name for part in kind], name)
        fields = (
            f"{identifier(part.name)} {field_type(part, in_optional=optional and not keep, keep=keep)}"
            for part in kind
        )
        return f"Tuple({', '.join(fields)})"
    if hasattr(kind, "value_field"):
        return f"Array({field_type(kind.value_field, keep=keep)})"
    raise TransferInputError(f"column {name!r}: ClickHouse has no type for Arrow's {kind}: set the column's type")


def _check_fields(names: Sequence[str], column: str) -> None:
    """Raise TransferInputError for the names of a struct's fields with which ClickHouse has no type."""
    if not names:
        raise TransferInputError(f"column {column!r} is a struct without fields: leave it out, or write it as text")
    if not all(names):
        raise TransferInputError(f"column {column!r} has a struct with an unnamed field: give each field a name")
    if twice := next((name for name, times in Counter(names).items() if times > 1), ""):
        raise TransferInputError(f"column {column!r} has a struct with two fields {twice!r}: rename one of them")
