"""Which members of a tar shard WebDataset reads, by its own rules (webdataset 1.0.2, `webdataset.tariterators`)."""

from __future__ import annotations

import re

# `tar_file_iterator` leaves out members whose names begin so, and members without a folder whose names begin and end
# with two underscores.
_SKIPPED = re.compile(r"__[^/]*__(/|$)")
# `group_by_keys` keeps fields of its own under such names in each sample. It refuses a shard with a member
# `a.__key__` or `a.__url__`, and leaves out a sample with `a.__bad__`.
_FIELD = re.compile(r"__.*__")


def unread(name: str, extension: str) -> str | None:
    """Return why WebDataset does not read a member, whose name ends with `extension`; None if it does.

    The extension begins after the first dot of the last part of the name, and has no dot at its beginning.
    """
    if _SKIPPED.match(name) or ("/" not in name and name.startswith("__") and name.endswith("__")):
        return (
            "WebDataset takes it for metadata and does not read it, because of the underscores around its first part"
        )
    if _FIELD.fullmatch(extension):
        return f"WebDataset has fields of its own under extensions such as {extension!r}"
    return None
