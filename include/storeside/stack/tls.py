"""The certificate authority of a stack with TLS, and the certificate that all its servers share."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from storeside.stack.settings import HOST, Stack


def certificate(stack: Stack) -> Path:
    """Return the file with the certificate of the stack's servers."""
    return stack.tls_folder / "server.pem"


def key(stack: Stack) -> Path:
    """Return the file with the private key of the stack's servers, which only its owner can read."""
    return stack.tls_folder / "server.key"


def go_settings(stack: Stack) -> dict[str, Any]:
    """Return the settings ``net.http`` of AIStore's nodes and of AuthN for HTTPS."""
    if not stack.tls:
        return {"use_https": False}
    return {"use_https": True, "server_crt": str(certificate(stack)), "server_key": str(key(stack))}


def prepare(stack: Stack) -> None:
    """Create authority and certificate for new state of a stack with TLS."""
    if stack.authority is None or stack.authority.exists():
        return
    import trustme  # the S3 server's container image lacks this package

    stack.authority.parent.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(HOST, "localhost")
    with open(key(stack), "wb", opener=partial(os.open, mode=0o600)) as file:
        file.write(issued.private_key_pem.bytes())
    certificate(stack).write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    new = stack.authority.with_suffix(".new")
    authority.cert_pem.write_to_path(str(new))
    new.replace(stack.authority)  # last: if it exists, all files are complete
