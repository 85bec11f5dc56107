"""Serves the engine of chdb-core with the configuration below /etc/clickhouse-server, until SIGTERM.

The engine is clickhouse-local: it reads ``.clickhouse-local`` in its home folder, and serves as long as its last
statement reads from a pipe. ``storeside.stack.servers.clickhouse_server`` does the same without a container.

The engine has no HTTPS. With an ``https_port`` in the configuration it serves HTTP on the loopback address, and
``storeside.stack.supervision.tls_relay`` terminates TLS with the certificate and the key of the configuration.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from chdb import _chdb

ENGINE: Any = _chdb
CONFIGURATION = Path("/etc/clickhouse-server")
DATA = Path("/var/lib/clickhouse")
HOME = DATA / ".home"
STOP_SECONDS = 30
PLAIN_PORT = 18123
BEHIND_RELAY = f"""<clickhouse>
    <http_port>{PLAIN_PORT}</http_port><listen_host replace="replace">127.0.0.1</listen_host>
</clickhouse>"""


def relay() -> list[str]:
    """Return the command that serves HTTPS as the configuration states; empty if it states none."""
    for path in (CONFIGURATION / "config.d").glob("*.xml"):
        root = ElementTree.parse(path)  # noqa: S314 - our own file
        if port := root.findtext("https_port"):
            files = [root.findtext(f"openSSL/server/{name}") or "" for name in ("certificateFile", "privateKeyFile")]
            everywhere = root.findtext("listen_host") or ""
            relay = [sys.executable, "-m", "storeside.stack.supervision.tls_relay"]
            return [*relay, port, str(PLAIN_PORT), *files, everywhere]
    return []


def main() -> int:
    """Serve; return the exit status."""
    for name in ("tmp", "user_files", "format_schemas"):
        (DATA / name).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(HOME, ignore_errors=True)
    own = HOME / ".clickhouse-local"
    shutil.copytree(CONFIGURATION / "config.d", own / "config.d")
    shutil.copy(CONFIGURATION / "config.xml", own)
    if command := relay():
        (own / "config.d" / "zz-behind-relay.xml").write_text(BEHIND_RELAY)
    os.environ["HOME"] = str(HOME)
    os.chdir(HOME)
    pipe = DATA / "user_files" / "stop.fifo"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    ended = threading.Event()

    def serve() -> None:
        try:
            ENGINE.set_signal_handlers_enabled(False)
            ENGINE.query(
                "CREATE DATABASE IF NOT EXISTS data; SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP;"
                f"SELECT * FROM file('{pipe}', 'LineAsString', 'l String')"
                " SETTINGS storage_file_read_method = 'read';",
                "TabSeparated",
                path=f"{DATA}/",
            )
        except Exception as error:
            print(error, file=sys.stderr, flush=True)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    relays = [subprocess.Popen(command, cwd="/")] if command else []
    ended.wait()
    os.close(held)
    thread.join(STOP_SECONDS)
    for process in relays:
        process.kill()
    return int(thread.is_alive())


if __name__ == "__main__":
    os._exit(main())
