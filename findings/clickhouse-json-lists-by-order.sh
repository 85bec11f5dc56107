#!/usr/bin/env bash
# ClickHouse: in a JSON column, the digits of a list of integers depend on the lists in the rows before it.
#
# The type JSON gives each value its own type: after {"x": 0.5}, {"x": 9007199254740993} is an Int64. One would expect the
# same of lists, and that the order of rows changes no value. But after {"l": [0.5]}, the list [9007199254740993] becomes
# an Array(Nullable(Float64)) with 9007199254740992, without an error. Before that row, or alone, it keeps its digits.
#
# Seen with chdb-core 26.9.0 (ClickHouse 26.9.2.1) on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb-core==26.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import platform
import sys

import chdb

print("Python", platform.python_version(), "chdb", chdb.__version__, "engine", chdb.engine_version)
LARGE = 9007199254740993
found = {}
for name, rows in {
    "list alone": [{"v": [LARGE]}],
    "list before a fraction": [{"v": [LARGE]}, {"v": [0.5]}],
    "list after a fraction": [{"v": [0.5]}, {"v": [LARGE]}],
    "number after a fraction": [{"v": 0.5}, {"v": LARGE}],
}.items():
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps({"j": row}) + "\n" for row in rows)
    query = "SELECT j, dynamicType(j.v) AS type FROM file('rows.jsonl', JSONEachRow, 'j JSON')"
    answer = [json.loads(line) for line in chdb.query(query, "JSONEachRow").data().splitlines()]
    found[name] = [row["j"] for row in answer] == rows
    print(f"{name}: {'kept' if found[name] else 'changed'}:", *answer)
expected = {"list alone": True, "list before a fraction": True, "list after a fraction": False, "number after a fraction": True}
sys.exit(0 if found == expected else "the behaviour has changed")
PYTHON
