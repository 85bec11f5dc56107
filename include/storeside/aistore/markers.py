"""Files that writers leave beside data, such as Spark's ``_SUCCESS``, Databricks' ``_committed_1``, and checksums.

Spark, Hive and pyarrow ignore them, too. A folder's name makes no marker: ``_raw/x.csv`` is data.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# Matches no key.
NONE = "^$"
# The patterns of markers, and when the last part of a job's keys names them. A pattern that ends with `*` is the
# beginning of the last part of a name, each other one its end.
_NAMED = {
    "_*": re.compile(r"(?:^|[{,])_"),
    ".*": re.compile(r"(?:^|[{,])\."),
    "*.crc": re.compile("crc"),
    "*.metadata": re.compile("metadata"),
    "*_$folder$": re.compile(r"folder\$"),
}
_STARTS = tuple(name[:-1] for name in _NAMED if name.endswith("*"))
_ENDS = tuple(name[1:] for name in _NAMED if not name.endswith("*"))
# The patterns with their regular expressions in RE2.
MARKERS = {f"{start}*": f"(^|/){re.escape(start)}[^/]*$" for start in _STARTS}
MARKERS |= {f"*{end}": f"{re.escape(end)}$" for end in _ENDS}


def markers_of(keys: str) -> str:
    """Return a regular expression for the keys of markers, except those that a load's keys name."""
    named = named_by(keys)
    return "|".join(regex for name, regex in MARKERS.items() if name not in named) or NONE


def named_by(keys: str) -> Collection[str]:
    """Return the patterns of markers that the last part of a job's keys, or of its prefix, names."""
    last = keys.rpartition("/")[2]
    return [name for name, is_named in _NAMED.items() if is_named.search(last)]


def marker(name: str, named: Collection[str] = ()) -> str:
    """Return the pattern of the marker that an object of this name is, unless it is `named`; otherwise ``""``."""
    last = name[name.rfind("/") + 1 :]
    if not last.startswith(_STARTS) and not last.endswith(_ENDS):
        return ""
    kinds = (kind for kind in MARKERS if kind not in named)
    return next((k for k in kinds if (last.startswith(k[:-1]) if k.endswith("*") else last.endswith(k[1:]))), "")
