"""Where the embedded stack lives: its folders, ports and secrets, chosen once and recorded."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The folder that Python imports the package from, and the root of the checkout.
SOURCES = Path(__file__).resolve().parents[2]
CHECKOUT = SOURCES.parent
HOST = "127.0.0.1"

PORTS = (
    "supervisor",
    "podrunner",
    "clickhouse_http",
    "clickhouse_tcp",
    "s3",
    "airflow",
    "airflow_execution",
    "ais_proxy",
    "ais_proxy_control",
    "ais_proxy_data",
    "authn",
)
TARGET_PORTS = ("public", "control", "data")
SECRETS = (
    "supervisor",
    "clickhouse",
    "clickhouse_loader",
    "clickhouse_ledger",
    "clickhouse_pages",
    "airflow_admin",
    "airflow_viewer",
    "airflow_jwt",
    "s3_access_key",
    "s3_secret_key",
    "authn_key",
    "authn_admin",
    "authn_airflow",
    "authn_clickhouse",
    "authn_transformer",
    "ais_join",
)
# Random bytes of a secret, whose text is a third longer. HS512, with which Airflow signs its tokens, needs a key of
# at least 64 bytes (RFC 7518, section 3.2).
_SECRET_BYTES = {"airflow_jwt": 48, "authn_key": 48, "ais_join": 48}


class StackError(Exception):
    """The embedded stack cannot carry out the request; the message is one line with reason and remedy."""


def _new(names: Iterable[str]) -> dict[str, str]:
    """Return new random secrets."""
    return {name: secrets.token_urlsafe(_SECRET_BYTES.get(name, 24)) for name in names}


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are free on the loopback address right now."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            probe = socket.socket()
            probe.bind((HOST, 0))
            held.append(probe)
        return [probe.getsockname()[1] for probe in held]
    finally:
        for probe in held:
            probe.close()


@dataclass(frozen=True)
class Stack:
    """The recorded choices of one embedded stack.

    `state` is the only folder that running processes write to; `cache` keeps what is built once. In a `secure` stack
    AIStore asks for a token of AuthN, and its nodes sign what they send each other. A record without this field is of
    a stack that is not.
    """

    state: Path
    cache: Path
    targets: int
    ports: dict[str, int]
    secrets: dict[str, str] = field(repr=False)
    secure: bool = False

    @classmethod
    def create(cls, folder: Path, targets: int, secure: bool = True) -> Stack:
        """Choose free ports and random secrets for a new stack below `folder`."""
        names = [*PORTS, *(f"ais_target{n}_{kind}" for n in range(targets) for kind in TARGET_PORTS)]
        return cls(
            state=folder / "state",
            cache=folder / "cache",
            targets=targets,
            ports=dict(zip(names, free_ports(len(names)), strict=True)),
            secrets=_new(SECRETS),
            secure=secure,
        )

    @classmethod
    def load(cls, folder: Path) -> Stack | None:
        """Read the record below `folder`; None if there is none."""
        try:
            record = json.loads((folder / "state" / "stack.json").read_text())
        except FileNotFoundError:
            return None
        # An older version of Storeside, which had fewer of them, may have written it.
        missing = [name for name in PORTS if name not in record["ports"]]
        record["ports"].update(zip(missing, free_ports(len(missing)), strict=True))
        unknown = [name for name in SECRETS if name not in record["secrets"]]
        record["secrets"].update(_new(unknown))
        stack = cls(state=folder / "state", cache=folder / "cache", **record)
        if missing or unknown:
            stack.save()
        return stack

    def save(self) -> None:
        """Write the record, readable by its owner only."""
        self.state.mkdir(parents=True, exist_ok=True)
        record = asdict(self)
        del record["state"], record["cache"]
        path = self.state / "stack.json"
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(record, indent=1))
        new.replace(path)

    def url(self, port: str, scheme: str = "http") -> str:
        """Return the loopback URL of a recorded port, such as ``http://127.0.0.1:41233``."""
        return f"{scheme}://{HOST}:{self.ports[port]}"


def default_folder() -> Path:
    """Return the ignored folder of the stack: ``$STORESIDE_HOME`` or ``.storeside`` in the checkout."""
    return Path(os.environ.get("STORESIDE_HOME") or CHECKOUT / ".storeside").resolve()
