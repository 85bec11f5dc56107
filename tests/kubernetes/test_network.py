"""The network policies of ``docs/kubernetes``, for the connections that the cluster really makes.

A node that the tests start enforces no policy, because the network plugins that can be had without a registry do not:
there the policies are evaluated with the addresses that pods see. On a user's cluster, which may enforce them, a pod
with the labels of an ETL tries the connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.policies import Peer, allows
from tests.kubernetes.session import FORWARDER, Session
from tests.support import unique, until

pytestmark = pytest.mark.timeout(240)

ETL = {"app": "ais", "app.kubernetes.io/name": "etl", "app.kubernetes.io/component": "server"}  # AIStore's labels
METADATA = "169.254.169.254"
LISTENS = """
import socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        print("from", self.client_address[0], flush=True)
        self.request.sendall(b"here")
socketserver.ThreadingTCPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("open")
except OSError:
    print("closed")
"""


@pytest.fixture(scope="module")
def listener(cluster: Session) -> Iterator[dict[str, Any]]:
    """A pod with the labels of an ETL behind a NodePort, as AIStore makes them."""
    name = unique("listener")
    container: dict[str, Any] = {"name": "c", "image": cluster.transformer, "command": ["python", "-c", LISTENS]}
    container["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**ETL, "test": name}},
        "spec": spec,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "NodePort", "selector": {"test": name}, "ports": [{"port": 8000}]},
    }
    cluster.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, service]})
    )
    cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=90s")
    yield {
        "name": name,
        "pod": cluster.kubectl.json("get", "pod", name),
        "port": cluster.kubectl.json("get", "service", name)["spec"]["ports"][0]["nodePort"],
    }
    cluster.kubectl("delete", f"pod/{name}", f"service/{name}")


@pytest.fixture(scope="module")
def policies(cluster: Session) -> list[dict[str, Any]]:
    """The policies of AIStore's namespace as the API server has them."""
    found: list[dict[str, Any]] = cluster.kubectl.json("get", "networkpolicy")["items"]
    if not found:
        pytest.skip("this cluster has no network policies of ours")
    return found


def connects(cluster: Session, pod: str, address: str, port: int) -> bool:
    """Return whether a pod can open a connection."""
    said = cluster.kubectl("exec", pod, "--", "python", "-c", CONNECTS, address, str(port))
    return said.strip() == "open"


def addresses(cluster: Session, listener: str) -> list[str]:
    """Return the addresses from which the listener has seen connections."""
    lines = cluster.kubectl("logs", listener).splitlines()
    return [line.removeprefix("from ") for line in lines if line.startswith("from ")]


def peer(cluster: Session, pod: dict[str, Any]) -> Peer:
    return Peer(pod["status"]["podIP"], cluster.namespace, pod["metadata"]["labels"])


def test_a_target_is_seen_as_its_node_and_the_policy_lets_it_in(
    cluster: Session, listener: dict[str, Any], policies: list[dict[str, Any]]
) -> None:
    host = listener["pod"]["status"]["hostIP"]
    # kube-proxy opens the port some time after the pod is ready
    until(lambda: connects(cluster, FORWARDER, host, listener["port"]), 60, "connection to the port of the node")
    seen = until(lambda: addresses(cluster, listener["name"]), 20, "line")
    forwarder = cluster.kubectl.json("get", "pod", FORWARDER)["status"]["podIP"]
    sources = {address for address in seen if address != listener["pod"]["status"]["podIP"]}
    assert sources
    assert forwarder not in sources, "the source is translated, so a podSelector cannot select it"
    for address in sources:
        assert allows(policies, Peer(address), peer(cluster, listener["pod"]), 8000), address


def test_a_pod_of_an_etl_reaches_objects_and_nothing_else(
    cluster: Session, listener: dict[str, Any], policies: list[dict[str, Any]]
) -> None:
    attacker = peer(cluster, listener["pod"])
    nodes = {role: peer(cluster, cluster.kubectl.json("get", "pod", f"ais-{role}-0")) for role in ("proxy", "target")}
    needed = [(nodes["proxy"], 51080), (nodes["target"], 51081), (nodes["target"], 51083)]
    forbidden = [
        (nodes["proxy"], 51082),
        (nodes["target"], 51082),
        (Peer("10.244.0.200", cluster.namespace, ETL), 8000),
        (Peer(METADATA), 80),
        (Peer("10.96.0.1"), 443),
        (Peer("10.244.0.201", "clickhouse", {"app": "clickhouse"}), 8123),
    ]
    assert [to for to in needed if not allows(policies, attacker, *to)] == []
    assert [to for to in forbidden if allows(policies, attacker, *to)] == []
    for stranger in (Peer("192.0.2.1"), Peer("10.244.0.202", "default", {"app": "stranger"})):
        assert not allows(policies, stranger, attacker, 8000)
        assert not allows(policies, stranger, nodes["target"], 51082)


def attempts(cluster: Session, listener: dict[str, Any]) -> dict[str, bool]:
    """Return which connections succeed that the policies forbid: those of an ETL's pod, and one to it."""
    target = cluster.kubectl.json("get", "pod", "ais-target-0")["status"]["podIP"]
    etl = listener["pod"]["status"]["podIP"]
    tried = {
        "control port of a target": (listener["name"], target, 51082),
        "control port of the proxy": (listener["name"], f"ais-proxy-0.ais-proxy.{cluster.namespace}", 51082),
        "pod of an ETL": (FORWARDER, etl, 8000),
    }
    return {name: connects(cluster, *attempt) for name, attempt in tried.items()}


def test_an_attacker_in_the_pod_of_an_etl(cluster: Session, listener: dict[str, Any]) -> None:
    if cluster.own_folder:
        pytest.skip("the network of a node of ours enforces no policies")
    target = cluster.kubectl.json("get", "pod", "ais-target-0")["status"]["podIP"]
    assert connects(cluster, listener["name"], target, 51081)
    assert not connects(cluster, listener["name"], METADATA, 80)
    assert not any((found := attempts(cluster, listener)).values()), found


def test_the_attempts_of_the_attacker_succeed_where_nothing_enforces_policies(
    cluster: Session, listener: dict[str, Any]
) -> None:
    """Otherwise the test above would pass for a wrong address as well."""
    if not cluster.own_folder:
        pytest.skip("the network of a user's cluster may enforce policies")
    assert all((found := attempts(cluster, listener)).values()), found
