"""The AIStore cluster as the `aistore` SDK's client."""

from __future__ import annotations

from typing import Any


def client(endpoint: str) -> Any:
    """Return an `aistore` SDK client with time-outs that fit polling."""
    from aistore.sdk import Client

    return Client(endpoint, timeout=(5, 60))
