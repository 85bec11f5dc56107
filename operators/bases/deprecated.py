"""Deprecated arguments of 0.1.0, which still work with a warning; docs/versions.md lists their replacements."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from warnings import warn

from storeside.operators.errors import OperatorInputError
from storeside.operators.movement import MovementOperator
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.options import ReadOptions, TableOptions

if TYPE_CHECKING:
    from storeside.transfer.request.options import Nested

Options = TypeVar("Options", ReadOptions, TableOptions)


class CsvFields(TypedDict, total=False):
    """The fields of `Csv`, as the argument `csv` of 0.1.0."""

    delimiter: str
    quote: str
    escape: str
    names: tuple[str, ...]
    skip_rows: int
    null_values: tuple[str, ...]
    true_values: tuple[str, ...]
    false_values: tuple[str, ...]
    timestamp_formats: tuple[str, ...]
    encoding: str


class FlatArguments(TypedDict, total=False):
    """The loads' arguments of 0.1.0, each with its replacement."""

    csv: CsvFields | None
    """deprecated: use ``read=ReadOptions(csv=Csv(…))``"""
    nested: Nested | None
    """deprecated: use ``read=ReadOptions(nested=…)``"""
    max_bad_rows: int | None
    """deprecated: use ``read=ReadOptions(max_bad_rows=…)``"""
    sample_objects: int | None
    """deprecated: use ``read=ReadOptions(sample_objects=…)``"""
    sample_bytes: int | None
    """deprecated: use ``read=ReadOptions(sample_bytes=…)``"""
    columns: Mapping[str, str] | None
    """deprecated: use ``table_options=TableOptions(columns=…)``"""
    system_columns: Sequence[str] | None
    """deprecated: use ``table_options=TableOptions(system_columns=…)``"""
    engine: str | None
    """deprecated: use ``table_options=TableOptions(engine=…)``"""
    order_by: str | None
    """deprecated: use ``table_options=TableOptions(order_by=…)``"""
    partition_by: str | None
    """deprecated: use ``table_options=TableOptions(partition_by=…)``"""
    ttl: str | None
    """deprecated: use ``table_options=TableOptions(ttl=…)``"""


_OURS = ("airflow.", "storeside.operators.")


class FlatLoadArguments(MovementOperator):
    """Accepts the loads' arguments of 0.1.0 and groups them into `ReadOptions` and `TableOptions`.

    This class needs explicit arguments, because Airflow reads the names that `default_args` and ``partial`` may set
    from signatures. Raises OperatorInputError if the caller sets a group together with one of its old arguments.
    """

    def __init__(
        self,
        *,
        read: ReadOptions | None,
        table_options: TableOptions | None,
        csv: CsvFields | None = None,
        nested: Nested | None = None,
        max_bad_rows: int | None = None,
        sample_objects: int | None = None,
        sample_bytes: int | None = None,
        columns: Mapping[str, str] | None = None,
        system_columns: Sequence[str] | None = None,
        engine: str | None = None,
        order_by: str | None = None,
        partition_by: str | None = None,
        ttl: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        reading = {
            "csv": None if csv is None else Csv(**csv),
            "nested": nested,
            "max_bad_rows": max_bad_rows,
            "sample_objects": sample_objects,
            "sample_bytes": sample_bytes,
        }
        table = {
            "columns": columns,
            "system_columns": system_columns,
            "engine": engine,
            "order_by": order_by,
            "partition_by": partition_by,
            "ttl": ttl,
        }
        self.read = self._grouped("read", read, ReadOptions, reading)
        self.table_options = self._grouped("table_options", table_options, TableOptions, table)

    def _grouped(self, name: str, given: Options | None, group: type[Options], old: Mapping[str, Any]) -> Options:
        """Return the options for the argument `name`: `given`, or options built from the old arguments."""
        old = {argument: value for argument, value in old.items() if value is not None}
        if not old:
            return given or group()
        fields = ", ".join("csv=Csv(…)" if argument == "csv" else f"{argument}=…" for argument in old)
        replacement = f"{name}={group.__name__}({fields})"
        if given is not None:
            raise OperatorInputError(
                f"{type(self).__name__} {self.task_id!r} sets {name} together with {', '.join(old)},"
                f" as arguments or in default_args: write {replacement}"
            )
        for argument in old:
            warn_of(type(self), argument, f"use {replacement}")
        return group(**old)


def without_effect(operator: type, kwargs: dict[str, object], *names: str) -> None:
    """Remove arguments that the operator ignores from `kwargs`, and warn with DeprecationWarning for each."""
    for name in names:
        if kwargs.pop(name, None) is not None:
            warn_of(operator, name, "remove it, it has no effect")


def warn_of(operator: type, argument: str, remedy: str) -> None:
    """Warn with DeprecationWarning that an argument is deprecated, at the line that creates the operator."""
    _warn(f"{operator.__name__}({argument}=…) is deprecated: {remedy}")


def warn_of_class(operator: type, replacement: type) -> None:
    """Warn with DeprecationWarning that an operator is deprecated, at the line that creates it."""
    _warn(f"{operator.__name__} is deprecated: use {replacement.__name__}, see docs/versions.md")


def _warn(message: str) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warn(message, DeprecationWarning, stacklevel=level)
