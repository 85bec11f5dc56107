"""The rig of ``make bench-line`` removes everything that it creates, also after an error or a signal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from storeside.stack.settings import CHECKOUT
from tests.benchmarks import line_network
from tests.benchmarks.line import COUNTS, Read, figures
from tests.support import until

# Interfaces that a container engine may create and remove meanwhile; those of the rig have other names.
OF_CONTAINERS = ("br-", "docker", "veth")
# A number of seconds that only the processes of this test sleep.
SECONDS = str(100_000_000 + os.getpid())
OUTSIDE = """
import sys
from tests.benchmarks import line_network
sys.exit(line_network.run_apart([sys.executable, "-c", *sys.argv[1:]]))
"""
INSIDE = """
import subprocess, sys, time
from tests.benchmarks.line_network import ControlGroup, Network, prepare, run
prepare()
network, group = Network(8), ControlGroup.own()
nodes = [network.node(f"n{number}") for number in range(2)]
for node in nodes:
    subprocess.Popen([*group.joining("limited"), *node.command, "sleep", sys.argv[1]], start_new_session=True)
group.limit("limited", 0.1)
print("ready", flush=True)
time.sleep(0 if sys.argv[2] == "end" else 3600)
run("ip", "no-such-object")
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, line_network.NEEDED)),
    reason="creates network namespaces and shaped links: run as root, with iproute2",
)


def sleeping() -> list[int]:
    return [
        one.pid for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[:2] == ["sleep", SECONDS]
    ]


def present() -> dict[str, set[str]]:
    """Return what the machine has of everything that the rig creates."""
    names = Path("/run/netns")
    groups = Path("/sys/fs/cgroup").glob("**/storeside-line-*/")
    return {
        "interfaces": {one for one in os.listdir("/sys/class/net") if not one.startswith(OF_CONTAINERS)},
        "namespaces": {path.name for path in names.iterdir()} if names.exists() else set(),
        "control groups": {str(path) for path in groups},
        "processes": set(map(str, sleeping())),
    }


@pytest.fixture
def untouched() -> Iterator[None]:
    before = present()
    yield
    until(lambda: present() == before, 20, "removal")


def start(does: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OUTSIDE, INSIDE, SECONDS, does]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def running() -> Iterator[subprocess.Popen[str]]:
    """Run the program until both nodes have their process."""
    with start("wait") as program:
        try:
            until(lambda: len(sleeping()) == 2, 60, "processes of the nodes")
            yield program
        finally:
            program.kill()


@needs_root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_everything_before_the_program_ends(untouched: None, number: int) -> None:
    before = present()
    with running() as program:
        assert present()["interfaces"] == before["interfaces"], "the machine's own network changed"
        program.send_signal(number)
        program.communicate()
    assert program.returncode != 0
    assert present() == before


@needs_root
def test_an_error_removes_everything_and_is_shown(untouched: None) -> None:
    before = present()
    done = start("end")
    out, error = done.communicate()
    assert out.startswith("ready")
    assert "error: ip no-such-object: " in error
    assert done.returncode == 1
    assert present() == before


@needs_root
def test_a_killed_program_leaves_only_a_control_group_which_the_next_one_removes(untouched: None) -> None:
    before = present()
    with running() as program:
        program.kill()
        program.communicate()
    until(lambda: not sleeping(), 20, "end of the processes")
    assert {**present(), "control groups": set()} == {**before, "control groups": set()}
    start("end").communicate()


def test_without_root_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"^error: .*: run it as root$"):
        line_network.require_root()


def test_variances_are_those_of_seconds_and_of_nodes() -> None:
    # Two targets: 10 and 30 bytes in the first second, 20 and 20 in the second; half of them are of objects.
    found = figures(0.5, [(5.0, [100, 0]), (6.0, [110, 30]), (7.0, [130, 50])])
    assert found == Read(
        payload=20, frames=40, time_variance=0, node_variance=50,
        lines={"target 0": [(1, 10), (2, 20)], "target 1": [(1, 30), (2, 20)]},
    )  # fmt: skip
    assert COUNTS == (1, 2, 4, 8)
