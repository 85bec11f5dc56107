"""Keeps the state of stacks and of ClickHouse's engines in memory, with ``--in-memory``: a plugin of pytest.

Tests make thousands of small tables. ClickHouse takes 23 ms for a small insert on a disk, and 5 ms in memory.
A killed process loses nothing there: its files stay.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from storeside.stack.settings import CHECKOUT

MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's file system in memory; the folder in it is this user's
_NEEDED = 6 << 30  # bytes; the first tier needs about 1 GB
_ATTRIBUTE = "user.storeside"  # AIStore keeps the facts about an object in such attributes


def folder() -> Path:
    """Return the folder in memory of this user's tests of this checkout."""
    return MEMORY / f"storeside-tests-{hashlib.sha256(f'{os.getuid()} {CHECKOUT}'.encode()).hexdigest()[:8]}"


def why_not() -> str:
    """Return why the tests' files cannot be in memory here; empty if they can be."""
    try:
        place = os.statvfs(MEMORY)
        available = next(
            int(line.split()[1]) << 10
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable:")
        )
        if min(available, place.f_bavail * place.f_frsize) < _NEEDED:
            return f"less than {_NEEDED >> 30} GiB are free"
        if place.f_flag & os.ST_NOEXEC:
            return f"{MEMORY} is mounted with noexec"
        folder().mkdir(mode=0o700, exist_ok=True)
        if folder().stat().st_uid != os.getuid():
            return f"{folder()} is not yours"
        with tempfile.NamedTemporaryFile(dir=folder()) as file:
            os.setxattr(file.fileno(), _ATTRIBUTE, b"x")
    except (OSError, StopIteration, AttributeError) as e:
        return f"{MEMORY} cannot be used: {e!r}"
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("storeside").addoption(
        "--in-memory", action="store_true",
        help=f"keep the state of stacks and of ClickHouse's engines in {MEMORY}, if there is enough memory",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("in_memory"):
        return
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist has the environment of its controller
        if reason := why_not():
            print(f"The tests' files are on the disk: {reason}")
            return
        os.environ["STORESIDE_TESTS_IN"] = str(folder())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the engines' folders. The state of a stack stays, with its logs, until the next run or `make clean`."""
    if not hasattr(config, "workerinput") and (place := os.environ.get("STORESIDE_TESTS_IN")):
        shutil.rmtree(Path(place) / "engines", ignore_errors=True)


def engine() -> str | None:
    """Return a new folder in memory for ClickHouse's engine in this process; None if its tables are on the disk."""
    if not (place := os.environ.get("STORESIDE_TESTS_IN")):
        return None
    engines = Path(place) / "engines"
    engines.mkdir(exist_ok=True)
    return tempfile.mkdtemp(dir=engines)


def empty(stack: Path) -> None:
    """Make an empty folder for a stack, whose state is in memory if the tests' files are."""
    state = stack / "state"
    if state.is_symlink():
        shutil.rmtree(state.resolve(), ignore_errors=True)
    shutil.rmtree(stack, ignore_errors=True)
    stack.mkdir(parents=True)
    if place := os.environ.get("STORESIDE_TESTS_IN"):
        inside = Path(place) / stack.name
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(parents=True)
        state.symlink_to(inside, target_is_directory=True)
