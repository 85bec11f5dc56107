"""Files that writers leave beside data, such as Spark's ``_SUCCESS``, Databricks' ``_committed_1``, and checksums.

Spark, Hive and pyarrow ignore them, too. A folder's name makes no marker: ``_raw/x.csv`` is data.
"""

from __future__ import annotations

import re

# Matches no key.
NONE = "^$"
# The patterns of markers: their regular expressions in RE2, and when the last part of a load's keys names them.
MARKERS = {
    "_*": (r"(^|/)_[^/]*$", re.compile(r"(?:^|[{,])_")),
    ".*": (r"(^|/)\.[^/]*$", re.compile(r"(?:^|[{,])\.")),
    "*.crc": (r"\.crc$", re.compile("crc")),
    "*.metadata": (r"\.metadata$", re.compile("metadata")),
    "*_$folder$": (r"_\$folder\$$", re.compile(r"folder\$")),
}


def markers_of(keys: str) -> str:
    """Return a regular expression for the keys of markers, except those that a load's keys name."""
    last = keys.rpartition("/")[2]
    return "|".join(marker for marker, named in MARKERS.values() if not named.search(last)) or NONE
