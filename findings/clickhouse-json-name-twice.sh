#!/usr/bin/env bash
# ClickHouse: a name that an object has twice is refused by the type JSON, but not if one value is a scalar and one an
# object.
#
# By the manual, a path that an object has twice is an error unless type_json_skip_duplicated_paths is set, and one would
# expect this for every name that occurs twice. ClickHouse compares paths to values, however, and not names:
# {"a": 1, "a": {"c": 2}} has the paths a and a.c, which differ. It stores both values and prints an object that has the
# name twice again. The same two paths also come from {"a": 1, "a.c": 2}, which has each name once, so nobody can tell
# afterwards which of them was read.
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
found = {}
for text in ('{"a": 1, "a": 2}', '{"a": {"c": 1}, "a": {"c": 2}}', '{"a": 1, "a": {"c": 2}}', '{"a": 1, "a.c": 2}'):
    try:
        statement = f"SELECT CAST('{text}' AS JSON) AS v, arraySort(JSONAllPaths(v))"
        found[text] = chdb.query(statement, "TabSeparated").data().strip()
    except Exception as e:
        found[text] = f"refused: {str(e).partition(':')[2].strip()[:90]}"
    print(text, "->", found[text])
same, nested, mixed, dotted = found.values()
expected = same.startswith("refused") and nested.startswith("refused")
stored = '"a":' in mixed and mixed.count('"a"') == 2 and mixed.endswith("['a','a.c']") and dotted.endswith("['a','a.c']")
sys.exit(0 if expected and stored else "the behaviour has changed")
PYTHON
