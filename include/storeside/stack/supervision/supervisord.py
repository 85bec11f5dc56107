"""Configuration files, environment and command line of `supervisord`."""

from __future__ import annotations

import http.client
import os
import re
import xmlrpc.client
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from storeside.stack.supervision.probes import Connection
from storeside.stack.supervision.processes import MARK, mark
from storeside.stack.supervision.proxies import direct

# The caller's variables that components inherit: any other variable may be a secret, or change their behaviour.
WANTED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TMPDIR|LD_LIBRARY_PATH"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:https?_proxy|all_proxy|no_proxy)"
)

SUPERVISORD = """\
[supervisord]
logfile = {logs}/supervisord.log
logfile_maxbytes = 2MB
logfile_backups = 1
pidfile = {run}/supervisord.pid
childlogdir = {logs}
directory = {run}
umask = 077
minfds = 1024

[inet_http_server]
port = {host}:{port}
username = storeside
password = {password}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""

PROGRAM = """\
[program:{name}]
command = {command}
directory = {sources}
autostart = false
autorestart = true
startsecs = {steady}
startretries = {retries}
stopsignal = {signal}
stopwaitsecs = {stop_seconds}
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = ../logs/{name}.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 2
"""


class Transport(xmlrpc.client.Transport):
    """A transport that raises an error if the supervisor does not answer, without the password."""

    def single_request(self, host: Any, handler: str, request_body: Any, verbose: bool = False) -> Any:
        """Send a request and return the answer."""
        try:
            return super().single_request(host, handler, request_body, verbose)
        except xmlrpc.client.ProtocolError as error:
            error.url = handler  # the host has the login
            raise

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        """Return a connection with a time-out of ten seconds."""
        name, self._extra_headers, _ = self.get_host_info(host)
        self._connection = host, Connection(name, timeout=10)
        return self._connection[1]


def environment(state: Path) -> Mapping[str, str]:
    """Return the environment of all components: the caller's variables that they need, and the stack's mark."""
    kept = {name: value for name, value in os.environ.items() if WANTED.fullmatch(name)}
    return {**kept, **direct(kept), MARK: mark(state, "supervisord")}


def runs(state: Path) -> bool:
    """Return whether the supervisor of the stack with this state folder runs as a process of this user."""
    try:
        pid = int((state / "run" / "supervisord.pid").read_text())
        return psutil.Process(pid).environ().get(MARK) == mark(state, "supervisord")
    except (OSError, ValueError, psutil.Error):
        return False


def escape(value: object) -> str:
    """Escape a value for supervisord's configuration, in which ``%`` starts an expansion."""
    return str(value).replace("%", "%%")


def write(path: Path, text: str) -> None:
    """Write a file that only its owner can read; readers see the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def read(path: Path) -> str | None:
    """Return the content of a file; None if the file does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def tail(path: Path) -> list[str]:
    """Return the lines in the last 8 KiB of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
