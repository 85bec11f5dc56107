"""The fork server imports this module before it forks workers, so that workers share slow imports."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

from storeside.transformers.registry import BUILT_IN, TRANSFORM_VARIABLE, build, locate

from . import worker, worker_process

__all__ = ["worker", "worker_process"]

# Ignore errors here: workers repeat all steps and report errors.
with suppress(Exception):
    name = os.environ[TRANSFORM_VARIABLE]
    if locate(name)[0] in BUILT_IN.values():
        build(name)  # built-in ones start nothing that a fork would lose, and load decoders only when they are built
    else:
        import_module(locate(name)[0])
