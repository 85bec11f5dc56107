"""Installs the packages of the readers, whose download may take longer than a test may: a program."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from storeside.stack.building.packages import install
from storeside.stack.settings import StackError, default_folder
from tests.verify import CANNOT_RUN

LOCK = Path(__file__).with_name("requirements.lock")


def installed() -> Path:
    """Return the folder with the packages; install them first if they are absent. Raises StackError."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:10]
    return install("the readers", LOCK, default_folder() / "cache" / f"readers-{digest}")


def main() -> int:
    """Install the packages; return the exit status."""
    try:
        installed()
    except StackError as e:
        print(f"readers-test: cannot run: {e}")
        return CANNOT_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
