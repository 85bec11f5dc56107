#!/usr/bin/env bash
# pyiceberg: a property of a table names the Python class that each reader of the table imports and calls.
#
# The properties of a table belong to its data: who may write a table sets them, and a catalogue hands them to all
# readers. One would expect that they choose nothing in a reader's process but how the table is read. But pyiceberg takes
# the property `py-io-impl` from the table's metadata over the reader's own configuration: load_table() imports the module
# that it names, with all that this executes, and calls the attribute with the catalogue's properties, secrets included.
# Here a table names the module `this`, and the reader prints the Zen of Python; a reader that set `py-io-impl` itself
# does so, too.
#
# Seen with pyiceberg 0.12.0 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite,pyarrow]==0.12.0"
cat >"$folder/write.py" <<'PYTHON'
import sys

import pyarrow as pa
from pyiceberg.catalog import load_catalog

folder = sys.argv[1]
catalog = load_catalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("sales")
table = catalog.create_table("sales.orders", pa.schema([("n", pa.int64())]))
files = table.io
catalog._load_file_io = lambda *_, **__: files  # the writer itself would stop at its own property
with table.transaction() as change:
    change.set_properties({"py-io-impl": "this.Files"})
PYTHON
cat >"$folder/read.py" <<'PYTHON'
import sys

from pyiceberg.catalog import load_catalog

folder = sys.argv[1]
own = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", "s3.secret-access-key": "of the reader"}
catalog = load_catalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse", **own)
try:
    catalog.load_table("sales.orders")
except AttributeError as e:
    print("the reader then stops:", e)
sys.exit(None if "this" in sys.modules else "the behaviour has changed")
PYTHON
"$folder/venv/bin/python" -c 'import platform; from importlib.metadata import version; print("Python", platform.python_version(), "pyiceberg", version("pyiceberg"))'
"$folder/venv/bin/python" "$folder/write.py" "$folder"
"$folder/venv/bin/python" "$folder/read.py" "$folder" | tee "$folder/told"
grep -q "The Zen of Python" "$folder/told"
echo "held: reading a table imported the module that its property names"
