"""A container engine for the tests: a running one, or one that is started for them and stopped afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storeside.stack.building.go import Go

START_SECONDS = 60
# The rules of a machine whose packet filter was never used: iptables-save shows none, and to restore nothing would
# keep Docker's.
_NO_RULES = b"""*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
COMMIT
"""
# Name, Go module, version, package below the module, and the variable that holds the version.
PLUGINS = (
    ("compose", "github.com/docker/compose/v2", "v2.40.3", "cmd", "internal.Version"),
    ("buildx", "github.com/docker/buildx", "v0.30.1", "cmd/buildx", "version.Version"),
)


class EngineError(RuntimeError):
    """There is no usable container engine; the message states the missing program."""


@dataclass(frozen=True)
class Engine:
    """A running container engine; `is_ours` if it was started for the tests and contains nothing else."""

    is_ours: bool
    environment: dict[str, str] = field(default_factory=dict)

    def docker(
        self, *arguments: str, seconds: float = 60, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker`` and return its result; with `check`, raises EngineError if it fails."""
        done = subprocess.run(
            ["docker", *arguments], env=os.environ | self.environment, capture_output=True, text=True,
            timeout=seconds, check=False, input=stdin,
        )  # fmt: skip
        if check and done.returncode:
            raise EngineError(f"docker {' '.join(arguments)}: {done.stderr[-2000:] or done.stdout[-2000:]}")
        return done

    def has(self, image: str) -> bool:
        """Return whether the engine has an image."""
        return not self.docker("image", "inspect", image, check=False).returncode


@contextmanager
def engine(cache: Path) -> Iterator[Engine]:
    """Yield an engine with the plugins compose and buildx; `cache` stores their binaries.

    Without a running engine, root starts dockerd with its data below `cache`, and stops it at the end. Raises
    EngineError with the missing requirement.
    """
    if not shutil.which("docker"):
        raise EngineError("there is no container engine: install Docker 20.10 or newer with Compose 2.24 or newer")
    found = Engine(is_ours=False)
    if not found.docker("info", check=False).returncode:
        yield _with_plugins(found, cache)
        return
    if os.geteuid() or not shutil.which("dockerd"):
        raise EngineError("the container engine does not run: start it (systemctl start docker), or run this as root")
    with _dockerd(cache / "docker"):
        yield _with_plugins(Engine(is_ours=True), cache)


def _with_plugins(engine: Engine, cache: Path) -> Engine:
    if all(not engine.docker(name, "version", check=False).returncode for name, *_ in PLUGINS):
        return engine
    return Engine(engine.is_ours, {"DOCKER_CONFIG": str(_built(PLUGINS, cache / "docker-config"))})


def _built(plugins: Sequence[tuple[str, str, str, str, str]], folder: Path) -> Path:
    """Build the plugins from their published Go modules, once; return the folder for DOCKER_CONFIG."""
    if (command := shutil.which("go")) is None:
        raise EngineError("`docker compose` is missing: install the plugins compose and buildx, or Go to build them")
    (folder / "cli-plugins").mkdir(parents=True, exist_ok=True)
    for name, module, version, package, variable in plugins:
        binary = folder / "cli-plugins" / f"docker-{name}"
        if binary.exists():
            continue
        go = Go(command, folder / f"{name}.log")
        with tempfile.TemporaryDirectory(dir=folder) as work:
            directory = Path(work)
            go.run("go mod init", "mod", "init", "plugin.local/plugin", directory=directory)
            go.run(f"download of {name}", "get", f"{module}/{package}@{version}", directory=directory)
            flags = f"-s -w -X {module}/{variable}={version}"
            go.run(
                f"build of {name}", "build", "-mod=mod", "-trimpath", "-ldflags", flags, "-o", str(binary),
                f"{module}/{package}", directory=directory,
            )  # fmt: skip
    return folder


@contextmanager
def _dockerd(home: Path) -> Iterator[None]:
    """Run dockerd by hand, and afterwards restore the packet filter that it changes."""
    home.mkdir(parents=True, exist_ok=True)
    rules = subprocess.run(["iptables-save"], capture_output=True, check=True).stdout or _NO_RULES
    pidfile = home / "dockerd.pid"
    command = [
        "dockerd", "--data-root", str(home / "data"), "--exec-root", str(home / "run"), "--pidfile", str(pidfile),
        "--mtu", "1400", "--storage-driver", "overlay2",
    ]  # fmt: skip
    with (home / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while Engine(is_ours=True).docker("info", check=False).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"dockerd did not start: see {home / 'dockerd.log'}")
            time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        subprocess.run(["iptables-restore"], input=rules, check=True)
        subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)
