"""Serves the engine of chdb-core with the configuration below /etc/clickhouse-server, until SIGTERM.

The engine is clickhouse-local: it reads ``.clickhouse-local`` in its home folder, and serves as long as its last
statement reads from a pipe. See ``storeside.stack.clickhouse_server``, which does the same without a container.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from chdb import _chdb

ENGINE: Any = _chdb
DATA = Path("/var/lib/clickhouse")
STOP_SECONDS = 30


def main() -> int:
    """Serve; return the exit status."""
    for name in ("tmp", "user_files", "format_schemas", ".home"):
        (DATA / name).mkdir(parents=True, exist_ok=True)
    home = DATA / ".home"
    if not (home / ".clickhouse-local").is_symlink():
        (home / ".clickhouse-local").symlink_to("/etc/clickhouse-server")
    os.environ["HOME"] = str(home)
    os.chdir(home)
    pipe = DATA / "user_files" / "stop.fifo"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    ended = threading.Event()

    def serve() -> None:
        try:
            ENGINE.set_signal_handlers_enabled(False)
            ENGINE.query(
                "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP;"
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
    ended.wait()
    os.close(held)
    thread.join(STOP_SECONDS)
    return int(thread.is_alive())


if __name__ == "__main__":
    os._exit(main())
