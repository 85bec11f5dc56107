"""``python -m storeside.stack.supervision.start_after URL AUTHORITY COMMAND...`` becomes COMMAND when URL answers.

AUTHORITY is the file of the certificate authority for an HTTPS URL, or empty.

If an AIStore target starts at the same time as its proxy, its registration may get lost. The target then stays
outside the cluster permanently, without an error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from storeside.stack.supervision.probes import answers


def main(url: str, authority: str, *command: str) -> None:
    """Wait until the URL answers, then replace this process with the command."""
    while not answers(url, authority=Path(authority) if authority else None):
        time.sleep(0.05)
    os.execv(command[0], command)  # noqa: S606 - a command from the stack's own configuration


if __name__ == "__main__":
    main(*sys.argv[1:])
