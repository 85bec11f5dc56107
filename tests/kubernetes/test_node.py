"""A node that the tests start changes nothing of the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.files import NODE
from tests.kubernetes.node import KERNEL
from tests.kubernetes.session import MACHINE, Session


@pytest.fixture(autouse=True)
def own_node(cluster: Session) -> None:
    if cluster.own_folder is None:
        pytest.skip("the node is not ours")


def on_the_machine(*command: str) -> str:
    """Run a command in the network of the machine, not in that of the node."""
    entered = ["nsenter", f"--net=/proc/{os.environ[MACHINE]}/ns/net", "--", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout


def test_its_network_and_packet_filter_are_its_own(cluster: Session) -> None:
    assert "node0" in subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    found = on_the_machine("ip", "-o", "link") + on_the_machine("ip", "route") + on_the_machine("iptables-save")
    assert not [word for word in ("node0", "pods0", "10.96.0.0", "10.244.0.0", "KUBE-") if word in found]


def test_its_mounts_name_and_kernel_settings_are_its_own(cluster: Session) -> None:
    assert cluster.own_folder is not None
    assert str(cluster.own_folder) not in Path("/proc/self/mountinfo").read_text()
    assert Path("/proc/sys/kernel/hostname").read_text().strip() != NODE
    seen_by_the_node = {name: (cluster.own_folder / "kernel" / name.replace("/", ".")).read_text() for name in KERNEL}
    assert {name: text.strip() for name, text in seen_by_the_node.items()} == KERNEL
    own = {name: Path("/proc/sys", name).read_text().strip() for name in KERNEL}
    assert own != KERNEL
