"""Calls of servers that faults affect as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 600.0


def patiently(call: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Call until the function does not raise, because the faults also affect the servers that the driver uses."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
