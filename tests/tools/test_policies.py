"""The evaluation of network policies that the tests on Kubernetes use."""

from __future__ import annotations

import pytest
import yaml

from storeside.stack.settings import CHECKOUT
from tests.kubernetes.policies import Peer, allows

POLICIES = list(yaml.safe_load_all((CHECKOUT / "docs" / "kubernetes" / "networkpolicy.yaml").read_text()))
ETL = Peer("10.1.0.1", "ais", {"app.kubernetes.io/name": "etl"})
TARGET = Peer("10.1.0.2", "ais", {"app.kubernetes.io/name": "ais", "app.kubernetes.io/component": "target"})
DNS = Peer("10.1.0.3", "kube-system", {"k8s-app": "kube-dns"})
WORKER = Peer("10.1.0.4", "airflow", {"component": "worker"})
CLICKHOUSE = Peer("10.1.0.6", "clickhouse", {"clickhouse.altinity.com/app": "chop"})
OPERATOR = Peer("10.1.0.7", "kube-system", {"app": "clickhouse-operator"})
OPERATOR_OF_CHART = Peer("10.1.0.8", "kube-system", {"app.kubernetes.io/name": "altinity-clickhouse-operator"})
STRANGER = Peer("10.1.0.5", "default", {"app": "stranger"})


@pytest.mark.parametrize(
    ("source", "to", "port", "protocol", "allowed"),
    [
        (TARGET, ETL, 8000, "TCP", True),
        (TARGET, ETL, 8001, "TCP", False),
        (Peer("10.0.0.7"), ETL, 8000, "TCP", True),  # a node
        (Peer("10.9.0.7"), ETL, 8000, "TCP", False),
        (STRANGER, ETL, 8000, "TCP", False),
        (ETL, ETL, 8000, "TCP", False),
        (ETL, TARGET, 51083, "TCP", True),
        (ETL, TARGET, 51082, "TCP", False),
        (ETL, DNS, 53, "UDP", True),
        (ETL, Peer("169.254.169.254"), 80, "TCP", False),
        (WORKER, TARGET, 51081, "TCP", True),
        (WORKER, TARGET, 51082, "TCP", False),
        (STRANGER, TARGET, 51081, "TCP", False),
        (WORKER, CLICKHOUSE, 8123, "TCP", True),
        (WORKER, CLICKHOUSE, 8443, "TCP", True),
        (WORKER, CLICKHOUSE, 9000, "TCP", False),
        (CLICKHOUSE, CLICKHOUSE, 9009, "TCP", True),
        (OPERATOR, CLICKHOUSE, 8123, "TCP", True),
        (OPERATOR_OF_CHART, CLICKHOUSE, 8443, "TCP", True),
        (OPERATOR, CLICKHOUSE, 9000, "TCP", False),
        (DNS, CLICKHOUSE, 8123, "TCP", False),
        (STRANGER, CLICKHOUSE, 8123, "TCP", False),
        (STRANGER, WORKER, 80, "TCP", True),  # no policy selects either
    ],
)
def test_connections(source: Peer, to: Peer, port: int, protocol: str, allowed: bool) -> None:
    assert allows(POLICIES, source, to, port, protocol) is allowed
