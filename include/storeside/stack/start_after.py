"""``python -m storeside.stack.start_after URL COMMAND...`` becomes COMMAND as soon as URL answers.

A target of AIStore that starts beside its proxy may register in vain and then stay outside the cluster for
good, without an error.
"""

from __future__ import annotations

import os
import sys
import time

from storeside.stack.probes import answers


def main(url: str, *command: str) -> None:
    """Wait, then replace this process."""
    while not answers(url):
        time.sleep(0.05)
    os.execv(command[0], command)  # noqa: S606 - a command from the stack's own configuration


if __name__ == "__main__":
    main(*sys.argv[1:])
