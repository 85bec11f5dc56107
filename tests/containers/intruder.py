"""Tries everything that a taken-over transformer can do, in its container, and prints the finds as JSON.

The standard input is a JSON object with ``secrets`` (text by name), ``addresses`` (lists of host and port),
``names`` of hosts, ``volume`` (all paths of AIStore's volume, whose folders the intruder may not list) and ``read``
(an URL of an object). The container has no package of the tests, so the file uses the standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOME = "/var/lib/storeside"
AUTHORITY = "/etc/storeside/tls/ca.pem"
# Besides AIStore's volume; the rest of the image is public.
FOLDERS = ("/tmp", "/etc", "/home", "/run", "/dev/shm")  # noqa: S108
TRANSFORMER = "/opt/venv/bin/python -m storeside.transformers.serve"
WAIT_SECONDS = 300
IN_MEMORY = ("/proc", "/sys", "/dev", "/tmp", HOME)  # noqa: S108


def connects(host: str, port: int) -> bool:
    """Return whether a server accepts a connection."""
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True


def resolves(name: str) -> bool:
    """Return whether a name has an address."""
    try:
        return bool(socket.getaddrinfo(name, 80))
    except OSError:
        return False


def environments() -> Iterator[tuple[str, bytes]]:
    """Yield the command line and the environment of each process; empty if the intruder may not read it."""
    for folder in Path("/proc").glob("[0-9]*"):
        yield _content(folder / "cmdline").replace(b"\0", b" ").decode(), _content(folder / "environ")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def while_one_transforms() -> list[tuple[str, bytes]]:
    """Return all processes as soon as one is a transformer, or after `WAIT_SECONDS`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = list(environments())
        if any(command.startswith(TRANSFORMER) for command, _ in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def files(volume: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each readable file with its content."""
    below = [os.path.join(folder, name) for top in FOLDERS for folder, _, names in os.walk(top) for name in names]
    for path in (*volume, *below):
        try:
            if os.path.isfile(path):
                yield path, Path(path).read_bytes()
        except OSError:
            continue


def writable(volume: list[str]) -> Iterator[str]:
    """Yield paths of AIStore's volume, and folders of the image, that can be written."""
    yield from (path for path in volume if os.access(path, os.W_OK))
    for folder, folders, _ in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in IN_MEMORY]
        if os.access(folder, os.W_OK):
            yield folder


def status(url: str, token: str) -> int:
    """Return the status of a request."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        trust = ssl.create_default_context(cafile=AUTHORITY)
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def look(given: dict[str, Any]) -> dict[str, Any]:
    """Try everything and return the finds."""
    secrets = {name: text.encode() for name, text in given["secrets"].items()}
    processes = while_one_transforms()
    readable = dict(files(given["volume"]))
    token = Path(HOME, "state/podrunner/pod.token").read_text()
    return {
        "connected": [address for address in given["addresses"] if connects(*address)],
        "resolved": [name for name in given["names"] if resolves(name)],
        "processes": [command for command, _ in processes],
        "in environments": [n for n, text in secrets.items() for _, content in processes if text in content],
        "in files": [(n, path) for path, text in readable.items() for n, secret in secrets.items() if secret in text],
        "volume": [path for path in readable if path.startswith(HOME)],
        "writable": list(writable(given["volume"])),
        "without token": status(given["read"], ""),
        "with token": status(given["read"], token),
        "user": [os.getuid(), os.getgid()],
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(look(json.load(sys.stdin)), sys.stdout)
