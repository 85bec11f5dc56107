"""Options of a request by name, such as ``csv.quote`` or ``limits.rows``: for one field of a form, and ``--set``."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypedDict

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv, MessageSchema
from storeside.transfer.request.options import (
    ENGINES,
    Batches,
    Codes,
    LoadLimits,
    Nested,
    OnNullNested,
    ReadOptions,
    TableOptions,
    require_choice,
    require_number,
)
from storeside.transfer.request.request import (
    CHOICES,
    Loader,
    LoadFormat,
    OnBadRows,
    OnDrift,
    OnOverwrite,
    Request,
)
from storeside.transfer.request.upsert import Upsert

# Prefixes of names, with the options that have them.
_GROUPS: dict[str, type[Any]] = {
    "": Request, "read.": ReadOptions, "csv.": Csv, "schema.": MessageSchema, "columns.": Columns,
    "table.": TableOptions, "batches.": Batches, "limits.": LoadLimits, "upsert.": Upsert,
}  # fmt: skip
_BY_CODE = ("table", "create_database")  # a separate argument, and a right
# The arguments of an engine may refer to what belongs to other tables, such as the path of their replicas in Keeper:
# like expressions, only code may contain them.
_CHOICES = {"table.engine": ENGINES}
# Options with which a load removes rows of other loads.
REMOVING = ("remove_deleted", "replace_partition")
_Texts = Sequence[str]
# All options by name, as a type: `named_options` reads them from the groups, and a test compares both.
NamedOptions = TypedDict(
    "NamedOptions",
    {
        "format": LoadFormat, "loader": Loader, "on_drift": OnDrift, "on_bad_rows": OnBadRows,
        "on_overwrite": OnOverwrite, "retry_failed": bool, "all_or_nothing": bool, "overlap_seconds": float,
        "remove_deleted": str, "replace_partition": str,
        "read.nested": Nested, "read.on_null_nested": OnNullNested, "read.strict_json": bool,
        "read.max_bad_rows": int, "read.sample_objects": int, "read.sample_bytes": int,
        "read.partition_columns": _Texts, "read.codes": Codes, "read.joined": bool, "csv.delimiter": str,
        "csv.quote": str, "csv.escape": str, "csv.names": _Texts, "csv.skip_rows": int, "csv.null_values": _Texts,
        "csv.true_values": _Texts, "csv.false_values": _Texts, "csv.timestamp_formats": _Texts, "csv.encoding": str,
        "schema.text": str, "schema.message": str, "schema.names": _Texts, "columns.select": _Texts,
        "columns.drop": _Texts, "columns.rename": Mapping[str, str], "columns.cast": Mapping[str, str],
        "columns.mask": Mapping[str, str], "table.columns": Mapping[str, str], "table.system_columns": _Texts,
        "table.engine": str, "table.order_by": str, "table.partition_by": str, "table.ttl": str,
        "table.cluster": str, "table.sharding_key": str, "batches.bytes": int, "batches.objects": int,
        "batches.parallel": int, "limits.bytes": int, "limits.ratio": int, "limits.rows": int,
        "limits.columns": int, "limits.seconds": int, "upsert.key": _Texts, "upsert.version": str,
        "upsert.deleted": str,
    },
    total=False,
)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """An option that a form or a command line may set: its kind of value in JSON.

    `choices` are its values if only some are possible, and `range` the least and the greatest value of a number.
    """

    kind: str
    choices: tuple[str, ...] = ()
    range: tuple[int, int] | None = None

    def fits(self, value: Any) -> bool:
        """Return whether a value is of the option's kind."""
        if self.kind == "array":
            return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        if self.kind == "object":
            return isinstance(value, Mapping) and all(isinstance(v, str) for v in (*value, *value.values()))
        kinds = {"boolean": bool, "integer": int, "number": int | float, "string": str}
        return isinstance(value, kinds[self.kind]) and isinstance(value, bool) == (self.kind == "boolean")


