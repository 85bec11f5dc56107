"""Names that AIStore can store: the checks that a name passes before AIStore stores or reads an object of that name.

AIStore joins a name to a bucket's folder, and clients remove dot segments from the path of a request. So a name that
leads elsewhere means an object of another bucket. AIStore 5.0 checks the names in most requests, but not the names
that its jobs make of others, nor the lists of names in requests for jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# File systems refuse a longer path component (NAME_MAX, limits.h). AIStore's limit on a whole name is larger.
_LONGEST = 255
_COMPONENTS = {
    "..": "the name has a '..' component, which would leave the bucket's folder",
    "": "the name has an empty component (a leading, trailing or double '/'), which AIStore drops",
    ".": "the name has a '.' component, which AIStore drops",
}
# An extension of a result, with or without its dot. Two dots, or a dot at the end, could make a component of dots.
EXTENSION = r"\.?[\w-]+(?:\.[\w-]+)*"


def unfit(name: str) -> str | None:
    """Return why an AIStore cluster cannot store an object of this name; None when it can.

    AIStore stores objects as files below a bucket's folder and joins the name to its path. ``..`` would leave the
    bucket, even its mountpath. Empty or ``.`` components would be dropped, so another object would be overwritten.
    """
    parts = name.split("/")
    for part, reason in _COMPONENTS.items():
        if part in parts:
            return reason
    if name.startswith("~/"):
        return "the name begins with '~/', which AIStore refuses"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "the name has control characters, which AIStore's listings cannot contain"
    try:
        longest = max(len(part.encode("utf-8", "surrogateescape")) for part in parts)
    except UnicodeEncodeError:
        return "the name is not Unicode"
    return f"a component of the name is longer than {_LONGEST} bytes" if longest > _LONGEST else None


def unfit_extensions(extensions: Mapping[str, str]) -> str | None:
    """Return why a mapping of extensions cannot name results; None when it can.

    An extension has no slash and no ``..``, so that a result stays in the folder of its object.
    """
    for text in (part for pair in extensions.items() for part in pair):
        if not re.fullmatch(EXTENSION, text):
            return (
                f"extension {text!r}: write letters, digits, '_' and '-', with single dots between them, such as flac"
                " or json.gz, so that results stay in the folders of their objects"
            )
    for text in extensions:
        if text.startswith("."):
            return f"extension {text!r}: write it without the dot before it, as {text[1:]!r}"
    return None
