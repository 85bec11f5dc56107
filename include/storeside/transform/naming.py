"""The name of an object at the destination, by AIStore's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Naming:
    """The mapping of source names to destination names of one transform.

    `extensions` maps an extension without its dot to its replacement, case-sensitively; `prepend` precedes the whole
    name. The rule is that of `TCBMsg.ToName` in AIStore 5.0 (api/apc/tcbtco.go).
    """

    extensions: Mapping[str, str] = field(default_factory=dict)
    prepend: str = ""

    def destination(self, name: str) -> str:
        """Return the name that AIStore gives the object `name` at the destination."""
        stem, dot, extension = name.rpartition(".")
        if dot and extension in self.extensions:
            name = stem + dot + self.extensions[extension].lstrip(".")
        return self.prepend + name
