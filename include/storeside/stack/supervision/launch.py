"""Becomes one component: the supervisor runs this program instead of the component's own command.

``python -m storeside.stack.supervision.launch FILE`` reads command, directory and environment from a file that only
its owner can read, so that secrets are neither in a command line nor in the supervisor's configuration. It ends the
processes that an earlier instance of the component left behind, and then replaces itself with the command under the
same process id.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from storeside.stack.supervision.processes import MARK, kill, mark, marked


def main(path: str) -> None:
    """Replace this process with the component described in the file `path`; exit with a message if that fails."""
    record = json.loads(Path(path).read_text())
    state = Path(record["state"])
    kill(marked(state, record["name"]))
    environment = {
        **os.environ,
        **record["environment"],
        MARK: mark(state, record["name"]),
        "SPT_NOENV": "1",  # setproctitle would overwrite the mark
    }
    os.chdir(record["directory"])
    command = record["command"]
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1])
