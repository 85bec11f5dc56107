"""The forwarded port of the tests on Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kubernetes.kubectl import Kubectl
from tests.support import until

FORWARDS = """
import sys, time
from pathlib import Path
handled, ports = Path(sys.argv[1]), sys.argv[-1]
print("Forwarding from 127.0.0.1:4321 -> 8080", flush=True)
for _ in range(20_000):
    print("Handling connection for 4321")
handled.with_name(ports).touch()
if ports.startswith("4321"):
    time.sleep(600)
"""


def test_any_number_of_connections_is_forwarded_also_after_a_lost_connection(tmp_path: Path) -> None:
    kubectl = Kubectl([sys.executable, "-c", FORWARDS, str(tmp_path / "handled")], tmp_path / "config", "ais")
    with kubectl.forward("pod", 8080) as port:
        assert port == 4321
        until((tmp_path / ":8080").exists, 20, "20,000 connections")
        until((tmp_path / "4321:8080").exists, 20, "connections by another process at the same port")
