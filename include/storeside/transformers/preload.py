"""The fork server imports this before it forks a worker, so that workers share what takes long to load."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

from . import worker, worker_process
from .registry import BUILT_IN, TRANSFORM_VARIABLE, build, locate

__all__ = ["worker", "worker_process"]

# The workers report faults, because they do all this again.
with suppress(Exception):
    name = os.environ[TRANSFORM_VARIABLE]
    if locate(name)[0] in BUILT_IN.values():
        build(name)  # ours start nothing that a fork would lose, and load decoders only when they are constructed
    else:
        import_module(locate(name)[0])
