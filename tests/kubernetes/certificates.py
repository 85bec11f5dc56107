"""The cluster's certificate authority, and a certificate and a kubeconfig for each of its programs."""

from __future__ import annotations

import json
from pathlib import Path

import trustme

from tests.kubernetes.files import ADDRESS, API, API_SERVICE, NODE

_API_NAMES = (
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    "localhost", "127.0.0.1", ADDRESS, API_SERVICE,
)  # fmt: skip
# Name of the file, names in the certificate, user, and group of the user.
_CERTIFICATES = (
    ("apiserver", _API_NAMES, "kube-apiserver", ""),
    ("apiserver-kubelet", ("apiserver-kubelet",), "apiserver-kubelet", "system:masters"),
    ("kubelet", (NODE, ADDRESS), f"system:node:{NODE}", "system:nodes"),
    ("admin", ("admin",), "admin", "system:masters"),
    ("kube-controller-manager", ("controller",), "system:kube-controller-manager", ""),
    ("kube-scheduler", ("scheduler",), "system:kube-scheduler", ""),
    ("kube-proxy", ("proxy",), "system:kube-proxy", ""),
    ("coredns", ("coredns",), "system:coredns", ""),
)


def write(folder: Path) -> None:
    """Write ``ca.crt``, the key of service accounts, and for each program a ``.pem`` and a ``.conf`` (kubeconfig)."""
    folder.mkdir(mode=0o700)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    trustme.CA().private_key_pem.write_to_path(folder / "service-accounts.key")
    for name, names, user, group in _CERTIFICATES:
        made = authority.issue_cert(*names, common_name=user, organization_name=group or None)
        pem = folder / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(pem)
        (folder / f"{name}.conf").write_text(
            kubeconfig(folder / "ca.crt", {"client-certificate": str(pem), "client-key": str(pem)})
        )


def kubeconfig(authority: Path, user: dict[str, str]) -> str:
    """Return a kubeconfig for the node's API server with the credentials of `user`."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "own", "cluster": {"server": API, "certificate-authority": str(authority)}}],
            "users": [{"name": "own", "user": user}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
            "current-context": "own",
        }
    )
