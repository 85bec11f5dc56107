#!/usr/bin/env bash
# AIStore's SDK: FastAPIServer writes the secret of its ETL into its log, once for each result that it sends.
#
# AIStore accepts reads and writes of objects without a token from any client that has the secret in AIS_TARGET_URL.
# One would expect that the SDK keeps this address out of logs, as its other two servers do. But the constructor of
# each server sets the level of the root logger to INFO, and at this level httpx, with which only FastAPIServer sends
# results (direct put), logs the whole address of each request. So `ais etl logs`, and every collector of the pods' logs,
# has the secret. `logging.getLogger("httpx").setLevel(logging.WARNING)` after the construction prevents it.
#
# Seen with aistore 2.0.0 and httpx 0.28.1, on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "aistore[etl]==2.0.0" httpx==0.28.1
cd "$folder"
cat > servers.py <<'PYTHON'
import sys

from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer
from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer

base = {"fastapi": FastAPIServer, "http": HTTPMultiThreadedServer}[sys.argv[1]]


class Echo(base):
    def transform(self, data, *_):
        return data


Echo("127.0.0.1", int(sys.argv[2])).start()
PYTHON
"$folder/venv/bin/python" - <<'PYTHON'
import http.client
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version

print("Python", platform.python_version(), "aistore", version("aistore"), "httpx", version("httpx"))
SECRET = "s3cret-of-this-etl"


class Target(BaseHTTPRequestHandler):
    """Stores what is put."""

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


target = HTTPServer(("127.0.0.1", 0), Target)
threading.Thread(target=target.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{target.server_port}"


def request(port, method, path, **options):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, **options)
    return connection.getresponse().status


def log_of(kind):
    """Return the log of a server that has sent one result to the target."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {**os.environ, "AIS_TARGET_URL": f"{address}/v1/etl/_object/echo/{SECRET}", "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [sys.executable, "servers.py", kind, str(port)],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    for _ in range(100):
        try:
            request(port, "GET", "/health")
            break
        except OSError:
            time.sleep(0.2)
    status = request(port, "PUT", "/bucket/a", body=b"content", headers={"Ais-Node-Url": f"{address}/ais%2Fa?uuid=job"})
    server.terminate()
    log = server.communicate(timeout=20)[0]
    told = [line for line in log.splitlines() if SECRET in line]
    print(f"{kind}: status {status}, {len(told)} lines with the secret", *told, sep="\n  ")
    return status, bool(told)


found = {kind: log_of(kind) for kind in ("fastapi", "http")}
sys.exit(None if found == {"fastapi": (204, True), "http": (204, False)} else "the behaviour has changed")
PYTHON
