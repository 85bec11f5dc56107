"""Object names: folder markers, names that AIStore cannot store, and templates that expand to many names."""

from __future__ import annotations

from storeside.aistore.errors import AIStoreInputError

# File systems refuse a longer path component (NAME_MAX, limits.h). AIStore's limit on a whole name is larger.
_COMPONENT = 255
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


def unfit(name: str) -> str | None:
    """Return why an AIStore cluster cannot store an object of this name; None when it can.

    AIStore stores objects as files below a bucket's folder and joins the name to its path. ``..`` would leave the
    bucket, even its mountpath. Empty or ``.`` components would be dropped, so another object would be overwritten.
    """
    parts = name.split("/")
    if ".." in parts:
        return "the name has a '..' component, which would leave the bucket's folder"
    if "" in parts:
        return "the name has an empty component (a leading, trailing or double '/'), which AIStore drops"
    if "." in parts:
        return "the name has a '.' component, which AIStore drops"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "the name has control characters, which AIStore's listings cannot contain"
    if any(len(part.encode()) > _COMPONENT for part in parts):
        return f"a component of the name is longer than {_COMPONENT} bytes"
    return None


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
