"""The description of one process of the stack, from which the supervisor starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """One supervised process.

    `healthy` is a quick probe that neither raises nor blocks for more than two seconds. `ports` are the TCP ports
    that the process listens on; the supervisor checks before the start that they are free. `trouble` is a slower
    check for the status: it returns the fault of a component that answers, with the remedy, or "". A component with
    `stop_last` stops after all others of its stage, because they need it until they have ended.
    """

    name: str
    command: tuple[str, ...]
    healthy: Callable[[], bool] = field(compare=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path = Path("/")
    stop_signal: str = "TERM"
    stop_seconds: int = 10
    start_seconds: float = 60
    ports: tuple[int, ...] = ()
    stop_last: bool = False
    trouble: Callable[[], str] = field(default=str, compare=False)
