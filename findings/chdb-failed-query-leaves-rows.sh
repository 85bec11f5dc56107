#!/usr/bin/env bash
# chDB: rows of a query that failed stand before the result of the next query.
#
# One would expect that a query that raises an error leaves nothing behind: the next query on the same connection
# returns its own result. Instead, chDB keeps what the failed query had already written in its output format, and the
# result of the next query begins with it. `SELECT 1` then answers with thousands of lines that are not its own, and
# no error is raised. The query after that is right again. A program that catches the error and goes on reads wrong
# rows, or fails in its parser, at a statement that is not at fault.
#
# Seen with chdb-core 26.9.0 (ClickHouse 26.9.2.1) on Python 3.11 and Linux x86-64, for CSV, JSONEachRow, TabSeparated
# and Native.
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

connection = chdb.connect(":memory:")
print("Python", platform.python_version(), "chdb", chdb.__version__, "engine", chdb.engine_version)
ROWS = "SELECT number, throwIf(number = 150000) FROM numbers(200000) SETTINGS max_block_size = 1000"
changed = False
for name in ("CSV", "JSONEachRow", "TabSeparated", "Native"):
    try:
        connection.query(ROWS, name)
        print(name, "the query did not fail")
        changed = True
    except RuntimeError as e:
        print(name, "raised:", str(e).partition(":")[2].strip()[:60])
    first = connection.query("SELECT 1", "CSV").bytes()
    second = connection.query("SELECT 1", "CSV").bytes()
    print(f"  next SELECT 1: {len(first)} bytes that begin with {first[:30]!r}; the one after it: {second!r}")
    changed |= first == b"1\n" or second != b"1\n"
sys.exit("the behaviour has changed" if changed else 0)
PYTHON
