"""Finds and ends the processes of a stack, including those whose supervisor has died.

Every process of a stack has the environment variable `MARK` with the value ``<state folder>/<name>``, which children
inherit. Unlike a recorded process id, the variable cannot belong to an unrelated process.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from storeside.stack.settings import HOST

MARK = "STORESIDE_COMPONENT"


def mark(state: Path, name: str) -> str:
    """Return the value of `MARK` for a component of the stack with this state folder."""
    return f"{state}/{name}"


def marked(state: Path, name: str | None = None) -> list[psutil.Process]:
    """Return the running processes of a stack, or of one component of it, oldest first.

    The list does not contain the calling process and its ancestors.
    """
    excluded = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid in excluded:
                continue
            value = process.environ().get(MARK, "")
            if value == mark(state, name) if name else value.rpartition("/")[0] == str(state):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended, a zombie, or another user's process
    return sorted(found, key=_age)


def end(processes: list[psutil.Process]) -> None:
    """Send SIGTERM to processes, and SIGKILL to those that still run after five seconds."""
    for process in processes:
        _signal(process, kill=False)
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        _signal(process, kill=True)
    psutil.wait_procs(alive, timeout=5)


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes and wait until they have ended."""
    for process in processes:
        _signal(process, kill=True)
    psutil.wait_procs(processes, timeout=5)


def listener(port: int) -> str | None:
    """Return the process that has a TCP port of the loopback address; None if the port can be bound."""
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
    # Prefer a listener: an outgoing connection may use the port as well.
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
