#!/usr/bin/env bash
# pyarrow: a map of Parquet of which only the values are read becomes a list of structs.
#
# ParquetFile.read takes nested columns by their paths. A struct of which only some fields are read stays a struct, and
# a list a list. But a map of which only the values are read becomes a list of structs with one field, without an
# error. What is inside it then has another path than in the schema of the file. So a program that reads the smallest
# column to look for NULL in it does not find the list in the map that the file's schema names.
#
# Seen with pyarrow 26.0.1 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import platform
import sys

import pyarrow as pa
import pyarrow.parquet as pq

print("Python", platform.python_version(), "pyarrow", pa.__version__)
VALUES = pa.list_(pa.int32())
COLUMNS = {
    "struct": (pa.struct([("key", pa.string()), ("value", VALUES)]), {"key": "a", "value": None}, "c.value.list.element"),
    "list": (pa.list_(VALUES), [None], "c.list.element.list.element"),
    "map": (pa.map_(pa.string(), VALUES), [("a", None)], "c.key_value.value.list.element"),
}
changed = []
for name, (kind, value, path) in COLUMNS.items():
    pq.write_table(pa.table({"c": pa.array([value], kind)}), "a.parquet")
    file = pq.ParquetFile("a.parquet")
    whole, part = file.read()["c"], file.read(columns=[path])["c"]
    print(f"{name}: whole {whole.type}, with only {path}: {part.type}, {part.to_pylist()}")
    if whole.type.id != part.type.id:
        changed.append(name)
print("another kind of type:", changed)
sys.exit(0 if changed == ["map"] else "the behaviour has changed")
PYTHON
