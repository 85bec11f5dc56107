"""Transformers by name: built-in ones, and a user's as ``package.module:attribute``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .transformer import Data, Result, Source, Transformer

# The modules of built-in transforms, by the part of their names before the first underscore.
BUILT_IN = {
    "audio": "storeside.transformers.audio_transformers",
    "text": "storeside.transformers.text_transformers",
}
# Tells the fork server which transform to load for its workers.
TRANSFORM_VARIABLE = "STORESIDE_TRANSFORM"
DEFAULT_MIME_TYPE = "application/octet-stream"


class UnknownTransformError(ValueError):
    """There is no such transform; the message says what was looked for, and where."""


class _Function:
    """A plain function as a transformer."""

    def __init__(self, function: Callable[[Source, str, str], Data | Result]) -> None:
        self.transform = function
        self.mime_type = getattr(function, "mime_type", DEFAULT_MIME_TYPE)
        self.needs = getattr(function, "needs", ())
        self.opens_source = getattr(function, "opens_source", False)


def locate(name: str) -> tuple[str, str]:
    """Return module and attribute of a transform: a built-in one, or ``package.module:attribute``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return BUILT_IN.get(name.partition("_")[0], BUILT_IN["audio"]), name
    if not module or not attribute:
        raise UnknownTransformError(f"transform {name!r}: write package.module:attribute")
    return module, attribute


def build(name: str) -> Transformer:
    """Make the transformer of that name.

    The attribute is a class or a function without arguments that makes one, or itself the function
    ``transform(source, name, arguments)``. Raises UnknownTransformError when it is none of these, and any error
    that the import or the constructor raises.
    """
    module, attribute = locate(name)
    found: Any = getattr(import_module(module), attribute, None)
    if found is None or not callable(found):
        raise UnknownTransformError(f"transform {name!r}: module {module} has no function or class {attribute!r}")
    if not inspect.isclass(found) and _required(found) == 3:
        return _Function(found)
    made = found()
    if not callable(getattr(made, "transform", None)):
        raise UnknownTransformError(
            f"transform {name!r}: {attribute} makes a {type(made).__name__} without transform()"
        )
    return made  # type: ignore[no-any-return]


def _required(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(
        1 for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
