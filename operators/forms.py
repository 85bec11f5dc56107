"""Restricts forms to the buckets, connections, queues, suites and others that the installation's owner has listed.

Tasks use Airflow's connections, which give more access than the user who fills in a form has. A field with
`form_choices` therefore accepts only listed names. Every operator of Storeside checks the fields of its DAG before it
runs, also in runs that were started through the API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, Param, Variable
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators.errors import OperatorInputError, airflow_errors

if TYPE_CHECKING:
    from airflow.sdk import Context

VARIABLE: Final = "storeside_forms"
# Lists that apply if the Variable does not set them: the names in the demonstration and the tutorial.
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
    "suites": (),
    "after_load": ("none",),
}
# The keyword in a Param's schema that holds the kind of the field.
_MARK = "storeside"
_ANY = r"[^/@\s]"  # what a `*` in a list of names may stand for


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


# Functions that read a field's value by its kind: they yield a list of the Variable and a name that must be in it.
_KINDS: Final[Mapping[str, Callable[[str], Iterator[tuple[str, str]]]]] = {
    # AIStore writes oc:// for OCI's buckets; the list has oci://
    "bucket": lambda text: iter([("buckets", re.sub(r"^oc://", "oci://", text))]),
    "s3 bucket": lambda text: iter([("buckets", f"s3://{text}")]),
    "source bucket": lambda text: iter([("buckets", text if "://" in text else f"s3://{text}")]),
    "backend": _backend,
    "chart": _chart,
    "connection": lambda text: iter([("connections", text)]),
    "queue": lambda text: iter([("queues", text)]),
    "domain": lambda text: iter([("domains", text)]),
    "transformer": lambda text: iter([("transformers", text)]),
    "etl": lambda text: iter([("etls", text)]),
    "suite": lambda text: iter([("suites", text)]),
    "after load": lambda text: iter([("after_load", text)]),
    "place": lambda text: iter([("buckets", "/".join(text.split("/")[:3]))]),
}
# Kinds for which the form suggests the names of a list. A backend is not one of them: its value may also contain a
# connection, and a form field of type array accepts nothing but the suggestions.
_SUGGESTED: Final = {
    "bucket": "buckets",
    "s3 bucket": "buckets",
    "source bucket": "buckets",
    "connection": "connections",
    "queue": "queues",
    "domain": "domains",
    "transformer": "transformers",
    "etl": "etls",
    "suite": "suites",
}


def form_choices(kind: str) -> dict[str, Any]:
    """Return keywords for a ``Param`` that accepts only names in the Airflow Variable ``storeside_forms``.

    The form suggests the listed names. Example: ``Param("s3://recordings", type="string",
    **form_choices("bucket"))``.

    :param kind: ``bucket`` (``s3://recordings``), ``s3 bucket`` (the name alone), ``source bucket`` (the name of an
        S3 bucket, or ``ais://results``), ``backend`` (a bucket with or without ``@connection``), ``chart`` (a URL of
        object storage), ``connection``, ``queue``, ``domain``, ``transformer`` (a transform of the transformer's
        image), ``etl`` (the name of a running ETL), ``suite`` (a suite of Great Expectations), ``after load`` (an
        action of `AfterLoad`) or ``place`` (``s3://bucket/prefix/``). In a Param of type ``array`` every item has
        this kind
    :raises OperatorInputError: the kind does not exist
    """
    if kind not in _KINDS:
        raise OperatorInputError(f"form_choices has no kind {kind!r}: choose from {', '.join(_KINDS)}")
    suggested = list(_suggestions(kind))
    return {_MARK: kind, **({"examples": suggested} if suggested else {})}


def described(field: Param, description: str, **schema: Any) -> Param:
    """Return the form field with another description, and with other values of some keywords of its schema."""
    return Param(field.value, **{**field.schema, **schema}, description=description)


@cache
def _suggestions(kind: str) -> tuple[str, ...]:
    """Return the listed names without patterns. Cached, because Airflow parses DAG files repeatedly."""
    if kind not in _SUGGESTED:
        return ()
    try:
        names = listed()[_SUGGESTED[kind]]
    except OperatorInputError:  # the DAG can still be parsed; its tasks fail with the reason
        names = ()
    if kind in ("s3 bucket", "source bucket"):
        schemes = ("s3://",) if kind == "s3 bucket" else ("s3://", "ais://")
        names = tuple(name.removeprefix("s3://") for name in names if name.startswith(schemes))
    return tuple(name for name in names if "*" not in name)


def listed() -> dict[str, tuple[str, ...]]:
    """Return the lists of names that forms may use; a list in the Variable replaces the default of that list.

    Raises OperatorInputError unless the Variable is a JSON object whose values are lists of strings.
    """
    return {**DEFAULTS, **{names: tuple(given) for names, given in _variable().items()}}


def _variable() -> dict[str, list[str]]:
    """Return the content of the Variable. Raises OperatorInputError; see `listed`."""
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
            f"the Airflow Variable {VARIABLE} is not a JSON object whose keys are among {', '.join(DEFAULTS)} and"
            " whose values are lists of strings: correct it, or delete it to use the defaults"
            " (docs/configuration.md, What forms may name)"
        )
    return given


class FormOperator(BaseOperator):
    """Base class of all operators: checks the parameters from the form or the API request before the task runs."""

    def pre_execute(self, context: Context) -> None:
        """Check the run's parameters. Raises AirflowFailException if a name is not listed."""
        super().pre_execute(context)
        with airflow_errors():
            check_form(context)


def check_form(context: Context) -> None:
    """Check all parameters with `form_choices`. Use it as ``pre_execute`` of operators that are not Storeside's.

    Raises OperatorInputError if a name is not listed.
    """
    marked = dict(_marked(context))
    if not marked:
        return
    allowed = listed()
    refused: dict[str, tuple[str, str]] = {}
    for field, kind in marked.items():
        value = context["params"].get(field)
        for text in [value] if isinstance(value, str) else value or ():
            for names, name in _KINDS[kind](text):
                if not is_listed(name, allowed[names]):
                    refused[f"{field}: {name!r}"] = (names, name)
    if refused:
        raise OperatorInputError(_refusal(refused, allowed))


def _marked(context: Context) -> Iterator[tuple[str, str]]:
    """Yield each parameter of the DAG and the task that has `form_choices` and a value, with its kind."""
    for params in (ParamsDict(context["dag"].params), ParamsDict(context["task"].params)):
        for field in params:
            kind = params.get_param(field).schema.get(_MARK)
            if kind and context["params"].get(field):
                yield field, kind


def is_listed(name: str, names: Sequence[str]) -> bool:
    """Return whether a list contains the name; ``*`` in the list matches any text without ``/``, ``@`` and spaces."""
    return any(re.fullmatch(_listing(pattern), name) for pattern in names)


def _listing(pattern: str) -> str:
    """Return the expression of an entry; each text between two ``*`` is found once, where it first is."""
    first, *others = map(re.escape, pattern.split("*"))
    middle = "".join(f"(?>{_ANY}*?{part})" for part in others[:-1])
    return f"{first}{middle}{_ANY}*{others[-1]}" if others else first


def _refusal(refused: Mapping[str, tuple[str, str]], allowed: Mapping[str, tuple[str, ...]]) -> str:
    """Return the reason, and the Variable's whole value that would allow all refused names."""
    value = _variable()
    for names, name in refused.values():
        entries = value.setdefault(names, list(allowed[names]))
        if name not in entries:
            entries.append(name)
    reasons = "; ".join(
        f"{what} is not one of the {names} that forms may use: {', '.join(allowed[names]) or 'none'}"
        for what, (names, _) in refused.items()
    )
    return f"{reasons}. To allow this, set the Airflow Variable {VARIABLE} to {json.dumps(value)}"
