"""Transformers by name: built-in ones, and users' own as ``package.module:attribute``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from .transformer import Data, LeaveOut, Result, Source, StreamTransformer, Transformer, WithFacts, WithSidecar

# The modules of built-in transforms, by the part of their names before the first underscore.
BUILT_IN = {
    "audio": "storeside.transformers.audio_transformers",
    "text": "storeside.transformers.text_transformers",
}
# The variable that tells the fork server which transform to load for its workers.
TRANSFORM_VARIABLE = "STORESIDE_TRANSFORM"
DEFAULT_MIME_TYPE = "application/octet-stream"
# The method of a class, and the name of a function, that reads and yields an object piece by piece.
STREAM = "transform_stream"
# The SDK's servers require this variable when they are built, and decoders do not have it.
_SDK, _SDK_VARIABLE = "aistore.sdk.etl.webserver.", "AIS_TARGET_URL"


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


class Stream:
    """Wraps a function, or the method of a class that may be a server of AIStore's SDK, as a stream transformer."""

    def __init__(self, stream: Callable[[BinaryIO, str, str], Iterator[Data]], owner: Any) -> None:
        self.transform_stream = stream
        stated = getattr(owner, "get_mime_type", lambda: DEFAULT_MIME_TYPE)
        self.mime_type = getattr(owner, "mime_type", None) or stated()
        self.needs = getattr(owner, "needs", ())


def locate(name: str) -> tuple[str, str]:
    """Return module and attribute of a built-in transform, or of ``package.module:attribute``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return BUILT_IN.get(name.partition("_")[0], BUILT_IN["audio"]), name
    if not module or not attribute:
        raise UnknownTransformError(f"transform {name!r}: write package.module:attribute")
    return module, attribute


def build(name: str) -> Transformer | StreamTransformer:
    """Build the transformer with this name.

    The attribute is a class or function without required arguments that returns a transformer, or a function
    ``transform(source, name, arguments)``, or one that is named ``transform_stream``. A class of AIStore's SDK that
    overrides `transform_stream` is a stream transformer. Raises UnknownTransformError if it is none of these, and any
    error of the import or the constructor.
    """
    module, attribute = locate(name)
    found: Any = getattr(import_module(module), attribute, None)
    if found is None or not callable(found):
        raise UnknownTransformError(f"transform {name!r}: module {module} has no function or class {attribute!r}")
    if not inspect.isclass(found) and _required(found) == 3:
        return Stream(found, found) if attribute == STREAM else _Function(found)
    with _sdk_variable(found):
        made: Any = found()
    if _is_stream(made):
        return Stream(made.transform_stream, made)
    if not callable(getattr(made, "transform", None)):
        raise UnknownTransformError(
            f"transform {name!r}: {attribute} returns a {type(made).__name__}, which has no method transform() or"
            f" {STREAM}()"
        )
    return made  # type: ignore[no-any-return]


def _is_stream(made: Any) -> bool:
    """Return whether a transformer has only `transform_stream`; the SDK's classes state that themselves."""
    stated = getattr(made, "use_streaming", None)
    if stated is not None:
        return bool(stated)
    return callable(getattr(made, STREAM, None)) and not callable(getattr(made, "transform", None))


@contextmanager
def _sdk_variable(found: Any) -> Iterator[None]:
    """Set the variable of the SDK's servers while one is built; no request is sent to this address."""
    classes = found.__mro__ if inspect.isclass(found) else ()
    absent = any(c.__module__.startswith(_SDK) for c in classes) and _SDK_VARIABLE not in os.environ
    if absent:
        os.environ[_SDK_VARIABLE] = "http://localhost"
    try:
        yield
    finally:
        if absent:
            del os.environ[_SDK_VARIABLE]


def _required(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(
        1 for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
