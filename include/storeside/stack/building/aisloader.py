"""Builds `aisloader`, AIStore's load generator, from the same module version as the nodes.

``python -m storeside.stack.building.aisloader`` builds it for the embedded stack and prints its path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from storeside.stack.building.go import Go, built_once
from storeside.stack.building.nodes import VERSION
from storeside.stack.building.patch import MODULE
from storeside.stack.settings import StackError, default_folder

TAGS = "mono"


def path(cache: Path) -> Path:
    """Return the path of the built loader below `cache`."""
    return cache / f"aisloader-{VERSION}" / "aisloader"


def build(cache: Path, tell: Callable[[str], object] = lambda text: None) -> Path:
    """Return the loader below `cache`; call `tell` and build it if it is absent.

    Raises:
        StackError: Go is absent or too old, or the build fails.
    """
    return built_once(path(cache), f"aisloader {VERSION}", tell, _build)


def _build(go: Go, work: Path) -> Path:
    module = go.download(MODULE, VERSION, work)
    requirements = json.loads(go.run("reading go.mod", "mod", "edit", "-json", module["GoMod"], directory=work))
    go.require(requirements["Go"], work, f"aisloader {VERSION}")
    made = work / "made"
    go.run(
        f"compiling aisloader {VERSION}",
        "build",
        "-trimpath",
        f"-tags={TAGS}",
        f"-ldflags=-w -s -X main.build={VERSION}",
        f"-o={made / 'aisloader'}",
        "./cmd/aisloader",
        directory=Path(module["Dir"]),  # the module cache is read-only; the build writes nothing there
    )
    return made


if __name__ == "__main__":
    try:
        print(build(default_folder() / "cache", lambda text: print(text, file=sys.stderr, flush=True)))
    except StackError as error:
        sys.exit(f"error: {error}")
