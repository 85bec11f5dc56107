"""What forms may name: buckets, connections, queues and others that the installation's owner has listed.

Tasks use Airflow's connections, which reach more than the user who fills in a form may reach. A field that is made
with `form_choices` therefore accepts only listed names. Every operator of Storeside checks the fields of its DAG
before it runs, so runs that were started through the API are checked, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, Variable
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators.errors import OperatorInputError, airflow_errors

if TYPE_CHECKING:
    from airflow.sdk import Context

VARIABLE: Final = "storeside_forms"
# Lists that the Variable does not have: what the demonstration, the tutorial and the DAGs' own defaults name.
DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "buckets": (
        *("s3://recordings", "s3://tables", "s3://trips", "s3://arrays"),
        *("ais://ingested", "ais://benchmark", "ais://throughput"),
        *("s3://texts", "ais://text-facts"),
    ),
    "connections": ("aws_default", "aistore_default", "oci_default"),
    "queues": ("recordings-events", "tables-events"),
    "domains": ("/home/storeside/demo.h5",),
    "transformers": ("text_facts",),
    "etls": (),
}
# The keyword in a Param's schema that says what the field names.
_MARK = "storeside"


def _backend(text: str) -> Iterator[tuple[str, str]]:
    bucket, _, connection = text.partition("@")
    yield "buckets", bucket
    if connection:
        yield "connections", connection


def _chart(url: str) -> Iterator[tuple[str, str]]:
    """Read a URL of object storage as `ObjectStoragePath` does."""
    scheme, _, rest = url.partition("://")
    connection, _, bucket = rest.partition("/")[0].rpartition("@")
    yield "buckets", f"{scheme}://{bucket}"
    if connection:
        yield "connections", connection


# What a field of each kind names: pairs of a list in the Variable and a name that must be in it.
_KINDS: Final[Mapping[str, Callable[[str], Iterator[tuple[str, str]]]]] = {
    "bucket": lambda text: iter([("buckets", text)]),
    "s3 bucket": lambda text: iter([("buckets", f"s3://{text}")]),
    "backend": _backend,
    "chart": _chart,
    "connection": lambda text: iter([("connections", text)]),
    "queue": lambda text: iter([("queues", text)]),
    "domain": lambda text: iter([("domains", text)]),
    "transformer": lambda text: iter([("transformers", text)]),
    "etl": lambda text: iter([("etls", text)]),
}
# Kinds whose values are names of a list. A backend may have a connection, too, and its field, an array, would offer
# nothing but the suggestions.
_SUGGESTED: Final = {
    "bucket": "buckets",
    "s3 bucket": "buckets",
    "connection": "connections",
    "queue": "queues",
    "domain": "domains",
    "transformer": "transformers",
    "etl": "etls",
}


def form_choices(kind: str) -> dict[str, Any]:
    """Return keywords for a ``Param`` whose value must be listed in the Airflow Variable ``storeside_forms``.

    The form suggests the listed names. For example: ``Param("s3://recordings", type="string",
    **form_choices("bucket"))``.

    :param kind: ``bucket`` (``s3://recordings``), ``s3 bucket`` (the name alone), ``backend`` (a bucket with or
        without ``@connection``), ``chart`` (a URL of object storage), ``connection``, ``queue``, ``domain``,
        ``transformer`` (a transform of the transformer's image) or ``etl`` (the name of an ETL that runs already); a
        Param of type ``array`` holds several of them
    :raises OperatorInputError: no such kind
    """
    if kind not in _KINDS:
        raise OperatorInputError(f"forms name no {kind!r}: choose from {', '.join(_KINDS)}")
    suggested = list(_suggestions(kind))
    return {_MARK: kind, **({"examples": suggested} if suggested else {})}


@cache
def _suggestions(kind: str) -> tuple[str, ...]:
    """Return the listed names without patterns; read once per process, because DAG files are parsed repeatedly."""
    if kind not in _SUGGESTED:
        return ()
    try:
        names = listed()[_SUGGESTED[kind]]
    except OperatorInputError:  # the DAG can still be parsed; its tasks fail with the reason
        names = ()
    if kind == "s3 bucket":
        names = tuple(name.removeprefix("s3://") for name in names if name.startswith("s3://"))
    return tuple(name for name in names if "*" not in name)


def listed() -> dict[str, tuple[str, ...]]:
    """Return the lists of names that forms may use, those of the Variable instead of the defaults.

    Raises OperatorInputError for a Variable that is not an object of lists of texts.
    """
    text = Variable.get(VARIABLE, default=None)
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(
        name in DEFAULTS and isinstance(names, list) and all(isinstance(one, str) for one in names)
        for name, names in given.items()
    ):
        raise OperatorInputError(
            f"the Airflow Variable {VARIABLE} is not a JSON object with lists of texts named {', '.join(DEFAULTS)}:"
            " correct it, or delete it to use the defaults (docs/configuration.md, What forms may name)"
        )
    return {**DEFAULTS, **{name: tuple(names) for name, names in given.items()}}


class FormOperator(BaseOperator):
    """Base of all operators: checks what the form, or the API request, of its run names before the task runs."""

    def pre_execute(self, context: Context) -> None:
        """Check the run's parameters. Raises AirflowFailException for a name that is not listed."""
        super().pre_execute(context)
        with airflow_errors():
            check_form(context)


def check_form(context: Context) -> None:
    """Check all parameters that `form_choices` marks; a ``pre_execute`` for other operators of such a DAG.

    Raises OperatorInputError for a name that is not listed.
    """
    marked = dict(_marked(context))
    if not marked:
        return
    allowed = listed()
    for field, kind in marked.items():
        value = context["params"].get(field)
        for text in [value] if isinstance(value, str) else value or ():
            for names, name in _KINDS[kind](text):
                if not is_listed(name, allowed[names]):
                    raise OperatorInputError(_refusal(field, names, name, allowed[names]))


def _marked(context: Context) -> Iterator[tuple[str, str]]:
    """Yield the marked parameters of the DAG and the task, and what each names; empty values name nothing."""
    for params in (ParamsDict(context["dag"].params), ParamsDict(context["task"].params)):
        for field in params:
            kind = params.get_param(field).schema.get(_MARK)
            if kind and context["params"].get(field):
                yield field, kind


def is_listed(name: str, names: Sequence[str]) -> bool:
    """Tell whether a list has the name; ``*`` in the list is any text without ``/``, ``@`` and spaces."""
    return any(
        re.fullmatch(r"[^/@\s]*".join(re.escape(part) for part in pattern.split("*")), name) for pattern in names
    )


def _refusal(field: str, names: str, name: str, allowed: Sequence[str]) -> str:
    entry = json.dumps({names: [*allowed, name]})
    return (
        f"{field} names {name!r}, which is not among the {names} that forms may name: {', '.join(allowed) or 'none'}."
        f" To allow it, add it to the list {names!r} of the Airflow Variable {VARIABLE}, such as {entry}"
    )
