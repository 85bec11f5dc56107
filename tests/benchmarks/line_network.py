"""Nodes in network namespaces, each behind a link of a fixed rate, apart from the machine's own network.

`run_apart` runs a program in new namespaces for network, mounts and processes, and in a new control group. The
kernel ends all its processes and removes its interfaces with the first of these processes, even after a SIGKILL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

NEEDED = {"ip": "iproute2", "tc": "iproute2", "ss": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}
# Addresses that RFC 2544 reserves for benchmarks. The driver has the first one, nodes have the following ones.
_NETWORK, _PREFIX = "198.18.0.{}", 24
DRIVER = _NETWORK.format(1)
# Clouds with fast networks use jumbo frames; Oracle's, where the article measured, has 9,000 bytes by default.
MTU = 9000
# Bytes that a link passes at once after a pause, in seconds of its rate, and the bytes that wait in front of it.
_BURST_SECONDS, _WAITING_BYTES = 0.02, 4 << 20
_GROUP = "storeside-line"
_GROUP_VARIABLE = "STORESIDE_LINE_GROUP"
_CONTROLLERS = Path("/sys/fs/cgroup")
_LEAF = "program"
_PERIOD = 20_000  # microseconds
_END_SECONDS = 30.0


def require_root() -> None:
    """Exit with one line if this process may not create namespaces, or if a tool is missing."""
    if os.geteuid():
        sys.exit("error: this benchmark creates network namespaces and shaped links: run it as root")
    if missing := [tool for tool in NEEDED if not shutil.which(tool)]:
        packages = " ".join(sorted({NEEDED[tool] for tool in missing}))
        sys.exit(f"error: {', '.join(missing)} are needed: apt-get install {packages}")


def run_apart(command: Sequence[str]) -> int:
    """Run a command in new namespaces and in a new control group, and return its exit status.

    SIGINT and SIGTERM end the command at once. When this function returns, no process of the command is left.
    """
    group = ControlGroup.create()
    apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    environment = {**os.environ, _GROUP_VARIABLE: str(group.path)}
    for number in (signal.SIGINT, signal.SIGTERM):  # also if a shell started this process in the background
        signal.signal(number, _terminate)
    # In a new session: Ctrl-C reaches only this process.
    process = subprocess.Popen(
        [*group.joining(_LEAF), *apart, "--mount-proc", *command], env=environment, start_new_session=True
    )
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()
        group.remove()


def _terminate(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def prepare() -> None:
    """Give the program that `run_apart` started a folder for the names of its namespaces, and a loopback interface.

    Without the folder, files with these names would stay in the machine's own ``/run/netns``.
    """
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")


@dataclass(frozen=True)
class ControlGroup:
    """A control group for processors, of version 1 or 2, whose subgroups limit processes."""

    path: Path

    @classmethod
    def create(cls) -> ControlGroup:
        """Create the group of this process, and remove those of processes that were killed."""
        base = _CONTROLLERS if _unified() else _CONTROLLERS / "cpu"
        for old in base.glob(f"{_GROUP}-*"):
            if not Path("/proc", old.name.rpartition("-")[2]).exists():
                cls(old).remove()
        group = cls(base / f"{_GROUP}-{os.getpid()}")
        try:
            group.path.mkdir()
            if _unified():
                for parent in (base, group.path):
                    (parent / "cgroup.subtree_control").write_text("+cpu")
        except OSError as error:
            sys.exit(f"error: {group.path}: no control group for processors can be created: {error.strerror}")
        (group.path / _LEAF).mkdir()
        return group

    @classmethod
    def own(cls) -> ControlGroup:
        """Return the group in which `run_apart` started this program."""
        return cls(Path(os.environ[_GROUP_VARIABLE]))

    def joining(self, name: str) -> tuple[str, ...]:
        """Return the beginning of a command that joins a subgroup, which is created if it does not exist."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return ("/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(folder))

    def limit(self, name: str, cores: float) -> None:
        """Limit the processes of a subgroup together to this fraction of a core; 0 removes the limit."""
        folder, quota = self.path / name, round(cores * _PERIOD)
        if _unified():
            (folder / "cpu.max").write_text(f"{quota or 'max'} {_PERIOD}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(quota or -1))

    def remove(self) -> None:
        """Kill what is left in the group, and remove it as soon as it is empty."""
        folders = [*(path for path in self.path.glob("*") if path.is_dir()), self.path]
        deadline = time.monotonic() + _END_SECONDS
        while processes := [int(pid) for folder in folders for pid in _lines(folder / "cgroup.procs")]:
            if time.monotonic() > deadline:
                sys.exit(f"error: processes {processes} do not end: see {self.path}")
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for folder in folders:
            folder.rmdir()


def _unified() -> bool:
    return (_CONTROLLERS / "cgroup.controllers").exists()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


@dataclass(frozen=True)
class Node:
    """A namespace with one interface, `eth0`, that a switch connects with the other nodes."""

    name: str
    address: str

    @property
    def command(self) -> tuple[str, ...]:
        """The beginning of a command that runs in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def listens(self, port: int) -> bool:
        """Return whether a server listens on a TCP port of the node, also on its loopback address."""
        return bool(run(*self.command, "ss", "-ltnH", f"sport = :{port}"))

    def sent(self) -> int:
        """Return the bytes of all frames that have left the node through its link."""
        return int(json.loads(run("tc", "-n", self.name, "-s", "-j", "qdisc", "show", "dev", "eth0"))[0]["bytes"])

    def within(self) -> int:
        """Return the bytes that the node's processes have sent to each other."""
        return int(
            json.loads(run("ip", "-n", self.name, "-s", "-j", "link", "show", "lo"))[0]["stats64"]["tx"]["bytes"]
        )


class Network:
    """A switch, and nodes that it connects by links of `megabits` per second in each direction."""

    def __init__(self, megabits: float) -> None:
        self.rate = megabits * 1e6 / 8
        self._nodes = 0
        run("ip", "link", "add", "switch", "mtu", str(MTU), "type", "bridge")
        run("ip", "address", "add", f"{DRIVER}/{_PREFIX}", "dev", "switch")
        run("ip", "link", "set", "switch", "up")

    def node(self, name: str) -> Node:
        """Add a node; its name has at most ten characters."""
        self._nodes += 1
        node = Node(name, _NETWORK.format(1 + self._nodes))
        inside, port, mtu = ("ip", "-n", name), f"port-{name}", ("mtu", str(MTU))
        run("ip", "netns", "add", name)
        run("ip", "link", "add", port, *mtu, "type", "veth", "peer", "name", "eth0", *mtu, "netns", name)
        run(*inside, "address", "add", f"{node.address}/{_PREFIX}", "dev", "eth0")
        for one in ("lo", "eth0"):
            run(*inside, "link", "set", one, "up")
        run("ip", "link", "set", port, "master", "switch", "up")
        for shaping in (("tc", "-n", name, "qdisc", "add", "dev", "eth0"), ("tc", "qdisc", "add", "dev", port)):
            run(
                *shaping, "root", "tbf", "rate", f"{self.rate * 8:.0f}bit",
                "burst", f"{max(self.rate * _BURST_SECONDS, 2 * MTU):.0f}b", "limit", f"{_WAITING_BYTES}b",
            )  # fmt: skip
        return node


def run(*command: str) -> str:
    """Run a command and return its output; exit with its message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Create an empty folder and remove it in the end."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
