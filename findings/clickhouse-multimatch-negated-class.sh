#!/usr/bin/env bash
# ClickHouse: multiMatchAny finds matches that match does not, if a pattern has a negated class of several characters.
#
# By the manual, multiMatchAny answers for several patterns at once what match answers for one, apart from back
# references. But a class such as [^;,] excludes only the first character, or range, that is written in it: the text 1,2
# then has a match of 1[^;,], and 1;2 has none. match finds none in either. Classes of one range, such as [^0-9], and
# classes without the circumflex agree. So a search by such a pattern returns rows that it should not.
#
# Seen with chdb-core 26.9.0 (ClickHouse 26.9.2.1) on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb-core==26.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import sys

import chdb

print("Python", platform.python_version(), "chdb", chdb.__version__, "engine", chdb.engine_version)
CASES = [
    ("1,2", "1[^;,]"), ("1;2", "1[^;,]"), ("1a", "1[^ac]"), ("1c", "1[^ac]"), ("1b", "1[^ac]"),
    ("1a", "1[^ab]"), ("1b", "1[^ab]"), ("15", "1[^0-9]"), ("1;", "1[;,]"), ("1a", "1[;,]"),
]  # fmt: skip
differing = []
for text, pattern in CASES:
    query = f"SELECT match('{text}', '{pattern}'), multiMatchAny('{text}', ['{pattern}'])"
    one, many = chdb.query(query, "TSV").data().split()
    print(f"{text!r} and {pattern}: match {one}, multiMatchAny {many}")
    if one != many:
        differing.append((text, pattern))
print("differing:", differing)
sys.exit(0 if differing == [("1,2", "1[^;,]"), ("1c", "1[^ac]")] else "the behaviour has changed")
PYTHON
