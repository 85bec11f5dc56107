"""Find and end the processes of a stack, including those whose supervisor is gone.

Every process that a stack starts has the variable `MARK` in its environment with ``<state folder>/<name>``,
which children inherit. Unlike a recorded process id it cannot point at an unrelated process.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from storeside.stack.settings import HOST

MARK = "STORESIDE_COMPONENT"


def mark(state: Path, name: str) -> str:
    """Return the value of `MARK` for the component `name` of the stack with this state folder."""
    return f"{state}/{name}"


def marked(state: Path, name: str | None = None) -> list[psutil.Process]:
    """Return the running processes of a stack, or of one component of it, oldest first.

    The calling process and its ancestors are left out.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid in spared:
                continue
            value = process.environ().get(MARK, "")
            if value == mark(state, name) if name else value.rpartition("/")[0] == str(state):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone, a zombie, or another user's
    return sorted(found, key=_age)


def end(processes: list[psutil.Process], seconds: float = 5) -> None:
    """Ask processes to terminate and kill those that are left after `seconds`."""
    for process in processes:
        _signal(process, kill=False)
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    for process in alive:
        _signal(process, kill=True)
    psutil.wait_procs(alive, timeout=5)


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes and wait until they are gone."""
    for process in processes:
        _signal(process, kill=True)
    psutil.wait_procs(processes, timeout=5)


def listener(port: int) -> str | None:
    """Return the process that holds a TCP port of the loopback address; None if the port can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return _owner(port)
    return None


def _owner(port: int) -> str:
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        connections = []
    # A listener first: an outgoing connection may hold a port as well.
    for connection in sorted(connections, key=lambda found: found.status != psutil.CONN_LISTEN):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.Error:
                break
    return "a process of another user"


def _age(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return 0.0


def _signal(process: psutil.Process, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.Error:
        pass
