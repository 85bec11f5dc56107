"""The servers of the tests under faults start where their modules are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from storeside.stack.supervision.component import Component
from tests.chaos.rig import skewed


def test_the_server_with_another_clock_finds_its_module(tmp_path: Path) -> None:
    server = skewed(Component("s3", ("s3_server",), lambda: True), tmp_path / "clock")
    module = server.command[server.command.index("-m") + 1]
    code = f"import importlib.util; assert importlib.util.find_spec({module!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=server.directory, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
