#!/usr/bin/env bash
# ClickHouse: a name with an escape is read as a column, in a Map and in a JSON value, but not in a named tuple.
#
# By RFC 8259, "a\u0026b" and "a&b" are the same name, and Go's encoding/json writes the first one unless it is told
# otherwise. One would expect that a format of JSON reads both everywhere. JSONEachRow does so for the names of columns, for the keys of
# a Map, and for paths of the type JSON. Within a named Tuple it compares the name as it is written: the document without the
# escape is read, and of the same document with it, the value is lost without an error, and 0 stands in its place. With
# input_format_json_ignore_unknown_keys_in_named_tuple = 0 the statement fails and says that the tuple has no such element.
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
TUPLE = "o Tuple(`a&b` Int64)"
STRICT = " SETTINGS input_format_json_ignore_unknown_keys_in_named_tuple = 0"
documents = {"`a&b` Int64": '{"a&b": 1}', "o Map(String, Int64)": '{"o": {"a&b": 1}}', "o JSON": '{"o": {"a&b": 1}}'}
documents[TUPLE] = documents["o JSON"]
found = {}
for structure, plain in documents.items():
    for text in (plain, plain.replace("&", r"\u0026")):
        with open("document.jsonl", "w") as file:
            file.write(text)
        for settings in ("", STRICT):
            try:
                query = f"SELECT * FROM file('document.jsonl', JSONEachRow, '{structure}'){settings}"
                row = json.loads(chdb.query(query, "JSONEachRow").data())
            except Exception as e:
                row = f"refused: {str(e).partition('DB::Exception:')[2].strip()[:70]}"
            found[structure, "\\" in text, settings] = row
            print(structure, text, settings, "->", row)
differs = {place for place, row in found.items() if row != json.loads(documents[place[0]])}
lost, refused = found[TUPLE, True, ""], found[TUPLE, True, STRICT]
as_seen = differs == {(TUPLE, True, ""), (TUPLE, True, STRICT)} and lost == {"o": {"a&b": 0}}
sys.exit(0 if as_seen and "doesn't have element" in refused else "the behaviour has changed")
PYTHON
