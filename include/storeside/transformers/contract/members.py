"""The members of tar shards that a server transforms, their new names, and the kind of result."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from storeside.transformers.transformer import utf8

from .names import unfit_extensions

# Environment variables of an ETL that works on the members of shards; `EtlSpec.of_members` writes them.
PATTERNS, EXTENSIONS, RESULTS = "SHARD_MEMBERS", "SHARD_EXTENSIONS", "SHARD_RESULTS"
TAR, LINES, OBJECTS = "tar", "jsonl", "objects"


@dataclass(frozen=True)
class Members:
    """The members of each shard that a transformer receives.

    `patterns` are shell patterns, in which ``*`` also matches slashes; all other members are kept unchanged.
    `extensions` maps the extension of a member (without dot) to that of its result, as `Naming` does for objects. If
    `results` is ``tar``, a shard becomes a tar archive; if it is ``jsonl``, it becomes JSON Lines, one per result. If
    it is ``objects``, no member is transformed: those that match are stored as objects, and the shard becomes JSON
    Lines that list them. Raises ValueError for other results, and for extensions that could lead a result out of its
    folder.
    """

    patterns: tuple[str, ...]
    extensions: Mapping[str, str] = field(default_factory=dict)
    results: str = TAR

    def __post_init__(self) -> None:
        if self.results not in (TAR, LINES, OBJECTS):
            raise ValueError(f"{RESULTS}={self.results!r}: use {TAR}, {LINES} or {OBJECTS}")
        if reason := unfit_extensions(self.extensions):
            raise ValueError(f"{EXTENSIONS}: {reason}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Members | None:
        """Read the variables that `environment()` writes; None if the server transforms whole objects.

        Raises ValueError with the name of an invalid variable.
        """
        env = os.environ if environment is None else environment
        patterns = tuple(filter(None, (text.strip() for text in env.get(PATTERNS, "").split(","))))
        if not patterns:
            return None
        try:
            extensions = json.loads(env.get(EXTENSIONS) or "{}")
        except ValueError as e:
            raise ValueError(f"{EXTENSIONS} is not JSON: {e}") from e
        if not isinstance(extensions, dict) or not all(isinstance(value, str) for value in extensions.values()):
            raise ValueError(f"{EXTENSIONS} does not map extensions to extensions")
        return cls(patterns, extensions, env.get(RESULTS) or TAR)

    def environment(self) -> dict[str, str]:
        """Return the variables that pass this to a server, without defaults."""
        given = {PATTERNS: ",".join(self.patterns)}
        if self.extensions:
            given[EXTENSIONS] = json.dumps(dict(self.extensions), sort_keys=True)
        return given if self.results == TAR else {**given, RESULTS: self.results}

    def include(self, name: str) -> bool:
        """Whether the transformer receives the member `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def renamed(self, name: str) -> str:
        """Return the name of the result of the member `name`."""
        stem, dot, extension = name.rpartition(".")
        if dot and extension in self.extensions:
            return stem + dot + self.extensions[extension].lstrip(".")
        return name


def line(name: str, facts: bytes | memoryview) -> bytes:
    """Return facts, one JSON object, as a line with the field ``object``, and otherwise with the same characters.

    An own field ``object`` is replaced. Raises ValueError for anything else.
    """
    found, text = one_object(bytes(facts))
    told = json.dumps({"object": utf8(name)}, ensure_ascii=False)
    if "object" in found:
        text = json.dumps({**found, "object": utf8(name)}, ensure_ascii=False, allow_nan=False)
    elif found:
        text = f"{told[:-1]}, {text[1:].lstrip()}"
    else:
        text = told
    return text.encode("utf-8", "backslashreplace") + b"\n"


def one_object(content: bytes) -> tuple[dict[str, Any], str]:
    """Return one JSON object, and its text on one line. Raises ValueError for anything else, and RecursionError."""
    text = content.decode(json.detect_encoding(content))
    found: Any = json.loads(text, parse_constant=_no_number)
    if not isinstance(found, dict):
        raise ValueError("it is not one JSON object")
    # Line feeds can only be between the parts of JSON: within a text they are escaped.
    return found, text.strip().replace("\r", " ").replace("\n", " ")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")
