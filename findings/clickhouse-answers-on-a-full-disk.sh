#!/usr/bin/env bash
# ClickHouse: on a full disk, a query whose answer waits for its end succeeds without rows.
#
# With wait_end_of_query=1, which clickhouse-connect sends with each query() that is not streamed, an answer begins after
# the end of its query, so that an error cannot follow a part of the rows. One would expect that an answer which cannot
# be stored until then is an error, all the more as the parameter exists for complete answers. But ClickHouse stores it
# in a file, does not notice that the file got no byte, and sends status 200, a summary that counts the rows, and an
# empty body: a table with rows looks empty. Without the parameter, or with a buffer_size that holds the answer in
# memory, all rows arrive.
#
# The file system of 64 MB is mounted in a namespace of its own, which needs root or user namespaces.
# Seen with chdb-core 26.9.0 (ClickHouse 26.9) on Python 3.11, tmpfs and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb-core==26.9.0
cat >"$folder/ask.py" <<'PYTHON'
import os
import platform
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
from importlib.metadata import version

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.makedirs("disk/home/.clickhouse-local")
with open("disk/home/.clickhouse-local/config.xml", "w") as config:
    config.write(
        f"<clickhouse><listen_host>127.0.0.1</listen_host><http_port>{port}</http_port>"
        f"<tmp_path>{os.getcwd()}/disk/tmp/</tmp_path></clickhouse>"
    )
os.environ["HOME"] = f"{os.getcwd()}/disk/home"

from chdb import _chdb  # its engine is clickhouse-local, which can listen

STATEMENTS = (
    "CREATE DATABASE d ENGINE = Atomic",
    "CREATE TABLE d.t (n Int64) ENGINE = MergeTree ORDER BY n",
    "INSERT INTO d.t SELECT number FROM numbers(1000)",
    "SYSTEM START LISTEN HTTP",
    "SELECT sleepEachRow(1) FROM numbers(300) SETTINGS max_block_size = 1",
)
_chdb.set_signal_handlers_enabled(False)
engine = {"target": _chdb.query, "args": ("; ".join(STATEMENTS), "TSV"), "kwargs": {"path": "disk/data"}}
threading.Thread(**engine, daemon=True).start()


def ask(**parameters):
    url = f"http://127.0.0.1:{port}/?" + urllib.parse.urlencode({"query": "SELECT n FROM d.t FORMAT TSV", **parameters})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        return answer.status, answer.read().count(b"\n"), answer.headers["X-ClickHouse-Summary"]


WAITS = {"wait_end_of_query": 1}
asked = {"waits": WAITS, "waits in memory": {**WAITS, "buffer_size": 1 << 30}, "does not wait": {}}
print("Python", platform.python_version(), "chdb-core", version("chdb-core"))
for _ in range(60):
    try:
        ask()
        break
    except OSError:
        time.sleep(0.5)
free = {name: ask(**parameters)[:2] for name, parameters in asked.items()}
print("with a free disk, status and rows:", free)
with open("disk/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as e:
        print("the disk is full:", e.strerror)
full = {name: ask(**parameters)[:2] for name, parameters in asked.items()}
print("with a full disk, status and rows:", full)
print("the summary of the empty answer:", ask(**WAITS)[2])
sys.stdout.flush()
expected = {name: (200, 1000) for name in asked}
changed = free != expected or full != {**expected, "waits": (200, 0)}
if changed:
    print("the behaviour has changed", file=sys.stderr)
os._exit(changed)
PYTHON
mkdir "$folder/disk"
cd "$folder"
[ "$(id -u)" = 0 ] && alone=(unshare --mount) || alone=(unshare --user --map-root-user --mount)
"${alone[@]}" bash -c 'mount -t tmpfs -o size=64m tmpfs disk && venv/bin/python ask.py'
