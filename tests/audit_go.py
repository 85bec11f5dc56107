"""Known vulnerabilities in the Go modules of AIStore's binaries, by Go's own ``govulncheck``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from storeside.stack.building import nodes
from storeside.stack.building.go import Go, built_once
from storeside.stack.settings import StackError

MODULE = "golang.org/x/vuln"
VERSION = "v1.9.0"
_NONE, _SOME = 0, 3


def check(cache: Path) -> dict[str, tuple[str, ...]]:
    """Return the identifiers of vulnerabilities by binary. Raises ValueError if there is no answer."""
    try:
        node = nodes.build(cache, print)
        tool = built_once(cache / f"govulncheck-{VERSION}" / "govulncheck", f"govulncheck {VERSION}", print, _build)
    except StackError as e:
        raise ValueError(str(e)) from e
    return {path.name: _ask(tool, path) for path in (node, node.with_name(nodes.AUTHN))}


def _ask(tool: Path, binary: Path) -> tuple[str, ...]:
    done = subprocess.run(
        [str(tool), "-mode=binary", str(binary)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode not in (_NONE, _SOME):
        said = done.stderr.strip().splitlines()
        raise ValueError(f"govulncheck: {said[-1] if said else f'it ended with {done.returncode}'}")
    return identifiers(done.stdout)


def identifiers(text: str) -> tuple[str, ...]:
    """Return the vulnerabilities that a report of govulncheck names."""
    return tuple(sorted(set(re.findall(r"^Vulnerability #\d+: (GO-\d{4}-\d+)$", text, re.MULTILINE))))


def _build(go: Go, work: Path) -> Path:
    source = Path(go.download(MODULE, VERSION, work)["Dir"])
    made = work / "made"
    go.run(
        f"compiling govulncheck {VERSION}", "build", "-trimpath", f"-o={made / 'govulncheck'}", "./cmd/govulncheck",
        directory=source,
    )  # fmt: skip
    return made