@cache
def named_options() -> dict[str, Option]:
    """Return all options by name. SQL is not among them, because only code may contain it."""
    found = {}
    for prefix, group in _GROUPS.items():
        hints, choices = typing.get_type_hints(group), CHOICES if group is Request else getattr(group, "CHOICES", {})
        ranges = getattr(group, "RANGES", {})
        for field in fields(group):
            kind = _kind(hints[field.name])
            name = prefix + field.name
            if kind and name not in _BY_CODE:
                found[name] = Option(kind, _CHOICES.get(name) or choices.get(field.name, ()), ranges.get(field.name))
    return found


def raised(groups: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the options among `given` that raise a limit of a load, by name.

    `groups` has the load's options by the prefixes ``read.``, ``batches.`` and ``limits.``.
    """
    options = named_options()
    return {
        f"{prefix}{name}": value
        for prefix, group in groups.items()
        for name in (name.removeprefix(prefix) for name in given if name in options and name.startswith(prefix))
        if options[f"{prefix}{name}"].range
        and isinstance(value := given[f"{prefix}{name}"], int)
        and value > getattr(group, name)
    }


def _kind(hint: Any) -> str:
    """Return the kind of JSON value for an option of this Python type; empty if JSON has none."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(filter(None, map(_kind, typing.get_args(hint))), "")
    if typing.get_origin(hint) is typing.Literal:
        return "string"
    if typing.get_origin(hint) is tuple:
        return "array"
    if typing.get_origin(hint) is not None:  # a mapping
        return "object" if typing.get_args(hint) == (str, str) else ""
    return {bool: "boolean", int: "integer", float: "number", str: "string"}.get(hint, "")


def parsed(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options of texts such as ``limits.rows=1000``.

    Values are JSON, except texts, and lists that commas separate: ``columns.drop=email,phone``. Raises
    TransferInputError for a text that is no option.
    """
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise TransferInputError(f"option {text!r}: write NAME=VALUE")
        option = _option(name)
        try:
            found[name] = _value(option.kind, value)
        except ValueError as e:
            raise TransferInputError(f"option {name} {value!r}: {_wanted(option)}, as JSON") from e
    return found


def _value(kind: str, text: str) -> Any:
    """Return the value of a text. Raises ValueError if it is not JSON."""
    if kind == "string":
        return text
    if kind == "array" and not text.lstrip().startswith("["):
        return text.split(",")
    return json.loads(text)


def require_option(name: str, value: Any) -> Option:
    """Return the option of this name. Raises TransferInputError if it does not exist, or cannot have the value."""
    if not (option := _option(name)).fits(value):
        raise TransferInputError(f"option {name} {value!r}: {_wanted(option)}")
    if option.choices:
        require_choice(f"option {name}", value, option.choices)
    if option.range:
        require_number(name, value, *option.range)
    return option


def with_options(request: Request, given: Mapping[str, Any]) -> Request:
    """Return the request with these options, by name. Raises TransferInputError for options that are invalid."""
    groups: dict[str, dict[str, Any]] = {prefix: {} for prefix in _GROUPS}
    for name, value in given.items():
        option = require_option(name, value)
        prefix, dot, last = name.rpartition(".")
        groups[prefix + dot][last] = tuple(value) if option.kind == "array" else value
    read = replace(
        request.read,
        csv=replace(request.read.csv, **groups["csv."]),
        schema=replace(request.read.schema, **groups["schema."]),
        columns=replace(request.read.columns, **groups["columns."]),
        **groups["read."],
    )
    return replace(
        request,
        read=read,
        table_options=replace(
            request.table_options, upsert=replace(request.upsert, **groups["upsert."]), **groups["table."]
        ),
        batches=replace(request.batches, **groups["batches."]),
        limits=replace(request.limits, **groups["limits."]),
        **groups[""],
    )


def _option(name: str) -> Option:
    options = named_options()
    if name in options:
        return options[name]
    alike = difflib.get_close_matches(name, options, 3, 0.5)
    raise TransferInputError(f"unknown option {name!r}: choose from {', '.join(alike or sorted(options))}")


def _wanted(option: Option) -> str:
    kinds = {
        "boolean": "write true or false", "integer": "write a whole number", "number": "write a number",
        "string": "write a string", "array": 'write a list of strings, such as ["a", "b"]',
        "object": 'write an object with string values, such as {"price": "Decimal(10, 2)"}',
    }  # fmt: skip
    return kinds[option.kind]
