"""HSDS as an optional component of the stack: a service node and two data nodes on Unix sockets.

HSDS has its own environment, because it pins packages that Airflow pins to other versions. It stores its data in a
folder, or, with the part ``hsds-s3``, in a bucket of the embedded S3.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from storeside.stack.building.packages import uv
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, StackError
from storeside.stack.supervision.component import Component

PARTS = ("hsds", "hsds-s3")
REQUIREMENTS = Path(__file__).with_name("hsds_requirements.txt")
DATA_NODES = 2
USERS = ("admin", "storeside", "reader")
BUCKET = "hsds"
# Linux' limit for the length of a socket's path.
_MOST_PATH = 107


@dataclass(frozen=True)
class Login:
    """A client's access to HSDS: the endpoint, a user and the password."""

    endpoint: str
    username: str
    password: str


def login(stack: Stack, username: str = "storeside", part: str = "hsds") -> Login:
    """Return the endpoint and the user's password. Raises StackError if HSDS was never started."""
    try:
        record = dict(line.split(":", 1) for line in _passwords(stack, part).read_text().splitlines())
    except FileNotFoundError as error:
        raise StackError(f"there is no HSDS below {stack.state}: start it with 'up --only s3,{part}'") from error
    return Login(_url(_socket(stack, part, "sn")), username, record[username])


def connection(stack: Stack) -> dict[str, Any] | None:
    """Return the Airflow connection to HSDS; None if HSDS was never started."""
    part = next((part for part in PARTS if _passwords(stack, part).exists()), None)
    if part is None:
        return None
    found = login(stack, part=part)
    return {
        "conn_type": "http",
        "login": found.username,
        "password": found.password,
        "extra": {"endpoint": found.endpoint},
    }


def components(
    stack: Stack, part: str, tell: Callable[[str], object] = lambda text: None, write: bool = True
) -> list[Component]:
    """Write HSDS's configuration and return its nodes, data nodes first; install HSDS if it is absent.

    Without `write` only return the nodes.

    Raises:
        StackError: HSDS cannot be installed, or the stack's path is too long for sockets.
    """
    home, python = _home(stack, part), _python(stack.cache)
    if write:
        install(stack.cache, tell)
        for folder in (home, home / "data" / BUCKET):
            folder.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        _configure(stack, part)
    nodes = [f"dn{number}" for number in range(DATA_NODES)]
    sockets = [_socket(stack, part, node) for node in nodes]
    shared = (
        "--standalone",
        "--use_socket",
        f"--dn_urls={','.join(map(_url, sockets))}",
        f"--hsds_endpoint={_url(_socket(stack, part, 'sn'))}",
        f"--config_dir={home}",
        *(() if part == "hsds-s3" else (f"--root_dir={home / 'data'}",)),
    )
    types = [("--node_type=dn", f"--node_number={number}") for number in range(DATA_NODES)]
    types.append(("--node_type=sn", f"--sn_url={_url(_socket(stack, part, 'sn'))}"))
    # A killed node leaves its socket file, which the next node would take for the socket of a running node.
    start = ("/bin/sh", "-c", 'rm -f "$0" && exec "$@"')
    return [
        Component(
            name=f"{part}-{node}",
            command=(*start, str(path), str(python), "-m", "hsds.node_runner", *kind, *shared),
            healthy=partial(_healthy, path),
            environment=_environment(stack, part),
            directory=home,
        )
        for node, path, kind in zip([*nodes, "sn"], [*sockets, _socket(stack, part, "sn")], types, strict=True)
    ]


def prepare(stack: Stack, part: str = "hsds") -> None:
    """Create the folders ``/home`` and ``/home/storeside`` on the running server; with S3, create the bucket first.

    Raises:
        StackError: HSDS refuses to create a folder.
    """
    if part == "hsds-s3":
        client = s3.of_stack("s3", stack)
        if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket=BUCKET)
    admin = login(stack, "admin", part)
    authorization = "Basic " + b64encode(f"{admin.username}:{admin.password}".encode()).decode()
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    for folder, owner in (("/home", "admin"), ("/home/storeside", "storeside")):
        body = json.dumps({"folder": True, "owner": owner})
        with contextlib.closing(_Connection(_socket(stack, part, "sn"), 30)) as node:
            node.request("PUT", f"/?domain={folder}", body, headers)
            answer = node.getresponse()
        if answer.status not in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
            raise StackError(f"HSDS does not create {folder}: {answer.status} {answer.reason}")


