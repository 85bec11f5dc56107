"""The separate stack of a benchmark."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from storeside.stack import cli
from storeside.stack.cli import PARTS
from storeside.stack.settings import Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from tests.support import allow


def fresh(
    only: Collection[str] = PARTS, targets: int | None = None, *, name: str = "bench", secure: bool = False
) -> Stack:
    """Start a new stack in place of that of the benchmark before.

    Its AIStore is without AuthN by default, as in earlier measurements, and because peers have no tokens.
    """
    folder, cache = default_folder() / name, default_folder() / "cache"
    if (old := Stack.load(folder)) is not None:
        Supervisor(old).stop()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache.mkdir(exist_ok=True)
    (folder / "cache").symlink_to(cache.resolve(), target_is_directory=True)
    allow(folder)
    return cli.up(folder, targets, only, secure)


@contextmanager
def running(only: Collection[str] = PARTS) -> Iterator[Stack]:
    """Start a new stack, and stop it in the end."""
    stack = fresh(only)
    try:
        yield stack
    finally:
        Supervisor(stack).stop()
