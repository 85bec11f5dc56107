"""Evaluates NetworkPolicies for a connection, because a network plugin that enforces none lets every connection pass.

It knows what the policies of ``docs/kubernetes`` use: selectors of pods and namespaces, address blocks, and ports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Peer:
    """One end of a connection, as the other end sees it: an address, and the pod that has it, if any."""

    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def allows(policies: Iterable[Mapping[str, Any]], source: Peer, to: Peer, port: int, protocol: str = "TCP") -> bool:
    """Return whether the policies let `source` connect to a port of `to`."""
    found = list(policies)
    return _passes(found, "Egress", source, to, port, protocol) and _passes(
        found, "Ingress", to, source, port, protocol
    )


def _passes(
    policies: Iterable[Mapping[str, Any]], direction: str, own: Peer, other: Peer, port: int, protocol: str
) -> bool:
    """Apply the policies of one direction that select `own`; without any, everything passes."""
    selecting = [
        policy["spec"]
        for policy in policies
        if own.labels
        and policy["metadata"]["namespace"] == own.namespace
        and direction in policy["spec"]["policyTypes"]
        and _matches(policy["spec"].get("podSelector", {}), own.labels)
    ]
    if not selecting:
        return True
    peers, rules = ("to", "egress") if direction == "Egress" else ("from", "ingress")
    return any(
        _port(rule.get("ports"), port, protocol) and _peer(rule.get(peers), other, own.namespace)
        for spec in selecting
        for rule in spec.get(rules) or ()
    )


def _port(ports: Iterable[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        entry.get("protocol", "TCP") == protocol and entry["port"] <= port <= entry.get("endPort", entry["port"])
        for entry in ports
    )


def _peer(peers: Iterable[Mapping[str, Any]] | None, other: Peer, namespace: str) -> bool:
    return not peers or any(_is(peer, other, namespace) for peer in peers)


def _is(peer: Mapping[str, Any], other: Peer, namespace: str) -> bool:
    if "ipBlock" in peer:
        address, block = ipaddress.ip_address(other.address), peer["ipBlock"]
        out = any(address in ipaddress.ip_network(part) for part in block.get("except", ()))
        return address in ipaddress.ip_network(block["cidr"]) and not out
    if not other.labels:
        return False
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], {NAME_LABEL: other.namespace}):
            return False
    elif other.namespace != namespace:
        return False
    return _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(name) == value for name, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case other:
            raise ValueError(f"{other} is no operator of a selector")
