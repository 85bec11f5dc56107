"""The certificates of the Compose stack: who can read them, when they are created again, and that they work."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from storeside.stack.containers.certificates import AUTHORITY, SERVERS, Server, create

# The group of ClickHouse's container does not exist here, and only root may give files to it.
OURS = {name: Server(server.names) for name, server in SERVERS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (AUTHORITY, *OURS):
        (tmp_path / name).mkdir()
    assert create(tmp_path, OURS)
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_clients_get_the_authority_and_nobody_its_key(folder: Path) -> None:
    found = content(folder)
    assert set(found) == {
        f"{AUTHORITY}/ca.pem",
        *(f"{server}/{name}" for server in OURS for name in ("ca.pem", "server.pem", "server.key")),
    }
    assert len({text for name, text in found.items() if name.endswith("ca.pem")}) == 1
    for name, text in found.items():
        assert (b"PRIVATE KEY" in text) is name.endswith("server.key"), name
    authority = ssl.create_default_context()
    for server in OURS:
        with pytest.raises(ssl.SSLError, match="mismatch"):  # no server's key is the authority's
            authority.load_cert_chain(folder / AUTHORITY / "ca.pem", folder / server / "server.key")


def test_keys_are_readable_for_their_owner_or_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, int] = {}
    monkeypatch.setattr(os, "chown", lambda path, user, group: given.update({str(path): group}))
    for name in (AUTHORITY, *SERVERS):
        (tmp_path / name).mkdir()
    create(tmp_path)
    for name, server in SERVERS.items():
        key = tmp_path / name / "server.key"
        assert stat.S_IMODE(key.stat().st_mode) == (0o640 if server.group else 0o600)
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o750
        assert given[f"{key}.new"] == given[str(key.parent)] == server.group
    assert stat.S_IMODE((tmp_path / AUTHORITY / "ca.pem").stat().st_mode) == 0o644


def test_complete_certificates_stay(folder: Path) -> None:
    before = content(folder)
    assert not create(folder, OURS)
    assert content(folder) == before


@pytest.mark.parametrize("broken", ["absent", "key of another", "authority", "names", "damaged", "its authority"])
def test_incomplete_certificates_are_all_created_again(folder: Path, broken: str) -> None:
    servers = dict(OURS)
    if broken == "absent":
        (folder / "s3" / "server.pem").unlink()
    elif broken == "key of another":
        (folder / "s3" / "server.key").write_bytes((folder / "aistore" / "server.key").read_bytes())
    elif broken == "authority":
        (folder / AUTHORITY / "ca.pem").unlink()
    elif broken == "damaged":
        (folder / "s3" / "server.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    elif broken == "its authority":
        (folder / "s3" / "ca.pem").write_text("")
    else:
        servers["s3"] = Server(("s3", "another-name"))
    before = content(folder)
    assert create(folder, servers)
    assert not {text for text in content(folder).values()} & set(before.values()) - {b""}
    assert not create(folder, servers)


@pytest.mark.parametrize("name", ["aistore", "aistore-data", "localhost", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_accepts_the_server(folder: Path, name: str) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "aistore" / "server.pem", folder / "aistore" / "server.key")
    assert _handshake(server, folder / AUTHORITY / "ca.pem", name) == ""
    assert "self-signed" in _handshake(server, None, name) or "local issuer" in _handshake(server, None, name)
    assert "mismatch" in _handshake(server, folder / AUTHORITY / "ca.pem", "s3")


def _handshake(server: ssl.SSLContext, authority: Path | None, name: str) -> str:
    """Return the reason for which a client refuses the server; empty if it does not."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        ssl.create_default_context(cafile=authority).wrap_socket(ours, server_hostname=name).close()
    except ssl.SSLError as error:
        return str(error)
    finally:
        ours.close()
        thread.join()
    return ""
