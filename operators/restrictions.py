"""Restricts forms to the buckets, tables, connections, queues, suites and others that the installation's owner lists.

Tasks use Airflow's connections, which give more access than the user who fills in a form has. A field with
`form_choices` therefore accepts only listed names. Every operator of Storeside checks the fields of its DAG before it
runs, also in runs that were started through the API.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from airflow.sdk import BaseOperator, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.errors import BadInput
from storeside.operators import entries
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.transfer.request.after_load import AfterLoad

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

VARIABLE: Final = "storeside_forms"
# The uses of a bucket by a form; each has its own list.
Use = Literal["read", "write", "delete"]
USES: Final[tuple[str, ...]] = get_args(Use)
_DEMONSTRATED: Final = (
    *("s3://recordings", "s3://tables", "s3://trips", "s3://arrays"),
    *("ais://ingested", "ais://benchmark", "ais://throughput"),
    *("s3://texts", "ais://text-facts"),
)
# Lists that apply if the Variable does not set them: the names in the demonstration and the tutorial.
DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(USES, _DEMONSTRATED),
    "tables": ("data.*",),
    "databases": ("data",),
    "clusters": (),
    "options": (),
    "connections": ("aws_default", "aistore_default", "oci_default"),
    "queues": ("recordings-events", "tables-events"),
    "domains": ("/home/storeside/demo.h5",),
    "transformers": ("text_facts",),
    "etls": (),
    "suites": (),
    "after_load": ("none",),
    "tags": (),
}
# The Variable of earlier versions: one list of buckets for all uses, and no limit for what these lists now contain.
_BUCKETS: Final = "buckets"
_UNLIMITED: Final = {"tables": ["*.*"], "databases": ["*"], "clusters": ["*"], "options": ["*"], "tags": ["*"]}
# The list of the numbers in options by name to which a form may raise a limit of its load.
_OPTIONS: Final = "options"
# The characters that a * stands for in these lists, and in all others.
_STARS: Final = {"tables": r"[^.]", "databases": r"[^.]", "clusters": r"(?s:.)", "tags": r"(?s:.)"}
_STAR: Final = r"[^/@\s]"
# The keywords in a Param's schema that hold the kind of the field, and the uses of a bucket.
_MARK: Final = "storeside"
_MARK_USES: Final = "storeside_uses"


def _backend(text: str) -> Iterator[tuple[str, str]]:
    bucket, _, connection = text.partition("@")
    yield _BUCKETS, bucket
    if connection:
        yield "connections", connection


def _chart(url: str) -> Iterator[tuple[str, str]]:
    """Read a URL of object storage as `ObjectStoragePath` does."""
    scheme, _, rest = url.partition("://")
    connection, _, bucket = rest.partition("/")[0].rpartition("@")
    yield _BUCKETS, f"{scheme}://{bucket}"
    if connection:
        yield "connections", connection


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """Read tags as `AfterLoad` does."""
    tags = AfterLoad(tags=text).tags  # type: ignore[arg-type]
    for name, value in {text: ""}.items() if isinstance(tags, str) else tags.items():
        yield "tags", f"{name}={value}"


def _load_options(options: Mapping[str, Any] | str) -> Iterator[tuple[str, str]]:
    """Read options by name as the operators of loads do."""
    from storeside.operators.shared import as_object

    if cluster := as_object(options, "options").get("table.cluster"):
        yield "clusters", str(cluster)


# Functions that read a field's value by its kind: they yield a list of the Variable and a name that must be in it.
# `_BUCKETS` means the list of each of the field's uses.
Kind = Literal[
    "bucket", "s3 bucket", "source bucket", "backend", "chart", "table", "load options", "connection", "queue",
    "domain", "transformer", "etl", "suite", "after load", "place", "tags",
]  # fmt: skip
_KINDS: Final[Mapping[str, Callable[[Any], Iterator[tuple[str, str]]]]] = {
    # AIStore writes oc:// for OCI's buckets; the list has oci://
    "bucket": lambda text: iter([(_BUCKETS, re.sub(r"^oc://", "oci://", text))]),
    "s3 bucket": lambda text: iter([(_BUCKETS, f"s3://{text}")]),
    "source bucket": lambda text: iter([(_BUCKETS, text if "://" in text else f"s3://{text}")]),
    "backend": _backend,
    "chart": _chart,
    "table": lambda text: iter([("tables", text)]),
    "load options": _load_options,
    "connection": lambda text: iter([("connections", text)]),
    "queue": lambda text: iter([("queues", text)]),
    "domain": lambda text: iter([("domains", text)]),
    "transformer": lambda text: iter([("transformers", text)]),
    "etl": lambda text: iter([("etls", text)]),
    "suite": lambda text: iter([("suites", text)]),
    "after load": lambda text: iter([("after_load", text)]),
    "place": lambda text: iter([(_BUCKETS, "/".join(text.split("/")[:3]))]),
    "tags": _tags,
}
# Kinds whose bucket is used in one way only, whatever the form does.
_USES_OF: Final[Mapping[str, tuple[str, ...]]] = {"chart": ("write",), "place": ("write",)}
# The use of the bucket that the form's load reads, by the action after the load.
_ACTIONS: Final[Mapping[str, str]] = {"delete": "delete", "move": "delete", "tag": "write"}
# The list of the Variable that contains a kind's names.
_LISTS: Final = {
    "bucket": _BUCKETS,
    "s3 bucket": _BUCKETS,
    "source bucket": _BUCKETS,
    "backend": _BUCKETS,
    "chart": _BUCKETS,
    "place": _BUCKETS,
    "table": "tables",
    "connection": "connections",
    "queue": "queues",
    "domain": "domains",
    "transformer": "transformers",
    "etl": "etls",
    "suite": "suites",
}
# Kinds for which the form suggests the listed names. A backend is not one of them: its value may also contain a
# connection, and a form field of type array accepts nothing but the suggestions.
_SUGGESTED: Final = _LISTS.keys() - {"backend", "chart", "place"}
# Entries that list all names of a kind, and how many names a description shows.
_ALL: Final = frozenset({"*", "*.*", "s3://*", "ais://*", "/*"})
_SHOWN: Final = 6


def form_choices(kind: Kind, *uses: Use, bare: Literal["s3", "ais"] = "s3", description: str = "") -> dict[str, Any]:
    """Return keywords for a ``Param`` that accepts only names in the Airflow Variable ``storeside_forms``.

    The form suggests the listed names. Blanks around an entry do not matter, and a bucket may be written with or
    without its scheme: operators get ``s3://recordings`` for ``recordings``. Example:
    ``Param("s3://recordings", type="string", **form_choices("bucket", "read"))``.

    :param kind: ``bucket`` (``s3://recordings``), ``s3 bucket`` (the name alone), ``source bucket`` (the name of an
        S3 bucket, or ``ais://results``), ``backend`` (a bucket with or without ``@connection``), ``chart`` (a URL of
        object storage), ``table`` (``database.table``), ``load options`` (options of a load by name),
        ``connection``, ``queue``, ``domain``, ``transformer`` (a transform of the transformer's image), ``etl`` (the
        name of a running ETL), ``suite`` (a suite of Great Expectations), ``after load`` (an action of `AfterLoad`),
        ``place`` (``s3://bucket/prefix/``) or ``tags`` (``name=value``, with commas between tags). In a Param of type
        ``array`` every item has this kind
    :param uses: uses of the field's bucket by the DAG: ``read``, ``write``, ``delete``. Each use has its own
        list, and all of them must contain the bucket. Without uses: all three, or ``write`` for a chart and a place
    :param bare: scheme of a bucket that is written without one
    :param description: the field's description, which the names that the form accepts are added to
    :raises OperatorInputError: the kind or a use does not exist
    """
    if kind not in _KINDS:
        raise OperatorInputError(f"form_choices has no kind {kind!r}: choose from {', '.join(_KINDS)}")
    if unknown := set(uses) - set(USES):
        raise OperatorInputError(f"form_choices has no use {min(unknown)!r}: choose from {', '.join(USES)}")
    listed_names = _listed_names(kind, uses or _USES_OF.get(kind, USES))
    suggested = [name for name in listed_names if "*" not in name] if kind in _SUGGESTED else []
    return {
        _MARK: kind,
        **({_MARK_USES: list(uses)} if uses else {}),
        **({entries.BARE: bare} if bare != "s3" else {}),
        **({"examples": suggested} if suggested else {}),
        **({"description": f"{description}{_accepted(kind, listed_names)}"} if description else {}),
    }


def described(field: Param, description: str, **schema: Any) -> Param:
    """Return the form field with another description, and with other values of some keywords of its schema."""
    replaced = ("examples", _MARK_USES, entries.BARE) if _MARK in schema else ()
    kept = {name: value for name, value in field.schema.items() if name not in replaced}
    merged = {**kept, **schema}
    if kind := merged.get(_MARK):
        uses = tuple(merged.get(_MARK_USES) or _USES_OF.get(kind, USES))
        description += _accepted(kind, _listed_names(kind, uses))
    return Param(field.value, **merged, description=description)


def _accepted(kind: str, names: Sequence[str]) -> str:
    """Return the sentence that names what a form accepts; empty if all names, or the kind has no names."""
    if kind not in _LISTS or any(name in _ALL for name in names):
        return ""
    if not names:
        return f". The Variable {VARIABLE} lists none"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f". Only what the Variable {VARIABLE} lists: {', '.join(names[:_SHOWN])}{more}"


@cache
def _listed_names(kind: str, uses: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names and patterns for a kind of field. Cached, because Airflow parses DAG files repeatedly."""
    if kind not in _LISTS:
        return ()
    lists = uses if _LISTS[kind] == _BUCKETS else (_LISTS[kind],)
    try:
        allowed = listed()
    except OperatorInputError:  # the DAG can still be parsed; its tasks fail with the reason
        return ()
    names = [name for name in allowed[lists[0]] if all(is_listed(other, name, allowed[other]) for other in lists[1:])]
    if kind in ("s3 bucket", "source bucket"):
        schemes = ("s3://",) if kind == "s3 bucket" else ("s3://", "ais://")
        names = [name.removeprefix("s3://") for name in names if name.startswith(schemes)]
    return tuple(names)


def listed() -> dict[str, tuple[str, ...]]:
    """Return the lists of names that forms may use; a list in the Variable replaces the default of that list.

    Raises OperatorInputError unless the Variable is a JSON object whose values are lists of strings.
    """
    return _with_defaults(_renewed(_variable()))


def _with_defaults(value: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {**DEFAULTS, **{names: tuple(given) for names, given in value.items()}}


def _variable() -> dict[str, list[str]]:
    """Return the content of the Variable. Raises OperatorInputError; see `listed`."""
    from storeside.operators.shared import variable

    text = variable(VARIABLE)
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(
        name in (*DEFAULTS, _BUCKETS) and isinstance(names, list) and all(isinstance(one, str) for one in names)
        for name, names in given.items()
    ):
        raise OperatorInputError(
            f"the Airflow Variable {VARIABLE} is not a JSON object whose keys are among {', '.join(DEFAULTS)} and"
            " whose values are lists of strings: correct it, or delete it to use the defaults"
            " (docs/configuration.md, What forms may name)"
        )
    return given


def _renewed(given: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the Variable's value in its present form, which allows what the value allowed in earlier versions."""
    is_earlier = bool(given) and given.keys().isdisjoint({*USES, *_UNLIMITED})
    if not is_earlier and _BUCKETS not in given:
        return dict(given)
    return {
        **{use: list(given.get(_BUCKETS, _DEMONSTRATED)) for use in USES},
        **{names: list(entries) for names, entries in (_UNLIMITED if is_earlier else {}).items()},
        **{names: list(entries) for names, entries in given.items() if names != _BUCKETS},
    }


class FormOperator(BaseOperator):
    """Base class of all operators: checks the parameters from the form or the API request before the task runs."""

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Context, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        """Render the templates with entries as operators take them; Airflow calls this for mapped tasks, too."""
        in_dag: bool = self.has_dag()  # type: ignore[no-untyped-call]
        _read_entries(context, (self.dag.params if in_dag else {}, self.params))
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)

    def pre_execute(self, context: Context) -> None:
        """Check the run's parameters. Raises AirflowFailException if an entry is wrong, or a name is not listed."""
        super().pre_execute(context)
        with airflow_errors():
            self.checked_form = check_form(context)


class _Entries(dict[str, Any]):
    """The parameters of a run as operators take them."""


def _read_entries(context: Context, params: Iterable[Any]) -> None:
    """Replace the run's parameters in the context by their spelling that operators take."""
    given = context.get("params")
    if given is None or isinstance(given, _Entries):
        return
    found = _Entries(given)
    for name, schema in _schemas(params):
        if name in found:
            found[name] = entries.spelled(schema.get(_MARK, ""), schema, found[name])
    context["params"] = found


def _schemas(params: Iterable[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each parameter of a DAG and a task with its schema."""
    for some in map(ParamsDict, params):
        for name in some:
            yield name, some.get_param(name).schema


@dataclass(frozen=True)
class _Field:
    """A limited field of a run's form: its name and kind, the uses of its bucket, and its value."""

    name: str
    kind: str
    uses: tuple[str, ...]
    value: Any

    @property
    def values(self) -> Sequence[Any]:
        """The items of an array, or the only value."""
        return [self.value] if isinstance(self.value, str | Mapping) else self.value

    def wanted(self) -> Iterator[tuple[str, str]]:
        """Yield each list of the Variable that must contain a name, and the name."""
        for value in self.values:
            for names, name in _KINDS[self.kind](value):
                yield from ((use, name) for use in self.uses) if names == _BUCKETS else ((names, name),)


@dataclass(frozen=True)
class Form:
    """The limited fields of a run, after `check_form`, and the Variable's value at that time."""

    fields: Sequence[_Field]
    value: Mapping[str, list[str]]

    def may_create_database(self, table: str) -> bool:
        """Return whether a load may create a table's database: if a form named the table, only a listed one."""
        if not any(field.kind == "table" and table in field.values for field in self.fields):
            return True
        return is_listed("databases", table.partition(".")[0], _with_defaults(self.value)["databases"])

    def fault(self, template: str, table: str) -> str:
        """Return why a load whose table is this `template` with ``{table}`` may not load a table; empty if it may."""
        if not any(field.kind == "table" and template in field.values for field in self.fields):
            return ""
        listed = _with_defaults(self.value)["tables"]
        return (
            "" if is_listed("tables", table, listed) else f"it is not one of the tables that forms may use: {listed}"
        )

    def check_limits(self, groups: Mapping[str, Any]) -> None:
        """Check options by name against those of the task's code in `groups`; see `named_options.raised`.

        Raises OperatorInputError if the form raises a limit, or lets the load remove rows of earlier loads, and the
        Variable does not allow it.
        """
        from storeside.operators.shared import as_object
        from storeside.transfer.request.named_options import REMOVING, raised

        given = [(f.name, as_object(f.value, f.name)) for f in self.fields if f.kind == "load options"]
        numbers = ((field, f"{n}={most}") for field, options in given for n, most in raised(groups, options).items())
        removing = ((field, name) for field, options in given for name in REMOVING if options.get(name))
        _check(self.value, ((field, _OPTIONS, wanted) for field, wanted in (*numbers, *removing)))


def check_form(context: Context) -> Form:
    """Check all parameters with `form_choices`. Use it as ``pre_execute`` of operators that are not Storeside's.

    Raises OperatorInputError if an entry is wrong, or a name is not listed.
    """
    _check_entries(context)
    fields = list(_with_actions(_fields(context)))
    if not fields:
        return Form((), {})
    given = _variable()
    value = _renewed(given)
    if value != given:
        log.warning(
            "the Airflow Variable %s has the form of an earlier version, which does not distinguish reading, writing"
            " and deleting: replace it with this value, which allows the same, and shorten its lists"
            " (docs/configuration.md, What forms may name): %s", VARIABLE, json.dumps(value),
        )  # fmt: skip
    _check(value, ((field.name, names, name) for field in fields for names, name in field.wanted()))
    return Form(fields, value)


def _check_entries(context: Context) -> None:
    """Raise OperatorInputError with the faults of all entries."""
    found: dict[str, None] = {}
    for name, schema in _schemas((context["dag"].params, context["task"].params)):
        kind, value = schema.get(_MARK, ""), context["params"].get(name)
        found.update(dict.fromkeys(entries.faults(name, kind, schema, value)))
        if kind == "load options" and value:
            found.update(dict.fromkeys(_faults_of_options(name, value)))
    if found:
        raise OperatorInputError("; ".join(found))


def _faults_of_options(name: str, value: Any) -> Iterator[str]:
    """Yield the faults of single options by name; the load checks all together before it reads anything."""
    from storeside.operators.shared import as_object
    from storeside.transfer.request.named_options import require_option

    for option, one in as_object(value, name).items():
        try:
            require_option(option, one)
        except BadInput as e:
            yield f"{name}: {e}"


def _check(value: Mapping[str, list[str]], wanted: Iterable[tuple[str, str, str]]) -> None:
    """Raise OperatorInputError unless the Variable's value lists all names; each is a field, a list and a name."""
    allowed = _with_defaults(value)
    if refused := dict.fromkeys(one for one in wanted if not is_listed(*one[1:], allowed[one[1]])):
        raise OperatorInputError(_refusal(refused, {names: [*entries] for names, entries in value.items()}))


def _fields(context: Context) -> Iterator[_Field]:
    """Yield each parameter of the DAG and the task that has `form_choices` and a value."""
    for name, schema in _schemas((context["dag"].params, context["task"].params)):
        if (kind := schema.get(_MARK)) and (value := context["params"].get(name)):
            yield _Field(name, kind, tuple(schema.get(_MARK_USES) or _USES_OF.get(kind, USES)), value)


def _with_actions(fields: Iterator[_Field]) -> Iterator[_Field]:
    """Yield the fields; the bucket that a load reads has the use of the action after the load, too."""
    found = list(fields)
    actions = {str(value) for field in found if field.kind == "after load" for value in field.values}
    more = sorted({_ACTIONS[action] for action in actions if action in _ACTIONS})
    for field in found:
        reads = "read" in field.uses and field.kind not in _USES_OF
        yield replace(field, uses=tuple(dict.fromkeys((*field.uses, *more)))) if reads else field


def is_listed(names: str, name: str, patterns: Sequence[str]) -> bool:
    """Return whether a list of the Variable contains the name; the meaning of ``*`` depends on its key, `names`.

    An entry ``name=number`` of the list of options contains all smaller numbers, too, and ``name`` itself no number.
    """
    if names == _OPTIONS:
        return any(_allows(entry, name) for entry in patterns)
    characters = _STARS.get(names, _STAR)
    return any(re.fullmatch(_listing(pattern, characters), name) for pattern in patterns)


def _allows(entry: str, wanted: str) -> bool:
    option, _, most = entry.partition("=")
    name, _, number = wanted.partition("=")
    if entry in ("*", wanted):
        return True
    return option == name and most.isdecimal() and number.isdecimal() and int(number) <= int(most)


def _listing(pattern: str, characters: str) -> str:
    """Return the expression of an entry; each text between two ``*`` is found once, where it first is."""
    first, *others = map(re.escape, pattern.split("*"))
    middle = "".join(f"(?>{characters}*?{part})" for part in others[:-1])
    return f"{first}{middle}{characters}*{others[-1]}" if others else first


def _refusal(refused: Iterable[tuple[str, str, str]], value: dict[str, list[str]]) -> str:
    """Return the reason, and the Variable's whole value that would allow all refused names."""
    allowed, reasons = _with_defaults(value), []
    for field, names, name in refused:
        entries = value.setdefault(names, list(allowed[names]))
        if name not in entries:
            entries.append(name)
        what, use = ("buckets", names) if names in USES else (names, "use")
        some = ", ".join(allowed[names]) or "none"
        reasons.append(f"{field}: {name!r} is not one of the {what} that forms may {use}: {some}")
    return f"{'; '.join(reasons)}. To allow this, set the Airflow Variable {VARIABLE} to {json.dumps(value)}"
