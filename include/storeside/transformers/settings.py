"""A transform server's settings from the environment; AIStore sets some, the ETL's specification the rest."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Objects up to this size travel in one message (AIStore's own limit, ext/etl/websocket_comm.go).
LARGEST_OBJECT = 16 << 30

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_QUANTITY = re.compile(r"(\d+)(|k|M|G|Ki|Mi|Gi)")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Settings:
    """Limits of the workers, and where AIStore is.

    `workers` is the number of worker processes; an object may take `object_timeout` seconds and its worker
    `memory_limit` bytes (None: no limit). With `file_access` transformers get the object's file instead of its
    content. `target_url` is the target's address for this ETL and contains the ETL's secret. Sidecars go to
    `sidecar_url` + their names. `retries` is how often a failed HTTP transfer is tried again.
    """

    workers: int = 1
    object_timeout: float = 300.0
    memory_limit: int | None = None
    file_access: bool = False
    target_url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    sidecar_url: str = ""
    retries: int = 3

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings. Raises ValueError that names the invalid variable."""
        env = os.environ if environment is None else environment
        timeout = _number(env, "OBJECT_TIMEOUT", cls.object_timeout, least=0.001)
        memory = env.get("WORKER_MEMORY_LIMIT", "")
        return cls(
            workers=int(_number(env, "NUM_WORKERS", usable_cpus(), least=1)),
            object_timeout=timeout,
            memory_limit=quantity("WORKER_MEMORY_LIMIT", memory) if memory else None,
            file_access=env.get("ETL_DIRECT_FQN", "").lower() in ("true", "1", "yes", "y", "on"),
            target_url=env.get("AIS_TARGET_URL", ""),
            token=env.get("AIS_AUTHN_TOKEN", ""),
            sidecar_url=env.get("SIDECAR_URL", ""),
            retries=int(_number(env, "AIS_DIRECT_PUT_RETRIES", cls.retries, least=0)),
        )

    @property
    def largest_body(self) -> int:
        """The maximum size in bytes of an object in a request."""
        return self.memory_limit or LARGEST_OBJECT


def quantity(name: str, text: str) -> int:
    """Turn bytes such as ``2147483648``, ``512Mi`` or ``2G`` into a number."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{name}={text!r} is not an amount of memory: write bytes, or such as 512Mi or 2G")
    return int(match[1]) * _UNITS[match[2]]


def usable_cpus() -> int:
    """Return the number of CPUs that this container may use: its quota counts, not only the node's processors."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(cpus, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no cgroup v2 here, or "max"
        return cpus


def _number(env: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = env.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"{name}={text!r}: use a number from {least:g} up")
    return number
