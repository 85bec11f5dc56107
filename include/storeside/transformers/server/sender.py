"""Checks that AIStore sent a request; the server refuses all others.

Storeside's build of AIStore adds a keyed hash, the proof, to each request; the key is the ETL's secret. Stock AIStore
5.0 sends nothing that identifies it over any channel. Without proofs, the server accepts requests from the addresses
of AIStore's nodes, from this pod's gateway (the usual sender for Kubernetes' services), and from ``AIS_SOURCES``.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

from storeside.transformers.settings import Settings
from storeside.transformers.workers.http_client import nodes_of

HEADER = "Ais-Etl-Proof"
QUERY = "etl_proof="
# The content that the proof signs, except for a single request to which AIStore redirects a client.
_REQUEST = b"request"
_MOST_TOLD = 100  # refused addresses that are logged
_ROUTES = Path("/proc/net/route")


def proof(secret: str, of: bytes = _REQUEST) -> str:
    """Return the proof that AIStore adds to requests for an ETL; `aistore_patches` computes the same."""
    return hmac.new(secret.encode(), of, hashlib.sha256).hexdigest()


class Senders:
    """Decides on requests by their proof if AIStore sends one, otherwise by their addresses."""

    def __init__(self, settings: Settings) -> None:
        self._secret = settings.target_url.rstrip("/").rpartition("/")[2] if settings.proof else ""
        if settings.proof and not self._secret:
            raise ValueError("AIS_ETL_PROOF is set, but AIS_TARGET_URL contains no secret")
        self._proof = proof(self._secret).encode() if settings.proof else b""
        self._networks = [ip_network(text) for text in settings.sources]
        self._addresses = set() if settings.proof else _addresses(settings)
        self._told: set[str] = set()

    def refusal(self, address: str, given: str, target: bytes) -> str:
        """Return the reason for refusing a request; empty if AIStore sent it.

        `address` is the sender's address, `given` the header with the proof, `target` the request's path and query.
        """
        if self._is_proven(given, target) if self._proof else self._is_from_aistore(address):
            return ""
        reason = "the request has no valid proof that AIStore sent it"
        if not self._proof:
            reason = f"{address or 'its sender'} is not an address of AIStore's nodes; AIS_SOURCES allows others"
        if address not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(address)
            print(f"storeside: a request from {address} was refused: {reason}", flush=True)
        return f"refused: {reason}"

    def _is_proven(self, given: str, target: bytes) -> bool:
        found = given.encode("latin-1", "replace")
        signed, mark, last = target.rpartition(QUERY.encode())
        if not found and mark:
            # AIStore signed the part before the mark. The next ETL of a pipeline gets the general proof in its
            # address.
            found, _, _ = last.partition(b"&")
            of_this = proof(self._secret, signed[:-1]).encode()
            if hmac.compare_digest(last, of_this):
                return True
        return hmac.compare_digest(found, self._proof)

    def _is_from_aistore(self, address: str) -> bool:
        with suppress(ValueError):
            found = _plain(address)
            return found in self._addresses or any(found in network for network in self._networks)
        return False


def _plain(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _addresses(settings: Settings) -> set[IPv4Address | IPv6Address]:
    hosts = [address.rpartition(":")[0].strip("[]") for address in nodes_of(settings)]
    found = {_plain(text) for host in hosts for text in _resolved(host)}
    if not all(address.is_loopback for address in found):  # in a container, not on one machine
        found |= {_plain(text) for text in _gateways()}
    return found


def _resolved(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as e:  # a node's address in a network that this pod does not reach
        print(f"storeside: the address of AIStore's node {host!r} is unknown: {e.strerror}", flush=True)
        return set()


def _gateways() -> list[str]:
    """Return the default gateways: a node's own connections to its pods come from them."""
    with suppress(OSError):
        routes = [line.split() for line in _ROUTES.read_text().splitlines()[1:]]
        return [socket.inet_ntoa(bytes.fromhex(r[2])[::-1]) for r in routes if r[1] == "00000000" and int(r[2], 16)]
    return []
