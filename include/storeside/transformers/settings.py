"""A transform server's settings from the environment; AIStore sets some, the ETL's specification the rest."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

# Variables whose defaults suit one worker per CPU on a node with 4 GiB for each.
MEMORY_LIMIT, BODY_LIMIT = 4 << 30, 2 << 30

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_QUANTITY = re.compile(r"(\d+)(|k|M|G|Ki|Mi|Gi)")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MOUNTS = Path("/proc/self/mountinfo")
# Mounts of every container, and of Kubernetes' and the operator's own files.
_SYSTEM_MOUNTS = re.compile(r"/|/(boot|dev|etc|proc|run|sys|tmp|usr|var/run|var/lib/kubelet)(/.*)?", re.DOTALL)


@dataclass(frozen=True)
class Settings:
    """Limits of the workers, and where AIStore is.

    `workers` is the number of worker processes; an object may take `object_timeout` seconds, in elapsed and in CPU
    time, and its decoder `memory_limit` bytes (None: no limit). An object in a request, or as a copy, has at most
    `most_body` bytes. With `file_access` transformers get the object's file instead of its content; it must be below
    one of `roots`. `target_url` is the target's address for this ETL and contains the ETL's secret. Sidecars go to
    `sidecar_url` + their names, with `token`. `retries` is how often a failed HTTP transfer is tried again.
    `nodes` are the addresses (host:port) of AIStore's nodes. With `proof`, AIStore proves that it sent a request;
    otherwise requests come from AIStore's nodes, or from `sources`. `tls` is what the SDK makes of its variables.
    """

    workers: int = 1
    object_timeout: float = 300.0
    memory_limit: int | None = MEMORY_LIMIT
    file_access: bool = False
    target_url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    sidecar_url: str = field(default="", repr=False)
    retries: int = 3
    most_body: int = BODY_LIMIT
    roots: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()
    proof: bool = False
    sources: tuple[str, ...] = ()
    tls: tuple[Any, Any] = (True, None)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings. Raises ValueError that names the invalid variable."""
        env = os.environ if environment is None else environment
        timeout = _number(env, "OBJECT_TIMEOUT", cls.object_timeout, least=0.001)
        memory = env.get("WORKER_MEMORY_LIMIT", "")
        return cls(
            workers=int(_number(env, "NUM_WORKERS", usable_cpus(), least=1)),
            object_timeout=timeout,
            memory_limit=quantity("WORKER_MEMORY_LIMIT", memory) if memory else cls.memory_limit,
            file_access=env.get("ETL_DIRECT_FQN", "").lower() in ("true", "1", "yes", "y", "on"),
            target_url=env.get("AIS_TARGET_URL", ""),
            token=env.get("AIS_AUTHN_TOKEN", ""),
            sidecar_url=env.get("SIDECAR_URL", ""),
            retries=int(_number(env, "AIS_DIRECT_PUT_RETRIES", cls.retries, least=0)),
            most_body=quantity("MAX_BODY", env["MAX_BODY"]) if env.get("MAX_BODY") else cls.most_body,
            roots=_list(env, "AIS_MOUNTS", ":") or tuple(mounts()),
            nodes=frozenset(_list(env, "AIS_NODES", ",")),
            proof=env.get("AIS_ETL_PROOF", "").lower() == "true",
            sources=networks("AIS_SOURCES", _list(env, "AIS_SOURCES", ",")),
            tls=_tls(),
        )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Settings:
        """Return the settings that `to_json` wrote."""
        tuples = {name: tuple(fields[name]) for name in ("roots", "sources", "tls")}
        return cls(**{**fields, **tuples, "nodes": frozenset(fields["nodes"])})

    def to_json(self) -> bytes:
        """Return the settings, with the secrets, for a worker."""
        return json.dumps({**asdict(self), "nodes": sorted(self.nodes)}).encode()

    @property
    def largest_body(self) -> int:
        """The maximum size in bytes of an object that is not read from its file."""
        return min(self.most_body, self.memory_limit or self.most_body)

    @property
    def body_limit(self) -> str:
        """The variable that `largest_body` follows from."""
        return "MAX_BODY" if self.largest_body == self.most_body else "WORKER_MEMORY_LIMIT"


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


def mounts() -> list[str]:
    """Return the folders that are mounted into this container beside those of the system."""
    with suppress(OSError):
        lines = _MOUNTS.read_bytes().splitlines()
        found = [os.fsdecode(re.sub(rb"\\([0-7]{3})", _unescaped, line.split(b" ")[4])) for line in lines]
        return [path for path in found if not _SYSTEM_MOUNTS.fullmatch(path)]
    return []


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def networks(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return addresses such as ``10.0.0.0/8`` unchanged. Raises ValueError that names the variable."""
    for text in texts:
        try:
            ip_network(text)
        except ValueError as e:
            raise ValueError(f"{name}: {e}; write addresses such as 10.0.0.0/8, separated by commas") from e
    return tuple(texts)


def _list(env: Mapping[str, str], name: str, separator: str) -> tuple[str, ...]:
    return tuple(filter(None, env.get(name, "").split(separator)))


def _tls() -> tuple[Any, Any]:
    """Follow ``AIS_SKIP_VERIFY_CRT``, ``AIS_CLIENT_CA``, ``AIS_CRT`` and ``AIS_CRT_KEY``, as the SDK does."""
    if not any(name.startswith("AIS_") for name in os.environ):
        return True, None  # without loading the SDK
    from aistore.sdk.session_manager import resolve_ssl_config

    verify, certificate = resolve_ssl_config()
    return verify, certificate


def _number(env: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = env.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"{name}={text!r}: use a number from {least:g} up")
    return number
