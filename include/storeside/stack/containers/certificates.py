"""Creates the private authority of the Compose stack and the certificates of its servers, once.

``python -m storeside.stack.containers.certificates`` writes one folder for each server, with ``ca.pem``,
``server.pem`` and ``server.key``, and the folder `AUTHORITY` with ``ca.pem`` only, for clients. Each folder is a
volume, so a container gets only the files that it needs. The authority's key is never written, so it cannot issue
another certificate later.

If all files exist and belong together, nothing changes. Otherwise, for example after an update that adds a
server, all of them are created again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from storeside.stack.settings import HOST

if TYPE_CHECKING:
    import trustme

FOLDER = Path("/var/lib/certificates")
AUTHORITY = "authority"
# Names by which the servers' ports are published on the machine.
_LOCAL = ("localhost", HOST)


@dataclass(frozen=True)
class Server:
    """A server's host names in the networks of Compose, and the group that reads its key: that of its container."""

    names: tuple[str, ...]
    group: int = 0


SERVERS: Mapping[str, Server] = {
    "aistore": Server(("aistore", "aistore-data")),
    "clickhouse": Server(("clickhouse",), group=101),
    "s3": Server(("s3",)),
}


def main() -> int:
    """Create missing certificates; return 1 if a folder cannot be written."""
    try:
        created = create(FOLDER)
    except OSError as e:
        print(f"error: cannot write certificates: {e}; see certificates in docker-compose.yaml", file=sys.stderr)
        return 1
    print("created the authority and all certificates" if created else "the certificates are complete", flush=True)
    return 0


def create(folder: Path, servers: Mapping[str, Server] = SERVERS) -> bool:
    """Create an authority and certificates below `folder`, unless complete ones exist; return whether it did.

    Raises:
        OSError: a folder cannot be written, or does not belong to this user.
    """
    if all(_complete(folder, name, server) for name, server in servers.items()):
        return False
    import trustme

    authority = trustme.CA(organization_name="Storeside", organization_unit_name="Compose")
    ca = authority.cert_pem.bytes()
    for name, server in servers.items():
        issued = authority.issue_cert(*server.names, *_LOCAL)
        _write_server(folder / name, server.group, ca, issued)
    _write(folder / AUTHORITY / "ca.pem", ca, 0o644)
    return True


def _write_server(folder: Path, group: int, ca: bytes, issued: trustme.LeafCert) -> None:
    os.chown(folder, -1, group)
    folder.chmod(0o750)
    _write(folder / "server.key", issued.private_key_pem.bytes(), 0o640 if group else 0o600, group)
    _write(folder / "server.pem", b"".join(part.bytes() for part in issued.cert_chain_pems), 0o644)
    _write(folder / "ca.pem", ca, 0o644)


def _complete(folder: Path, name: str, server: Server) -> bool:
    """Return whether a server's files belong together, and to the authority that clients trust."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        own = folder / name
        ca = (folder / AUTHORITY / "ca.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate((own / "server.pem").read_bytes())
        key = load_pem_private_key((own / "server.key").read_bytes(), None)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    names = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    return (
        names == {*server.names, *_LOCAL}
        and key.public_key() == certificate.public_key()
        and (own / "ca.pem").read_bytes() == ca
    )


def _write(path: Path, content: bytes, mode: int, group: int = -1) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(new, "wb", opener=partial(os.open, mode=0o600)) as file:
        file.write(content)
    os.chown(new, -1, group)
    new.chmod(mode)
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
