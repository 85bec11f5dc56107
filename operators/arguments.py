"""Checks literal arguments of operators while a DAG is parsed; templates are checked when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.aistore.names import require_fit
from storeside.aistore.spec import EtlSpec
from storeside.errors import BadInput, StoresideError
from storeside.operators.errors import OperatorInputError
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_bool, as_number, as_object

_TEMPLATE = ("{{", "{%", "{#")


class LiteralArgumentError(StoresideError, BadInput, AirflowFailException):
    """A literal argument of an operator is invalid: the DAG cannot be imported, and a mapped task fails at once."""


def is_literal(value: Any) -> bool:
    """Return whether the value is final while a DAG is parsed: neither a template nor the result of another task."""
    if isinstance(value, str):
        return not any(mark in value for mark in _TEMPLATE)
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_literal(getattr(value, part.name)) for part in fields(value))
    if isinstance(value, Mapping):
        return is_literal([*value, *value.values()])
    return value is None or isinstance(value, bool | int | float)


@contextmanager
def literal_errors(operator: Any, name: str = "") -> Iterator[None]:
    """Raise BadInput as a LiteralArgumentError that states the task and the argument `name`."""
    try:
        yield
    except BadInput as e:
        argument = f"{name}: " if name and not str(e).startswith(name) else ""
        raise LiteralArgumentError(f"task {operator.task_id!r}: {argument}{e}") from e


def check_literals(operator: Any, **checks: Callable[[Any], object]) -> None:
    """Check the arguments of an operator that are literals; each keyword maps an argument to its check.

    A check raises BadInput. Empty arguments are not checked. Raises LiteralArgumentError, which states the task.
    """
    for name, check in checks.items():
        value = getattr(operator, name)
        if value in (None, "") or not is_literal(value):
            continue
        with literal_errors(operator, name):
            check(value)


def refuse(operator: Any, given: Mapping[str, object]) -> None:
    """Raise OperatorInputError for an argument of the base class that is in the operator's `refused`."""
    for argument in operator.refused:
        if argument in given:
            raise OperatorInputError(f"{argument}: {type(operator).__name__} has no such argument")


def flag(name: str) -> Callable[[Any], object]:
    """Return a check for the boolean argument `name`."""
    return lambda value: as_bool(value, name)


def check_s3_bucket(name: str) -> None:
    """Raise TransferInputError unless the name is a valid name of an S3 bucket."""
    from storeside.transfer.base.errors import TransferInputError
    from storeside.transfer.request.source import Source

    if Source(name).in_aistore:
        raise TransferInputError(f"bucket {name!r}: write source={name!r} in S3ToClickHouseOperator")


def between(name: str, least: float, most: float = float("inf")) -> Callable[[Any], object]:
    """Return a check for the numeric argument `name`, which needs to be from `least` to `most`."""

    def check(value: Any) -> None:
        if not least <= as_number(value, name, float) <= most:
            limit = f"from {least:g} to {most:g}" if most < float("inf") else f"{least:g} or more"
            raise OperatorInputError(f"{name} {value!r}: needs to be {limit}")

    return check


def require_spec(operator: Any, etl: Any) -> None:
    """Raise LiteralArgumentError unless the argument `etl` is an `EtlSpec`."""
    if not isinstance(etl, EtlSpec):
        raise LiteralArgumentError(
            f"task {operator.task_id!r}: etl {etl!r} is no EtlSpec: EtlSpec.existing(name) describes an ETL that runs"
        )


def check_object(name: str) -> None:
    """Raise AIStoreInputError for a name that no object of AIStore can have."""
    require_fit(name, f"object {name!r}")


def check_event_source(uri: str) -> None:
    """Raise BadInput unless the text is the URI of a bucket that sends events."""
    if Bucket.parse(uri).scheme != "s3":
        raise OperatorInputError(f"source {uri!r}: only S3 sends events: name the s3:// bucket of the queue's events")


def check_instant(text: str) -> None:
    """Raise TransferInputError unless the text is a date and time with a time zone."""
    from storeside.transfer.request.source import Source

    Source("bucket", modified_after=text)


def check_load(operator: Any) -> None:
    """Check the literal arguments of an operator that loads into ClickHouse. Raises LiteralArgumentError."""
    from storeside.transfer.request.named_options import with_options
    from storeside.transfer.request.request import CHOICES, Request
    from storeside.transfer.request.source import Source
    from storeside.transfer.request.table_names import TABLE, names_tables

    anywhere, anything = Source("bucket"), "database.table"
    choices = {name: lambda value, name=name: Request(anywhere, anything, **{name: value}) for name in CHOICES}
    check_literals(
        operator,
        bucket=check_s3_bucket,
        keys=lambda keys: Source("bucket", keys),
        table=lambda table: Request(Source("bucket", TABLE if TABLE in table else ""), table),
        on_failed_objects=check_policy,
        upsert=lambda options: options.check(),
        options=lambda options: with_options(Request(anywhere, anything), as_object(options, "options")),
        **choices,
    )
    if operator.keys and is_literal([operator.bucket, operator.keys, operator.table]):
        with literal_errors(operator):
            names_tables(operator.keys, operator.table)
