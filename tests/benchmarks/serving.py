"""Starts the servers of a benchmark in separate processes. A measured process that imports this loads no Airflow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from storeside.stack.settings import CHECKOUT


@contextmanager
def serving(module: str, *arguments: object) -> Iterator[str]:
    """Run one of Storeside's servers in a new process; yields the first line that it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
