"""A cluster of one node that is started for the tests, in separate namespaces, and ends with them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storeside.stack.settings import CHECKOUT, SOURCES, StackError
from tests.kubernetes import airflow_images, certificates, images
from tests.kubernetes.debian import unpack
from tests.kubernetes.programs import program

START_SECONDS = 240
# Debian's packages with the commands that the node needs, by command.
NEEDED = {
    "containerd": "containerd", "runc": "runc", "iptables": "iptables", "debootstrap": "debootstrap",
    "unshare": "util-linux", "ip": "iproute2", "dpkg-deb": "dpkg", "gcc": "gcc", "go": "golang", "mvn": "maven",
}  # fmt: skip
_CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "storeside-k8s-"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Unavailable(RuntimeError):
    """This machine cannot run the node; the message states the reason."""


@dataclass(frozen=True)
class OwnCluster:
    """A running node. `enter` is the command prefix that runs a command in its network."""

    folder: Path
    binaries: Path
    pid: int

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its server exists in the node's network only."""
        return self.folder / "pki" / "admin.conf"

    @property
    def enter(self) -> list[str]:
        """The command prefix that runs a command in the network of the cluster."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]


def missing() -> str:
    """Return why this machine cannot run the node, or nothing."""
    if os.geteuid():
        yours = "make k8s-test KUBECONFIG=file NAMESPACE=name IMAGES=registry/prefix"
        return f"it needs root, or a cluster of yours: {yours}"
    absent = sorted({package for command, package in NEEDED.items() if shutil.which(command) is None})
    if absent:
        return f"it needs the packages {', '.join(absent)}: apt-get install {' '.join(absent)}"
    return ""


@contextmanager
def own_cluster(cache: Path, tell: Callable[[str], object], step: Callable[[str], object]) -> Iterator[OwnCluster]:
    """Build what is absent from `cache`, start a node, yield it, and leave nothing of it behind.

    `step` is called with the name of each step when it has ended.

    Raises:
        Unavailable: this machine cannot run it.
        StackError: something cannot be built, or does not start.
    """
    if reason := missing():
        raise Unavailable(reason)
    _clean_up_after_the_killed()
    kube, coredns = (program(name, cache, tell) for name in ("kube", "coredns"))
    plugins = unpack(cache) / "usr" / "lib" / "cni"
    step("programs")
    store = images.Store(cache / "images", tell)
    images.provide(cache, store)
    airflow_images.provide(store)
    step("images")
    folder = Path(tempfile.mkdtemp(prefix="node-", dir=cache))
    binaries = folder / "bin"
    binaries.mkdir()
    for binary in (kube, coredns):
        (binaries / binary.name).symlink_to(binary)
    certificates.write(folder / "pki")
    cgroup = f"{_PREFIX}{os.getpid()}"
    process = _start(folder, binaries, plugins, store.folder, cgroup)
    try:
        pid = _wait(process, folder)
        step("node")
        yield OwnCluster(folder, binaries, pid)
    finally:
        process.kill()  # and with it, by --kill-child, the first process of the node, and with that all others
        process.wait()
        _remove(cgroup)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, binaries: Path, plugins: Path, images: Path, cgroup: str) -> subprocess.Popen[bytes]:
    for hierarchy in _hierarchies():
        (hierarchy / cgroup).mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup of version 1
            if (hierarchy / cgroup / name).exists() and not (hierarchy / cgroup / name).read_text().strip():
                (hierarchy / cgroup / name).write_text((hierarchy / name).read_text())
    command = [
        "unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child",
        sys.executable, "-m", "tests.kubernetes.node", str(folder), str(binaries), str(plugins), str(images), cgroup,
    ]  # fmt: skip
    prctl = ctypes.CDLL(None).prctl
    with (folder / "node.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": f"{SOURCES}:{CHECKOUT}", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: prctl(_DIE_WITH_PARENT, signal.SIGKILL),  # noqa: PLW1509 - one thread starts it
        )


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait until the programs of the node run; return the process id of the node's first process."""
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "started").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            logs = sorted(folder.glob("*.log"))
            tails = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-800:]}" for log in logs)
            raise StackError(f"the node did not start:\n{tails}")
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def _hierarchies() -> list[Path]:
    """Return the mounted hierarchies of cgroups: one of version 2, or one for each controller of version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove(cgroup: str) -> None:
    """Remove a node's cgroups. Its processes have been killed, and may take a moment to end."""
    for hierarchy in _hierarchies():
        for _ in range(50):
            found = sorted((hierarchy / cgroup).rglob("*"), reverse=True) if (hierarchy / cgroup).exists() else []
            try:
                for folder in (*(path for path in found if path.is_dir()), hierarchy / cgroup):
                    folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.1)
            else:
                break


def _clean_up_after_the_killed() -> None:
    """Remove the cgroups of nodes whose tests were killed: the nodes ended with them, their cgroups did not."""
    for hierarchy in _hierarchies():
        for path in hierarchy.glob(f"{_PREFIX}*"):
            if not Path("/proc", path.name.removeprefix(_PREFIX)).exists():
                _remove(path.name)
