#!/usr/bin/env bash
# h5pyd: opening a file sets the level of Python's root logger to ERROR, for the whole process and for good.
#
# A library has its own logger, and leaves the root logger to the program: Python's documentation of logging asks for
# that. One would expect that a program which logs at INFO still does so after it has opened a file. But the constructor
# of h5pyd.File sets the root logger's level to ERROR, and nothing sets it back. All loggers without a level of their
# own, also those of other libraries and of a worker's tasks, lose their lines of INFO and WARNING. That happens before
# the first request, so also if there is no such file, as here.
#
# Seen with h5pyd 1.0.0 on Python 3.11 and Linux x86-64.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check h5pyd==1.0.0
cat >"$folder/seen.py" <<'PYTHON'
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version

import h5pyd


class Empty(BaseHTTPRequestHandler):
    """A server without the domain."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_): ...


server = HTTPServer(("127.0.0.1", 0), Empty)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("h5pyd", version("h5pyd"), "Python", sys.version.split()[0])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s")
log = logging.getLogger("program")
log.info("before")
try:
    h5pyd.File("/home/ada/weather.h5", "r", endpoint=f"http://127.0.0.1:{server.server_port}", username="a", password="b")
except OSError as e:
    print("as expected, the domain does not exist:", e)
log.info("after, at INFO")
log.warning("after, at WARNING")
level = logging.getLevelName(logging.getLogger().level)
print("level of the root logger:", level)
assert level == "ERROR", "h5pyd leaves the root logger alone now"
assert not log.isEnabledFor(logging.WARNING)
PYTHON
"$folder/venv/bin/python" "$folder/seen.py"
echo "held: after a file was opened, the program's lines of INFO and WARNING are gone"
