"""Finding 9: a taken-over pod of an ETL reaches AIStore and DNS only, by the network policy of the examples."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import yaml

from storeside.stack.settings import CHECKOUT

FOLDER = CHECKOUT / "docs" / "kubernetes"
LABELS = {"app": "ais", "app.kubernetes.io/name": "etl", "app.kubernetes.io/component": "server"}  # AIStore's


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a selector of Kubernetes selects an object with these labels."""
    found = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    for rule in selector.get("matchExpressions", ()):
        found &= (labels.get(rule["key"]) in rule["values"]) == (rule["operator"] == "In")
    return found


def of_etls() -> list[dict[str, Any]]:
    policies = [d["spec"] for d in documents("networkpolicy.yaml") if d["metadata"]["namespace"] == "ais"]
    return [spec for spec in policies if selects(spec["podSelector"], LABELS)]


def test_an_etl_reaches_neither_the_metadata_address_nor_the_internet() -> None:
    (policy,) = of_etls()
    assert "Egress" in policy["policyTypes"], "default: everything is denied"
    for rule in policy["egress"]:
        assert rule["to"], "an empty list would allow everything"
        assert rule["ports"]
        for peer in rule["to"]:
            block = peer.get("ipBlock")
            assert block is None or ip_address("169.254.169.254") not in ip_network(block["cidr"])
            assert block is not None or peer["podSelector"]


def test_a_pod_of_another_namespace_does_not_reach_an_etl() -> None:
    (policy,) = of_etls()
    assert "Ingress" in policy["policyTypes"]
    peers = [peer for rule in policy["ingress"] for peer in rule["from"]]
    assert not [peer for peer in peers if "namespaceSelector" in peer]
    for peer in peers:
        if "podSelector" in peer:
            assert not selects(peer["podSelector"], {"app": "some-other"}), "only AIStore's nodes"
            assert selects(peer["podSelector"], {"app.kubernetes.io/component": "target"})


def test_pods_of_etls_get_a_runtime_class_and_no_token() -> None:
    kinds = {document["kind"]: document for document in documents("etl-pods.yaml")}
    policy = kinds["MutatingAdmissionPolicy"]["spec"]
    assert selects(policy["matchConstraints"]["objectSelector"], LABELS)
    (mutation,) = policy["mutations"]
    expression = mutation["applyConfiguration"]["expression"]
    assert f'runtimeClassName: "{kinds["RuntimeClass"]["metadata"]["name"]}"' in expression
    assert "automountServiceAccountToken: false" in expression
    assert kinds["MutatingAdmissionPolicyBinding"]["spec"]["policyName"] == "etl-pods"
