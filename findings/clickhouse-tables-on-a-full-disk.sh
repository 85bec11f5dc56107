#!/usr/bin/env bash
# ClickHouse: on a full disk, CREATE TABLE and ALTER TABLE succeed, and the server does not start again.
#
# One would expect that a statement which cannot write the definition of its table is an error, and leaves the former
# definition as it was. But both statements end without an error, the running server continues with the new columns, and
# the definitions on the disk are empty files: that of the new table, and that of a table with rows, which gets a column.
# When the disk has space again, nothing writes them. SHOW CREATE TABLE fails, and the next start of the server ends with
# an error about the first empty file. So a disk that was full for seconds is an outage at the next restart.
#
# The file system of 64 MB is mounted in a namespace of its own, which needs root or user namespaces.
# Seen with chdb-core 26.9.0 (ClickHouse 26.9) on Python 3.11, tmpfs and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb-core==26.9.0
cat >"$folder/fill.py" <<'PYTHON'
import os
import sys

from chdb import session

engine = session.Session("disk/data")
engine.query("CREATE DATABASE d ENGINE = Atomic")
engine.query("CREATE TABLE d.old (n Int64) ENGINE = MergeTree ORDER BY n")
engine.query("INSERT INTO d.old SELECT number FROM numbers(1000)")
with open("disk/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as e:
        print("the disk is full:", e.strerror)
for statement in ("ALTER TABLE d.old ADD COLUMN m Int64", "CREATE TABLE d.new (n Int64) ENGINE = MergeTree ORDER BY n"):
    engine.query(statement)
    print("no error:", statement)
os.remove("disk/filler")
sys.stdout.flush()
os._exit(0)  # as a server that is killed
PYTHON
cat >"$folder/start.py" <<'PYTHON'
import glob
import os
import platform
import sys
from importlib.metadata import version

print("Python", platform.python_version(), "chdb-core", version("chdb-core"))
sizes = {os.path.basename(path): os.path.getsize(path) for path in glob.glob("disk/data/store/*/*/*.sql")}
print("bytes of the definitions:", sizes)
from chdb import session

try:
    session.Session("disk/data")
except RuntimeError as e:
    print("the next start:", e)
    sys.exit(0 if sizes == {"old.sql": 0, "new.sql": 0} else "the behaviour has changed")
sys.exit("the behaviour has changed: it starts")
PYTHON
mkdir "$folder/disk"
cd "$folder"
[ "$(id -u)" = 0 ] && alone=(unshare --mount) || alone=(unshare --user --map-root-user --mount)
"${alone[@]}" bash -c 'mount -t tmpfs -o size=64m tmpfs disk && venv/bin/python fill.py && venv/bin/python start.py'
