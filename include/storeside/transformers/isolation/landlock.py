"""Restricts a process to a few folders with Linux' Landlock."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system call numbers, the same on every architecture
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38
CAPABILITY_VERSION = 0x20080522
FIRST_VERSION = 3  # earlier versions cannot allow moves between folders, or do not check truncation
NETWORK_VERSION, SCOPE_VERSION = 4, 6
EVERYTHING = (1 << 15) - 1
EXECUTE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
ON_FILES = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1


def is_available() -> bool:
    """Return whether the kernel has Landlock, in a version that `confine` supports."""
    return _version() >= FIRST_VERSION


def confine(writable: Iterable[Path], readable: Iterable[Path], alone: bool = False) -> bool:
    """Deny this thread, and threads that it starts later, all files except those below the given paths.

    With `alone`, also deny TCP, and signals and abstract sockets to other processes, if the kernel supports it. Call
    this before starting other threads. Missing paths are skipped. Returns False, without any effect, if the kernel
    has no Landlock.
    """
    if not is_available():
        return False
    kernel = ctypes.CDLL(None, use_errno=True)
    handled = _handled(_version(), alone)
    rules = kernel.syscall(CREATE_RULESET, handled, len(handled), 0)
    if rules < 0:
        return False
    try:
        for path in writable:
            _allow(kernel, rules, path, EVERYTHING & ~EXECUTE)
        for path in readable:
            _allow(kernel, rules, path, EXECUTE | READ_FILE | READ_FOLDER)
        return not kernel.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) and not kernel.syscall(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _handled(version: int, alone: bool) -> bytes:
    network = BIND_TCP | CONNECT_TCP if alone and version >= NETWORK_VERSION else 0
    scope = ABSTRACT_SOCKETS | SIGNALS if alone and version >= SCOPE_VERSION else 0
    if scope:
        return struct.pack("=QQQ", EVERYTHING, network, scope)
    return struct.pack("=QQ", EVERYTHING, network) if network else struct.pack("=Q", EVERYTHING)


def drop_capabilities() -> bool:
    """Give up all capabilities of this thread, and of threads that it starts later; return whether that succeeded.

    Linux lets a process with CAP_PERFMON, such as one of root, read the environment of any process below /proc.
    Landlock alone does not prevent that.
    """
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    return int(ctypes.CDLL(None, use_errno=True).capset(header, bytes(24))) == 0


def _version() -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, 1))


def _allow(kernel: ctypes.CDLL, rules: int, path: Path, access: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            access &= ON_FILES
        kernel.syscall(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", access, beneath), 0)
    finally:
        os.close(beneath)
