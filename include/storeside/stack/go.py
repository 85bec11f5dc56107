"""Binaries that are built from published Go modules, once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storeside.stack.settings import StackError

_FETCHES = "Go 1.21 or newer, which fetches the version it needs"


class Go:
    """The go command; a log keeps everything that it writes to stderr."""

    def __init__(self, command: str, log: Path) -> None:
        self._command = command
        self.log = log
        self._environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        log.write_text("")

    def run(self, what: str, *arguments: str, directory: Path) -> str:
        """Run ``go`` and return its output; raises StackError that names `what` and the log when it fails."""
        with self.log.open("a") as log:
            log.write(f"$ go {' '.join(arguments)}\n")
            log.flush()
            result = subprocess.run(
                [self._command, *arguments],
                cwd=directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
            )
            log.write(result.stdout)
        if result.returncode:
            raise StackError(f"{what} failed (go exited with {result.returncode}): see {self.log}")
        return result.stdout

    def download(self, module: str, version: str, directory: Path) -> dict[str, str]:
        """Download a module to the module cache, by its exact version, and return Go's description of it."""
        answer = self.run(
            f"download of {module}@{version}",
            "mod",
            "download",
            "-json",
            f"{module}@{version}",
            directory=directory,
        )
        return dict(json.loads(answer))

    def require(self, wanted: str, directory: Path, what: str) -> None:
        """Refuse a Go older than `wanted`, which `what` needs, unless Go fetches the newer toolchain by itself."""
        try:
            found = self.run("go env GOVERSION", "env", "GOVERSION", directory=directory).strip()
        except StackError:
            found = "an older version"
        if version_of(found) < version_of(wanted):
            raise StackError(
                f"{what} needs Go >= {wanted}, found {found}: install a newer one from https://go.dev/dl, "
                f"or set GOTOOLCHAIN=auto with {_FETCHES}"
            )


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``go1.26.8``, for comparison; none when there are none."""
    match = re.match(r"(?:go)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def built_once(binary: Path, what: str, tell: Callable[[str], object], make: Callable[[Go, Path], Path]) -> Path:
    """Return `binary`, which lies in a folder of the cache; build it first when it is absent, and call `tell` before.

    `make` builds it in the folder that it gets, and returns a folder that holds nothing but results.

    Raises:
        StackError: Go is absent or too old, or the build fails.
    """
    if binary.exists():
        return binary
    cache, name = binary.parent.parent, binary.name
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / f"{name}.lock"):
        if not binary.exists():
            command = shutil.which("go")
            if command is None:
                raise StackError(
                    f"Go is needed to build {what} and was not found: install it from https://go.dev/dl, "
                    f"or with 'apt-get install golang-go' where that is {_FETCHES}"
                )
            tell(f"building {what}, once (some minutes)")
            work = Path(tempfile.mkdtemp(prefix=f"{name}-build-", dir=cache))
            try:
                new = make(Go(command, cache / f"{name}-build.log"), work)
                new.replace(binary.parent)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return binary


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
