"""Isolates a decoder process: it has the bytes of one object, but no files, network, secrets or other processes.

The kernel enforces this with Landlock (files, and TCP and signals if supported), seccomp (system calls), resource
limits, and an unprivileged user if the process runs as root. The environment contains only allowed variables.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from . import landlock, seccomp

# Resources that a transformer may declare in its attribute `needs`.
COMMANDS, NETWORK, FILES = "commands", "network", "files"
NEEDS = frozenset((COMMANDS, NETWORK, FILES))
# A variable with the names of further variables, separated by commas, that a transform reads.
VARIABLES = "TRANSFORM_VARIABLES"
_PASSED = re.compile(
    r"(AUDIO|FFMPEG|LC|MALLOC|MKL|OMP|OPENBLAS|PYTHON)_?[A-Z_]*"
    r"|HOME|LANG|LD_LIBRARY_PATH|MAX_BODY|PATH|STORESIDE_NATIVE_DIR|STORESIDE_TRANSFORM|TMPDIR|TZ|VIRTUAL_ENV"
    r"|WORKER_MEMORY_LIMIT"
)
# Addresses and secrets of the worker: decoders do not receive them even if an ETL's specification sets them.
_WORKERS = re.compile(r"AIS_.*|GIVEN_URL|RESULTS_URL|SHARD_SOURCE_URL|SIDECAR_URL", re.DOTALL)
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero")
_OPEN_FILES = 256
# User ids without names, from the range that systemd gives to services for their lifetime (DynamicUser).
_FIRST_USER, _USERS = 61_184, 4_336
_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server's environment that its decoders receive."""
    listed = variables.get(VARIABLES, "").split(",")
    passed = {
        name: value
        for name, value in variables.items()
        if (name in listed or _PASSED.fullmatch(name)) and not _WORKERS.fullmatch(name)
    }
    if variables.get("SIDECAR_URL"):
        passed["SIDECAR_URL"] = "given"  # tells that sidecars are requested, but not their address
    return passed


@contextmanager
def environment_for_decoders() -> Iterator[None]:
    """Run the body with only the decoders' environment, which processes that start meanwhile inherit."""
    ours = dict(os.environ)
    kept = environment(ours)
    try:
        for name in ours.keys() - kept.keys():
            del os.environ[name]
        os.environ.update(kept)
        yield
    finally:
        os.environ.update(ours)


def limit(memory: int | None) -> None:
    """Limit this process's memory and number of descriptors, and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def isolate(needs: frozenset[str]) -> list[str]:
    """Isolate this process permanently, except for the transformer's needs; return mechanisms that the kernel lacks.

    Raises RuntimeError if libseccomp is absent, and OSError if the kernel refuses the filter.
    """
    missing = []
    if COMMANDS not in needs:  # commands set their own limits, which may be higher
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the transform gets an error instead of being killed
        resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_DATA))
    _become_nobody()
    kernel = ctypes.CDLL(None)
    kernel.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    landlock.drop_capabilities()
    if FILES not in needs:
        paths = [*_code(), *(os.environ.get("PATH", "").split(os.pathsep) if COMMANDS in needs else ())]
        alone = NETWORK not in needs
        if not landlock.confine([Path(os.devnull)], [Path(path) for path in paths if path], alone):
            missing.append("Landlock")
    seccomp.restrict(commands=COMMANDS in needs, network=NETWORK in needs, files=FILES in needs)
    return missing


def _code() -> Iterator[str]:
    """Yield the folders of the interpreter, its packages and the loaded modules."""
    yield from _SYSTEM
    yield from {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    yield from (path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    for name, module in list(sys.modules.items()):
        if "." not in name:
            file = getattr(module, "__file__", None)
            yield from getattr(module, "__path__", None) or ([file] if file else [])


def _become_nobody() -> None:
    """Change from root to a user id of this process only, if that user can still read the interpreter."""
    if os.geteuid() != 0 or not _open_to_all(Path(sys.base_prefix)):
        return
    user = _FIRST_USER + os.getpid() % _USERS
    with suppress(PermissionError):  # a container may lack these capabilities
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))
