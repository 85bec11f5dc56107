"""Imported by the fork server before it makes a worker, so that workers share what takes long to load."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

from . import worker, worker_process
from .registry import MODULE_VARIABLE

__all__ = ["worker", "worker_process"]

# Faults in it are reported by the workers, which import it again.
with suppress(Exception):
    import_module(os.environ[MODULE_VARIABLE])
