#!/usr/bin/env bash
# clickhouse-connect: a parameter that the statement does not use changes a text within the statement.
#
# Parameters are bound in ClickHouse's way, {name:Type}, and one would expect that a parameter without a place in the
# statement is sent in vain, or is an error. But a statement without any such place is taken for one in Python's way,
# %(name)s, and is formatted with the % operator: in the literal 'percent%20space' the characters "%20s" become the
# whole dictionary of parameters, and '100%%' becomes '100%'. No error says so. One place anywhere in the statement, or
# no parameters, and the text stays. So a condition that is left out of a statement, together with its {name:Type}, can
# change the names of objects elsewhere in it.
#
# Seen with clickhouse-connect 1.12.0 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check clickhouse-connect==1.12.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import sys
from importlib.metadata import version

from clickhouse_connect.driver.binding import bind_query

print("Python", platform.python_version(), "clickhouse-connect", version("clickhouse-connect"))
plain, placed = "SELECT 'percent%20space', '100%%'", "SELECT 'percent%20space', '100%%' WHERE 1 = {n:UInt8}"
found = {}
for statement, parameters in ((plain, {}), (placed, {"n": 1}), (plain, {"n": 1})):
    found[statement, bool(parameters)] = sent = bind_query(statement, parameters)[0]
    print(parameters, statement, "->", sent)
kept = found[plain, False] == plain and found[placed, True] == placed
changed = "{'n': 1}" in found[plain, True] and "'100%'" in found[plain, True]
sys.exit(0 if kept and changed else "the behaviour has changed")
PYTHON
