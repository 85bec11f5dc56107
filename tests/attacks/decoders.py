"""Transformers for attacks: the attempts of an attacker in a decoder, and a transformer for each need."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storeside.transformers.transformer import Source

KERNEL = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def fork() -> int:
    if (child := os.fork()) == 0:
        os._exit(0)
    return child


def signal_all() -> str:
    """Return which processes this one could end."""
    reached = []
    for pid in (os.getppid(), 1, -1, 0):
        try:
            os.kill(pid, 0)
            reached.append(pid)
        except OSError:
            continue
    if reached:
        return str(reached)
    raise PermissionError


class Attacks:
    """Does the attack that the object's name says, and returns what came of it; an OSError is a failure."""

    mime_type = "application/json"

    def transform(self, source: Source, name: str, _arguments: str) -> bytes:
        verb, _, argument = name.partition(":")
        attack: Callable[[Any], Any] = getattr(self, verb)
        try:
            found = attack(source if verb == "source" else argument)
        except (OSError, ValueError) as e:
            return json.dumps({"failed": f"{type(e).__name__}: {e}"}).encode()
        return json.dumps({"succeeded": str(found)}).encode()

    def read(self, path: str) -> str:
        return Path(path.replace("PPID", str(os.getppid()))).read_bytes()[:100].hex()

    def list(self, path: str) -> str:
        return str(os.listdir(path)[:3])

    def write(self, path: str) -> int:
        return Path(path).write_bytes(b"x")

    def change(self, path: str) -> None:
        os.chmod(path, 0o777)  # noqa: S103 - the attack

    def rename(self, path: str) -> None:
        os.rename(path, f"{path}.moved")

    def tcp(self, port: str) -> None:
        socket.create_connection(("127.0.0.1", int(port)), 2).close()

    def unix(self, _: str) -> object:
        return socket.socket(socket.AF_UNIX)

    def pair(self, _: str) -> object:
        return socket.socketpair()

    def run(self, command: str) -> int:
        return subprocess.run([command], check=False).returncode

    def execute(self, command: str) -> None:
        os.execv(command, [command])  # noqa: S606 - the attack

    def fork(self, _: str) -> int:
        return fork()

    def trace(self, _: str) -> int:
        return checked(KERNEL.ptrace(16, os.getppid(), 0, 0))

    def peek(self, _: str) -> int:
        memory = ctypes.create_string_buffer(8)
        piece = (ctypes.c_void_p * 2)(ctypes.addressof(memory), 8)
        return checked(KERNEL.process_vm_readv(os.getppid(), piece, 1, piece, 1, 0))

    def ring(self, _: str) -> int:
        """io_uring would open sockets past the filter."""
        return checked(KERNEL.syscall(425, 1, ctypes.create_string_buffer(120)))

    def namespace(self, _: str) -> int:
        return checked(KERNEL.unshare(0x10000000))

    def signals(self, _: str) -> str:
        return signal_all()

    def limits(self, _: str) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def group(self, _: str) -> None:
        os.setpgid(0, 0)

    def environment(self, _: str) -> str:
        return json.dumps(dict(os.environ))

    def descriptors(self, _: str) -> str:
        found = {}
        for number in range(256):
            try:
                status = os.fstat(number)
            except OSError:
                continue
            found[number] = oct(status.st_mode >> 12)
        return json.dumps(found)

    def truncate(self, _: str) -> int:
        """Cut off the memory that the worker reads: it is to be refused, not to crash the worker."""
        memory = os.memfd_create("object")
        os.ftruncate(memory, 1 << 20)
        return os.ftruncate(memory, 0) or fcntl.fcntl(memory, fcntl.F_GETFD)

    def forge(self, text: str) -> None:
        for line in (text, f"\r{text}", "x" * 65_530 + text, text.replace("side", "side\n")):
            print(line, file=sys.stderr, flush=True)
            os.write(1, line.encode() + b"\n")

    def thread(self, port: str) -> str:
        """A thread may not do what its process may not do."""
        reached: list[str] = []

        def work() -> None:
            try:
                self.tcp(port)
                reached.append("connected")
            except OSError:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if reached:
            return reached[0]
        raise PermissionError

    def source(self, source: Source) -> str:
        """Read other objects beside the own one."""
        assert isinstance(source, str)
        real = os.readlink(source)
        return Path(real).read_text()

    def spin(self, _: str) -> None:
        """Use more than one CPU for longer than an object may."""

        def work() -> None:
            import hashlib

            while True:
                hashlib.sha256(bytes(1 << 22)).digest()

        for _n in range(8):
            threading.Thread(target=work, daemon=True).start()
        signal.pause()


def commands(_source: Source, name: str, _arguments: str) -> bytes:
    """Try with other programs what the process itself may not do."""
    found = subprocess.run(["/bin/sh", "-c", name], check=False, capture_output=True, text=True)
    return json.dumps({"status": found.returncode, "said": found.stdout + found.stderr}).encode()


commands.needs = ("commands",)  # type: ignore[attr-defined]


def network(_source: Source, name: str, _arguments: str) -> bytes:
    socket.create_connection(("127.0.0.1", int(name)), 2).close()
    return b"connected"


network.needs = ("network",)  # type: ignore[attr-defined]


def wrong(source: Source, _name: str, _arguments: str) -> bytes:
    return bytes(source) if isinstance(source, bytes) else b"x"


wrong.needs = ("everything",)  # type: ignore[attr-defined]


class Chooses:
    """Chooses the name of its sidecar, and what follows the facts in it."""

    mime_type = "text/plain"

    def transform(self, _source: Source, _name: str, arguments: str) -> Any:
        from storeside.transformers.transformer import WithSidecar

        name, _, more = arguments.partition("|")
        return WithSidecar(b"result", b'{"samples": 1}' + more.encode(), name)
