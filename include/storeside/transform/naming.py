"""The name of an object at the destination, by AIStore's rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.names import require_fit_prefix, unfit
from storeside.aistore.spec import EtlSpec
from storeside.transformers.contract.names import unfit_extensions


@dataclass(frozen=True)
class Naming:
    """The mapping of source names to destination names of one transform.

    `extensions` maps an extension without its dot to its replacement, case-sensitively; `prepend` precedes the whole
    name. The rule is that of `TCBMsg.ToName` in AIStore 5.0 (api/apc/tcbtco.go), which checks no names. `refuses`
    returns why readers could not use the result of an object; None if they can. `ignores` returns the pattern of
    the names that the job leaves out and counts; None for other names. Raises AIStoreInputError for extensions and a
    prefix that could lead a result out of its folder or bucket, so AIStore's own renaming of an object with a fit
    name stays there, too.
    """

    extensions: Mapping[str, str] = field(default_factory=dict)
    prepend: str = ""
    # no part of the `repr`, which identifies the selection of a job in the ledger
    refuses: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)
    ignores: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if reason := unfit_extensions(self.extensions):
            raise AIStoreInputError(reason)
        require_fit_prefix(self.prepend, f"prepend {self.prepend!r}")

    def destination(self, name: str) -> str:
        """Return the name that AIStore gives the object `name` at the destination."""
        stem, dot, extension = name.rpartition(".")
        if dot and extension in self.extensions:
            name = stem + dot + self.extensions[extension].lstrip(".")
        return self.prepend + name

    def ignored(self, name: str) -> str | None:
        """Return the pattern by which the job leaves the object `name` out; None if it does not."""
        return self.ignores(name) if self.ignores else None

    def refusal(self, name: str) -> str | None:
        """Return why there can be no result of the object `name`; None when AIStore can store both."""
        if reason := unfit(name):
            return reason
        result = self.destination(name)
        if reason := unfit(result):
            return f"its result would be named {result!r}: {reason}"
        return self.refuses(name) if self.refuses else None


def decisive(spec: EtlSpec, naming: Naming) -> str:
    """Return a digest of what decides, beside the effect, whether an object can be transformed."""
    text = json.dumps([spec.limits, sorted(naming.extensions.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
