"""AIStore's AuthN as a component, its users, and the tokens that other components read from files.

A secure stack has four users besides AuthN's administrator. `airflow` has all rights in the cluster, because AIStore
lets only administrators start ETLs. `clickhouse` reads objects. `transformer` puts the facts that a transform writes
besides its result. `gatherer` reads the objects of which an ETL makes shards.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.stack import tls
from storeside.stack.building.nodes import AUTHN
from storeside.stack.building.patch import AUTHN_HOST_VARIABLE
from storeside.stack.settings import HOST, Stack, StackError
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.probes import listens

if TYPE_CHECKING:
    from storeside.aistore.cluster import Cluster

ADMIN = "admin"
AIRFLOW = "airflow"
# Bits of a permission, see AIStore's api/apc/access.go.
_GET, _HEAD, _PUT, _HEAD_BUCKET, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 8, 1 << 9
_EVERYTHING = (1 << 64) - 1
ROLES = {
    AIRFLOW: _EVERYTHING,
    "clickhouse": _GET | _HEAD | _HEAD_BUCKET | _LIST,
    "transformer": _PUT | _HEAD_BUCKET,
    "gatherer": _GET | _HEAD_BUCKET,
}
# ClickHouse and ETLs cannot log in, so they read tokens from files. `up` renews a token after half of its lifetime.
_TOKEN_USERS = ("clickhouse", "transformer", "gatherer")
_TOKEN_SECONDS = 90 * 24 * 3600


def folder(stack: Stack) -> Path:
    """Return the folder of AuthN's configuration, its users and the token files."""
    return stack.state / "authn"


def components(stack: Stack, binary: Path, host: str = HOST, write: bool = True) -> list[Component]:
    """Write AuthN's configuration and return its component; without `write` only return it.

    `binary` is the path of `aisnode`. AuthN listens at `host`; on all interfaces if it is empty.
    """
    home = folder(stack)
    if write:
        _configure(stack, home)
    return [
        Component(
            name="authn",
            command=(str(binary.with_name(AUTHN)), f"-config={home / 'authn.json'}"),
            environment={
                AUTHN_HOST_VARIABLE: host,
                "AIS_AUTHN_SECRET_KEY": stack.secrets["authn_key"],
                "AIS_AUTHN_SU_NAME": ADMIN,
                "AIS_AUTHN_SU_PASS": stack.secrets["authn_admin"],
            },
            directory=home,
            healthy=partial(listens, HOST, stack.ports["authn"]),
            ports=(stack.ports["authn"],),
        )
    ]


def _configure(stack: Stack, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.chmod(0o700)
    settings = {
        "auth": {
            "expiration_time": "24h",
            "max_token_age": f"{_TOKEN_SECONDS}s",
            "db": {"type": "BuntDB", "filepath": str(home / "users.db")},
        },
        "log": {"dir": str(home / "log"), "level": "3"},
        "net": {"http": {"port": stack.ports["authn"], **tls.go_settings(stack)}},
        "timeout": {"default_timeout": "10s"},
    }
    (home / "authn.json").write_text(json.dumps(settings, indent=1))


def prepare(stack: Stack) -> None:
    """Create missing users on the running server, and write tokens for users that cannot log in.

    Raises:
        StackError: AuthN does not answer, or refuses a request.
    """
    import requests

    from storeside.aistore.login import expiry

    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {_token(session, stack, ADMIN, 3600)}"
        existing = _call(session, "GET", stack, "users").json()
        for name, permission in ROLES.items():
            role = {"name": name, "desc": f"Storeside: {name}", "clusters": [{"id": "", "perm": str(permission)}]}
            if name not in existing:
                if not _call(session, "GET", stack, f"roles/{name}", allowed=(404,)).ok:
                    _call(session, "POST", stack, "roles", json=role)
                user = {"id": name, "pass": stack.secrets[f"authn_{name}"], "roles": [role]}
                _call(session, "POST", stack, "users", json=user)
        for name in _TOKEN_USERS:
            if expiry(token(stack, name)) - time.time() < _TOKEN_SECONDS / 2:
                _write(token_file(stack, name), _token(session, stack, name, _TOKEN_SECONDS - 60))


def change_password(stack: Stack, user: str) -> None:
    """Replace the password of an existing user by the stack's. Raises StackError as `prepare` does."""
    import requests

    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {_token(session, stack, ADMIN, 3600)}"
        _call(session, "PUT", stack, f"users/{user}", json={"pass": stack.secrets[f"authn_{user}"]})


def token_file(stack: Stack, user: str) -> Path:
    """Return the file with the token of a user that cannot log in."""
    return folder(stack) / f"{user}.token"


def token(stack: Stack, user: str) -> str:
    """Return the token in a user's file; empty if the stack is not secure or was never started."""
    try:
        return token_file(stack, user).read_text()
    except FileNotFoundError:
        return ""


def cluster(stack: Stack) -> Cluster:
    """Return the stack's cluster for Airflow's user."""
    from storeside.aistore.cluster import Cluster  # AIStore's container image lacks this package

    url, ca_cert = stack.url("ais_proxy"), str(stack.authority or "")
    if not stack.secure:
        return Cluster(url, ca_cert=ca_cert)
    password = stack.secrets["authn_airflow"]
    return Cluster(url, ca_cert=ca_cert, authn=stack.url("authn"), username=AIRFLOW, password=password)


def current_token(stack: Stack) -> str:
    """Return a token of Airflow's user; empty if the stack is not secure.

    Raises:
        AIStoreTransientError: AuthN does not answer.
    """
    return str(cluster(stack).credential or "")


def _token(session: Any, stack: Stack, user: str, seconds: int) -> str:
    body = {"password": stack.secrets[f"authn_{user}"], "expires_in": seconds * 10**9}
    return str(_call(session, "POST", stack, f"users/{user}", json=body).json()["token"])


def _call(session: Any, method: str, stack: Stack, path: str, allowed: tuple[int, ...] = (), **body: Any) -> Any:
    import requests

    try:
        verify = str(stack.authority) if stack.authority else True
        answer = session.request(method, f"{stack.url('authn')}/v1/{path}", timeout=10, verify=verify, **body)
    except requests.RequestException as e:
        raise StackError(f"AuthN does not answer {method} {path}: {e}; see {folder(stack) / 'log'}") from e
    if not answer.ok and answer.status_code not in allowed:
        text = " ".join(answer.text.split())[:200]
        raise StackError(f"AuthN refuses {method} {path}: {answer.status_code} {text}; see {folder(stack) / 'log'}")
    return answer


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    with open(new, "w", opener=partial(os.open, mode=0o600)) as file:
        file.write(text)
    new.replace(path)
