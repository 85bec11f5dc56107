"""``python -m storeside.stack.start_after URL COMMAND...`` replaces itself with COMMAND as soon as URL answers.

If an AIStore target starts at the same time as its proxy, its registration may get lost. The target then stays
outside the cluster permanently, without an error.
"""

from __future__ import annotations

import os
import sys
import time

from storeside.stack.probes import answers


def main(url: str, *command: str) -> None:
    """Wait until the URL answers, then replace this process with the command."""
    while not answers(url):
        time.sleep(0.05)
    os.execv(command[0], command)  # noqa: S606 - a command from the stack's own configuration


if __name__ == "__main__":
    main(*sys.argv[1:])
