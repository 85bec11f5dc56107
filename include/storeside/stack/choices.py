"""The choices that a stack keeps for its lifetime: number of targets, AuthN, Airflow's executor, TLS."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from storeside.stack.building import backends
from storeside.stack.servers import aistore, postgres, redis
from storeside.stack.settings import Stack, StackError

TARGETS = 2
FREE_BYTES = 2_000_000_000


def settle(
    folder: Path, targets: int | None, secure: bool | None, executor: str | None, tls: bool | None = None
) -> Stack:
    """Return the stack below `folder`; record a new one if there is none. None is the default or existing choice.

    Raises:
        StackError: the folder cannot be written, disk space is too low, the machine lacks a server for the executor,
            or the existing stack has made another choice or was in another folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StackError(f"{folder}: {e.strerror}: set STORESIDE_HOME to a new folder where you may write") from e
    total, _, free = shutil.disk_usage(folder)
    if free < FREE_BYTES:
        raise StackError(f"only {free / 1e9:.1f} GB are free in {folder}: free at least 2 GB first")
    percent = 100 * (total - free) // total
    if percent >= aistore.HIGH_WATERMARK:
        needed = total * (101 - aistore.HIGH_WATERMARK) / 100 - free
        raise StackError(
            f"{percent} % of the disk of {folder} are in use, and AIStore writes nothing above"
            f" {aistore.HIGH_WATERMARK} %: free at least {needed / 1e9:.1f} GB first, or set STORESIDE_HOME to a new"
            " folder on another disk"
        )
    stack = Stack.load(folder)
    if stack is not None:
        stack = _at_its_place(stack, folder)
        _compare(stack, folder, {"targets": targets, "secure": secure, "executor": executor, "tls": tls})
        return stack
    if executor == "celery":
        redis.program()
        postgres.folder_of_programs()
    stack = Stack.create(folder, targets or TARGETS, secure is not False, executor or "local", bool(tls))
    stack.save()
    return stack


def _at_its_place(stack: Stack, folder: Path) -> Stack:
    """Return the stack with its folder, which AIStore's targets also record: they refuse data at another path."""
    here = str(folder.resolve())
    if stack.folder not in ("", here):
        raise StackError(
            f"the stack in {here} was created in {stack.folder}, and cannot start elsewhere: move it back, or delete"
            f" {stack.state}, with its data, to create another stack"
        )
    if not stack.folder:
        stack = replace(stack, folder=here)
        stack.save()
    return stack


def with_backends(stack: Stack) -> Stack:
    """Return the stack with the backends of AIStore that the environment chooses, and record them.

    Raises:
        StackError: the environment chooses none, and AIStore of the stack has some: it would restart without them.
    """
    variable = backends.VARIABLE
    if stack.backends and variable not in os.environ:
        value = stack.backends.replace(" ", ",")
        raise StackError(
            f"AIStore of this stack has the backends {stack.backends}: set {variable}={value} and their settings, or"
            f" {variable}=aws for S3 alone"
        )
    chosen = " ".join(backends.chosen(os.environ))
    if chosen != stack.backends:
        stack = replace(stack, backends=chosen)
        stack.save()
    return stack


def _compare(stack: Stack, folder: Path, wanted: dict[str, int | bool | str | None]) -> None:
    has = {
        "targets": f"has {stack.targets} targets",
        "secure": f"is {'secure' if stack.secure else 'open'}",
        "executor": f"has the executor {stack.executor}",
        "tls": f"is {'with' if stack.tls else 'without'} TLS",
    }
    for name, value in wanted.items():
        if value not in (None, getattr(stack, name)):
            remedy = f"run 'make down' and delete {stack.state} to change"
            raise StackError(f"the stack below {folder} {has[name]}: {remedy}")
