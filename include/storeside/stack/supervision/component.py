"""The description of one process of the stack, from which the supervisor starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """One supervised process.

    :param name: its name in the stack
    :param command: program and arguments
    :param healthy: a quick probe that neither raises nor blocks for more than two seconds
    :param environment: variables of the process
    :param directory: its working folder
    :param stop_signal: the signal that stops it
    :param stop_seconds: seconds after the signal until it is killed
    :param start_seconds: maximum seconds until it is healthy
    :param ports: TCP ports that the process listens on; the supervisor checks before the start that they are free
    :param stop_last: it stops after all others of its stage, because they need it until they have ended
    :param trouble: a slower check for the status: it returns the fault of a component that answers, with the remedy,
        or ""
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
