"""Object names: folder markers, names that AIStore cannot store, and templates that expand to many names."""

from __future__ import annotations

from storeside.aistore.errors import AIStoreInputError
from storeside.transformers.contract.names import unfit

__all__ = ["expand", "is_folder_marker", "require_fit", "require_fit_prefix", "unfit"]

_MOST_NAMES = 1_000_000
# Folders of a user's bucket in which Storeside writes objects for bucket checks and measurements.
PROBES, SCRATCH, THROUGHPUT = ".storeside-doctor/", "storeside-measurements/", "storeside-throughput/"
# Suffixes of folder markers: the S3 console writes the first, Hadoop and EMR the second.
FOLDER_ENDS = ("/", "_$folder$")


def is_folder_marker(name: str, size: int | None) -> bool:
    """Return whether an object of `size` bytes only makes its folder visible; pipelines skip such an object.

    An object with content, or of unknown size (None), is never a folder marker, whatever its name.
    """
    return size == 0 and name.endswith(FOLDER_ENDS)


def require_fit(name: str, what: str) -> str:
    """Return the name of an object. Raises AIStoreInputError, which begins with `what`, if no object can have it."""
    if reason := unfit(name):
        raise AIStoreInputError(f"{what}: {reason}")
    return name


def require_fit_prefix(prefix: str, what: str) -> str:
    """Return a prefix of names. Raises AIStoreInputError, which begins with `what`, if names cannot begin with it."""
    return prefix and require_fit(f"{prefix}x", what)[:-1]


def expand(template: str) -> list[str]:
    """Return the names that a template such as ``shard-{0001..0100}.tar`` or ``{a,b}/x`` expands to.

    Raises AIStoreInputError for a template with unbalanced braces, or for more than a million names.
    """
    from itertools import islice

    from braceexpand import braceexpand

    try:
        names = list(islice(braceexpand(template, escape=False), _MOST_NAMES + 1))
    except ValueError as e:
        raise AIStoreInputError(f"template {template!r}: {e}") from e
    if len(names) > _MOST_NAMES:
        raise AIStoreInputError(f"template {template!r} expands to more than {_MOST_NAMES} names: use a prefix")
    return names
