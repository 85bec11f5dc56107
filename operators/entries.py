"""Entries of forms: their spelling that operators take, and the entries that the task refuses.

Airflow's page hides why a ``pattern`` refuses an entry ("Bad Request"), so fields have `must_match` instead. The task
checks it before it reads or writes anything, and its message has the field, the reason and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

# The keywords in a Param's schema that hold the expression of a field, its remedy, and the scheme of a bare name.
PATTERN: Final = "storeside_pattern"
EXPECTED: Final = "storeside_expected"
BARE: Final = "storeside_bare"
# Kinds of `form_choices` whose values are texts of more than one part, or choices.
_KEPT: Final = frozenset({"load options", "after load", "tags"})


def must_match(pattern: str, expected: str) -> dict[str, Any]:
    """Return keywords for a ``Param``, each of whose texts the whole expression must match.

    :param pattern: regular expression
    :param expected: remedy in the message, such as ``write a size such as 10MiB``
    """
    return {PATTERN: pattern, EXPECTED: expected}


def bucket_alone(schemes: str) -> str:
    """Return the remedy of `must_match` for a field with a bucket of one of the schemes."""
    return f"write the name of a bucket, alone or after its scheme ({schemes}); a prefix has another field"


def _bucket(text: str, bare: str) -> str:
    uri = _place(text, bare)
    scheme, separator, rest = uri.partition("://")
    name = rest.rstrip("/")
    return uri if "/" in name and name[:1] != "@" else f"{scheme}{separator}{name}"  # the task refuses a prefix


def _s3_name(text: str, bare: str) -> str:
    return _bucket(text, bare).removeprefix("s3://")


def _place(text: str, bare: str) -> str:
    return text if "://" in text or not text else f"{bare}://{text}"


_WAYS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "bucket": _bucket,
    "backend": _bucket,
    "s3 bucket": _s3_name,
    "source bucket": _s3_name,
    "place": _place,
}


def spelled(kind: str, schema: Mapping[str, Any], value: Any) -> Any:
    """Return a field's value as operators take it: without blanks around it, a bucket with or without its scheme.

    The result of a second call is the same. A value that is no text stays as it is.

    :param kind: the kind of `form_choices`; empty for a field that has only `must_match`
    """
    if isinstance(value, list):
        return [spelled(kind, schema, item) for item in value if not isinstance(item, str) or item.strip()]
    if not isinstance(value, str) or kind in _KEPT or not (kind or PATTERN in schema):
        return value
    text = value.strip()
    if not kind:  # the names of some objects begin or end with a blank
        return value if _matches(schema, value) or not _matches(schema, text) else text
    return _WAYS[kind](text, schema.get(BARE, "s3")) if kind in _WAYS else text


def faults(name: str, kind: str, schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    """Yield why the task refuses a field's value."""
    if value is None or (value == "" and "null" in schema.get("type", ())):
        return
    if (found := spelled(kind, schema, value)) != value:
        yield f"{name}: {value!r}: write {found!r}"
        return
    least = schema.get("minLength", 0) if isinstance(value, str) else 0
    for text in _texts(value):
        if not isinstance(text, str):
            if PATTERN in schema:
                yield f"{name}: {text!r} is no text: {schema[EXPECTED]}"
        elif len(text) < least:
            yield f"{name}: it is empty: fill it in"
        elif PATTERN in schema and not _matches(schema, text):
            yield f"{name}: {text!r}: {schema[EXPECTED]}"


def _matches(schema: Mapping[str, Any], text: str) -> bool:
    return re.fullmatch(schema[PATTERN], text) is not None


def _texts(value: Any) -> Iterator[Any]:
    """Yield the texts of a field: the only one, those of a list, or the names and values of an object."""
    if isinstance(value, Mapping):
        for pair in value.items():
            yield from pair
    elif isinstance(value, list):
        yield from value
    else:
        yield value
