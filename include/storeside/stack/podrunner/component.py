"""The pod runner as a component of the embedded stack."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import sys
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trustme

from storeside.stack.authn import token_file
from storeside.stack.settings import HOST, SOURCES, Stack
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import UNANSWERED

NAMESPACE = "ais"
Images = Mapping[str, Mapping[str, Any]]


def folder(stack: Stack) -> Path:
    """Return the folder with the runner's configuration, certificate and records."""
    return stack.state / "podrunner"


def service_account(stack: Stack) -> Path:
    """Return the folder with ``ca.crt``, ``token`` and ``namespace``, which clients inside pods read."""
    return folder(stack) / "serviceaccount"


def kube_config(stack: Stack) -> Path:
    """Return the kubeconfig file for clients of the pod runner."""
    return folder(stack) / "kubeconfig"


def allowed(stack: Stack) -> Path:
    """Return the file in which the owner lists commands that pods may run besides Storeside's own transforms."""
    return stack.state.parent / "allowed.txt"


def node_name(target: int) -> str:
    """Return the Kubernetes node on which a target believes to run."""
    return f"node-target-{target}"


def pod_name(target: int) -> str:
    """Return the pod in which a target believes to run."""
    return f"ais-target-{target}"


def components(stack: Stack, images: Images, write_files: bool = True) -> list[Component]:
    """Write the runner's files and return its component; without `write_files` only return it."""
    config = write(stack, images) if write_files else folder(stack) / "config.json"
    return [
        Component(
            name="podrunner",
            command=(sys.executable, "-m", "storeside.stack.podrunner", "--config", str(config)),
            directory=SOURCES,
            healthy=partial(answers, stack),
            start_seconds=30,
        )
    ]


def write(stack: Stack, images: Images, host: str = HOST, **changes: Path) -> Path:
    """Write the files of a runner at `host` and return its configuration; `changes` replace fields of it.

    `images` maps patterns of image names, without tags, to ``{"command": [...], "env": {...}, "cwd": "...",
    "allowed": [...]}``. The runner replaces ``{port}``, ``{host}`` and ``{python}`` in commands and values.
    """
    home = folder(stack)
    _write_credentials(home, service_account(stack), host)
    _write_kube_config(stack, host)
    settings = {
        "host": host,
        "port": stack.ports["podrunner"],
        "namespace": NAMESPACE,
        "token_file": str(service_account(stack) / "token"),
        "certificate": str(home / "server.pem"),
        "key": str(home / "server.key"),
        "state": str(home),
        "allowed": str(allowed(stack)),
        "pod_token": str(token_file(stack, "transformer")),
        "gatherer_token": str(token_file(stack, "gatherer")),
        "python": sys.executable,
        "nodes": [
            {
                "name": pod_name(target),
                "node": node_name(target),
                "mounts": [str(stack.state / "aistore" / "data")],
            }
            for target in range(stack.targets)
        ],
        "images": with_trust(images, stack.authority),
        **{name: str(path) for name, path in changes.items()},
    }
    config = home / "config.json"
    config.write_text(json.dumps(settings, indent=1))
    return config


def with_trust(images: Images, authority: Path | None) -> Images:
    """Return images whose transformers trust AIStore's certificates: those of the authority in this file."""
    if authority is None:
        return images
    trust = {"AIS_CLIENT_CA": str(authority)}
    return {pattern: {**image, "env": {**image.get("env", {}), **trust}} for pattern, image in images.items()}


def _write_credentials(home: Path, account: Path, host: str) -> None:
    """Create certificate and token once per host: AIStore's nodes read them at their start and keep them."""
    account.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.chmod(0o700)
    (account / "namespace").write_text(NAMESPACE)
    token, issued = account / "token", home / "host"
    if token.exists() and (issued.read_text() if issued.exists() else HOST) == host:
        return
    token.unlink(missing_ok=True)
    issued.write_text(host)
    authority = trustme.CA()
    certificate = authority.issue_cert(host, "localhost")
    authority.cert_pem.write_to_path(str(account / "ca.crt"))
    with open(home / "server.key", "wb", opener=_private) as file:
        file.write(certificate.private_key_pem.bytes())
    with open(home / "server.pem", "wb") as file:
        file.writelines(blob.bytes() for blob in certificate.cert_chain_pems)
    new = token.with_suffix(".new")
    with open(new, "w", opener=_private) as file:
        file.write(secrets.token_urlsafe(32))
    new.replace(token)  # written last: if the token exists, all files are complete


def _url(stack: Stack, host: str) -> str:
    return f"https://{host}:{stack.ports['podrunner']}"


def _write_kube_config(stack: Stack, host: str) -> None:
    account = service_account(stack)
    named = {"name": "storeside"}
    cluster = {"server": _url(stack, host), "certificate-authority": str(account / "ca.crt")}
    context = {"cluster": "storeside", "user": "storeside", "namespace": NAMESPACE}
    record = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": cluster}],
        "users": [{**named, "user": {"tokenFile": str(account / "token")}}],
        "contexts": [{**named, "context": context}],
        "current-context": "storeside",
    }
    kube_config(stack).write_text(json.dumps(record, indent=1))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_TRUNC, 0o600)


def answers(stack: Stack, host: str = HOST) -> bool:
    """Return whether the runner at `host` answers with the stack's certificate."""
    try:
        context = ssl.create_default_context(cafile=str(service_account(stack) / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{_url(stack, host)}/healthz", timeout=1) as response:
            return bool(response.status == 200)
    except UNANSWERED:
        return False
