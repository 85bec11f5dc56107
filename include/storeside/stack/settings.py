"""The embedded stack's folders, ports and secrets, which are chosen once and recorded."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

# The folder from which Python imports the package, and the root of the checkout.
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
# Airflow's executors, with the ports that a stack needs for each besides `PORTS`.
EXECUTORS: dict[str, tuple[str, ...]] = {
    "local": (),
    "celery": ("postgres", "redis", "airflow_logs", "airflow_trigger_logs"),
}
# Ports of a stack with TLS: ClickHouse itself, behind the process that terminates TLS for it.
TLS_PORTS = ("clickhouse_plain",)
TARGET_PORTS = ("public", "control", "data")
# Names of ports, or their beginnings, that serve HTTPS in a stack with TLS.
_HTTPS = ("ais_", "authn", "clickhouse_http", "s3")
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
    "authn_gatherer",
    "ais_join",
    "postgres",
    "redis",
)
# Random bytes of a secret; its text is a third longer. Airflow signs its tokens with HS512, which needs a key of at
# least 64 bytes (RFC 7518, section 3.2).
_SECRET_BYTES = {"airflow_jwt": 48, "authn_key": 48, "ais_join": 48}


_PORTS = range(16384, 30000)  # Kubernetes gives those from 30000 to its services


class StackError(Exception):
    """The stack cannot carry out a command; the message is one line with the reason and the remedy."""


def _new(names: Iterable[str]) -> dict[str, str]:
    """Return new random values for these secrets."""
    return {name: secrets.token_urlsafe(_SECRET_BYTES.get(name, 24)) for name in names}


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are currently free on the loopback address.

    They are lower than the ports that systems give to connections and to servers that name none (from 32768 on
    Linux: `ip_local_port_range`), so no such process takes one before its server has opened it.
    """
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            found.add(port)
    return list(found)


@dataclass(frozen=True)
class Stack:
    """The recorded choices for one embedded stack.

    :param state: folder of the stack; running processes write only there
    :param cache: folder of builds and downloads
    :param targets: number of AIStore's targets
    :param ports: ports of the components, by name
    :param secrets: passwords and tokens, by name
    :param secure: AIStore requires tokens from AuthN, and its nodes sign their requests to each other; a record
        without this field belongs to a stack that is not secure
    :param executor: executor of Airflow, one of `EXECUTORS`
    :param tls: AIStore, AuthN, ClickHouse, S3 and SQS use HTTPS with a certificate of the stack's own authority
        (`storeside.stack.tls`)
    :param backends: AIStore's backends besides S3, separated by spaces (`storeside.stack.building.backends`)
    :param folder: folder in which the stack was created; a record without it is from an older version
    :param certificates: folder of the certificates if the stack did not create them; not recorded
    """

    state: Path
    cache: Path
    targets: int
    ports: dict[str, int]
    secrets: dict[str, str] = field(repr=False)
    secure: bool = False
    executor: str = "local"
    tls: bool = False
    backends: str = ""
    folder: str = ""
    certificates: Path | None = None

    @classmethod
    def create(
        cls, folder: Path, targets: int, secure: bool = True, executor: str = "local", tls: bool = False
    ) -> Stack:
        """Return a new stack below `folder` with free ports and random secrets."""
        names = [
            *PORTS,
            *EXECUTORS[executor],
            *(TLS_PORTS if tls else ()),
            *(f"ais_target{n}_{kind}" for n in range(targets) for kind in TARGET_PORTS),
        ]
        return cls(
            state=folder / "state",
            cache=folder / "cache",
            targets=targets,
            ports=dict(zip(names, free_ports(len(names)), strict=True)),
            secrets=_new(SECRETS),
            secure=secure,
            executor=executor,
            tls=tls,
            folder=str(folder.resolve()),
        )

    @classmethod
    def load(cls, folder: Path) -> Stack | None:
        """Read the recorded stack below `folder`; None if there is no record.

        Raises:
            StackError: another user owns the record, or a newer version of Storeside wrote it.
        """
        path = folder / "state" / "stack.json"
        try:
            record = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except PermissionError as e:
            raise StackError(
                f"{path} cannot be read: the stack belongs to another user, for example because a command ran with"
                f" sudo: run this command as that user, or give {folder} to yourself with chown -R"
            ) from e
        if new := sorted(record.keys() - {one.name for one in fields(cls)}):
            raise StackError(
                f"a newer version of Storeside wrote {path}, with {', '.join(new)}: check that version out, or delete"
                f" {path.parent}, with its data, to create another stack"
            )
        # An older version of Storeside with fewer ports and secrets may have written the record.
        wanted = (*PORTS, *EXECUTORS[record.get("executor", "local")], *(TLS_PORTS if record.get("tls") else ()))
        missing = [name for name in wanted if name not in record["ports"]]
        record["ports"].update(zip(missing, free_ports(len(missing)), strict=True))
        unknown = [name for name in SECRETS if name not in record["secrets"]]
        record["secrets"].update(_new(unknown))
        stack = cls(state=folder / "state", cache=folder / "cache", **record)
        if missing or unknown:
            stack.save()
        return stack

    def save(self) -> None:
        """Write the record to a file that only its owner can read."""
        self.state.mkdir(parents=True, exist_ok=True)
        record = asdict(self)
        del record["state"], record["cache"], record["certificates"]
        path = self.state / "stack.json"
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(record, indent=1))
        new.replace(path)

    def url(self, port: str) -> str:
        """Return the loopback URL of a recorded port, such as ``http://127.0.0.1:41233``."""
        scheme = "https" if port == "podrunner" or (self.tls and port.startswith(_HTTPS)) else "http"
        return f"{scheme}://{HOST}:{self.ports[port]}"

    @property
    def authority(self) -> Path | None:
        """The certificate of the authority that clients of this stack must trust; None without TLS."""
        return self.tls_folder / "ca.pem" if self.tls else None

    @property
    def tls_folder(self) -> Path:
        """The folder of the certificates of a stack with TLS."""
        return self.certificates or self.state / "tls"


def default_folder() -> Path:
    """Return the stack's folder, which git ignores: ``$STORESIDE_HOME`` or ``.storeside`` in the checkout."""
    return Path(os.environ.get("STORESIDE_HOME") or CHECKOUT / ".storeside").resolve()