def install(cache: Path, tell: Callable[[str], object] = lambda text: None) -> Path:
    """Return the interpreter of HSDS's environment below `cache`; create the environment if it is absent.

    Raises:
        StackError: uv is absent or the packages cannot be installed.
    """
    python = _python(cache)
    folder = python.parents[1]
    if folder.exists():
        return python
    command = uv("HSDS")
    tell("installing HSDS, once")
    cache.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="hsds-", dir=cache))
    sync = (
        "pip",
        "sync",
        "--quiet",
        "--require-hashes",
        "--python",
        str(new / "bin" / "python"),
    )
    try:
        for step in (
            ("venv", "--quiet", "--clear", "--python", sys.executable, str(new)),
            (*sync, str(REQUIREMENTS)),
        ):
            done = subprocess.run([command, *step], capture_output=True, text=True, check=False)
            if done.returncode:
                raise StackError(f"HSDS cannot be installed: {' '.join(done.stderr.split())[-500:]}")
        with contextlib.suppress(OSError):  # another process has installed it meanwhile
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return python


def _python(cache: Path) -> Path:
    version = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:10]
    return cache / f"hsds-{sys.version_info.major}.{sys.version_info.minor}-{version}" / "bin" / "python"


def _configure(stack: Stack, part: str) -> None:
    """Write users and settings; passwords are generated once."""
    passwords = _passwords(stack, part)
    if not passwords.exists():
        new = passwords.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text("".join(f"{user}:{secrets.token_urlsafe(24)}\n" for user in USERS))
        new.replace(passwords)
    settings = {
        "allow_noauth": False,
        "admin_user": "admin",
        "aws_region": s3.REGION,
        "bucket_name": BUCKET,
        "groups_file": "",
        "log_level": "WARNING",
        "password_file": str(passwords),
        # A chunk is seldom read twice: most of the default cache, 128 MB per node, would never be used again. HSDS
        # refuses writes while chunks that are not stored yet fill the cache, so it stores them without delay.
        "chunk_mem_cache_size": "16m",
        "s3_age_time": 0,
        "metadata_mem_cache_size": "16m",
    }
    (_home(stack, part) / "override.yml").write_text(json.dumps(settings, indent=1))  # JSON is valid YAML


def _environment(stack: Stack, part: str) -> dict[str, str]:
    memory = {"MALLOC_ARENA_MAX": "1"}  # threads share one memory arena
    if part == "hsds":
        return memory
    access, secret = s3.keys(stack)
    return {
        **memory,
        "AWS_S3_GATEWAY": stack.url("s3"),
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
    }


def _home(stack: Stack, part: str) -> Path:
    return stack.state / part


def _passwords(stack: Stack, part: str) -> Path:
    return _home(stack, part) / "passwords.txt"


def _socket(stack: Stack, part: str, node: str) -> Path:
    path = _home(stack, part) / f"{node}.sock"
    if len(os.fsencode(path)) > _MOST_PATH:
        raise StackError(
            f"{path} is too long for a socket ({_MOST_PATH} bytes): set STORESIDE_HOME to a shorter path"
        )
    return path


def _url(path: Path) -> str:
    return "http+unix://" + str(path).replace("/", "%2F")


class _Connection(http.client.HTTPConnection):
    """An HTTP connection through a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _healthy(path: Path) -> bool:
    """Return whether a node reports that it is ready."""
    try:
        with contextlib.closing(_Connection(path, 1)) as node:
            node.request("GET", "/info")
            return bool(json.load(node.getresponse())["node"]["state"] == "READY")
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return False
