"""Transformers by name: built-in ones, and users' own as ``package.module:attribute``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from .transformer import Data, LeaveOut, Result, Source, Transformer, WithFacts, WithSidecar

# The modules of built-in transforms, by the part of their names before the first underscore.
BUILT_IN = {
    "audio": "storeside.transformers.audio_transformers",
    "text": "storeside.transformers.text_transformers",
}
# The variable that tells the fork server which transform to load for its workers.
TRANSFORM_VARIABLE = "STORESIDE_TRANSFORM"
DEFAULT_MIME_TYPE = "application/octet-stream"


class UnknownTransformError(ValueError):
    """The transform does not exist; the message states which name was searched in which module."""


class _Function:
    """Wraps a plain function as a transformer."""

    def __init__(
        self, function: Callable[[Source, str, str], Data | WithSidecar | WithFacts | LeaveOut | Iterator[Result]]
    ) -> None:
        self.transform = function
        self.mime_type = getattr(function, "mime_type", DEFAULT_MIME_TYPE)
        self.needs = getattr(function, "needs", ())
        self.opens_source = getattr(function, "opens_source", False)


def locate(name: str) -> tuple[str, str]:
    """Return module and attribute of a built-in transform, or of ``package.module:attribute``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return BUILT_IN.get(name.partition("_")[0], BUILT_IN["audio"]), name
    if not module or not attribute:
        raise UnknownTransformError(f"transform {name!r}: write package.module:attribute")
    return module, attribute


def build(name: str) -> Transformer:
    """Build the transformer with this name.

    The attribute is a class or function without required arguments that returns a transformer, or a function
    ``transform(source, name, arguments)``. Raises UnknownTransformError if it is none of these, and any error of the
    import or the constructor.
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
            f"transform {name!r}: {attribute} returns a {type(made).__name__}, which has no method transform()"
        )
    return made  # type: ignore[no-any-return]


def _required(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(
        1 for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
