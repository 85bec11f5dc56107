"""A transform server's settings from environment variables, which AIStore and the ETL's specification set."""

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

# Defaults for one worker per CPU, on a node with 4 GiB per worker.
MEMORY_LIMIT, BODY_LIMIT = 4 << 30, 2 << 30

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_QUANTITY = re.compile(r"(\d+)(|k|M|G|Ki|Mi|Gi)")
# What AIStore's SDK takes for true (aistore/sdk/utils.py).
_TRUE = frozenset(("1", "t", "true", "y", "yes", "on"))
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MOUNTS = Path("/proc/self/mountinfo")
# Mount points of every container, of Kubernetes' files and of the operator's files.
_SYSTEM_MOUNTS = re.compile(r"/|/(boot|dev|etc|proc|run|sys|tmp|usr|var/run|var/lib/kubelet)(/.*)?", re.DOTALL)


@dataclass(frozen=True)
class Settings:
    """Limits of the workers, and the addresses of AIStore.

    :param workers: number of worker processes
    :param object_timeout: seconds of elapsed time and of CPU time for one object
    :param memory_limit: bytes that the decoder of an object may use; None for no limit
    :param file_access: transformers receive the object's file instead of its content; the file must be below one of
        `roots`
    :param target_url: the target's address for this ETL, which contains the ETL's secret
    :param token: token for sidecars
    :param sidecar_url: URL that a sidecar's name follows
    :param retries: repetitions of a failed HTTP transfer
    :param most_body: maximum bytes of an object in a request, or in a copy
    :param roots: folders of the target's disks
    :param nodes: addresses (host:port) of AIStore's nodes
    :param proof: each request must prove that AIStore sent it; otherwise requests must come from AIStore's nodes or
        from `sources`
    :param sources: further addresses that may send requests
    :param tls: the SDK's TLS configuration
    :param results_url: URL that the name of one of several results follows
    :param given_url: URL of the entries that the job is given beside its objects
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
    results_url: str = field(default="", repr=False)
    given_url: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings. Raises ValueError with the name of an invalid variable."""
        env = os.environ if environment is None else environment
        timeout = _number(env, "OBJECT_TIMEOUT", cls.object_timeout, least=0.001)
        memory = env.get("WORKER_MEMORY_LIMIT", "")
        return cls(
            workers=int(_number(env, "NUM_WORKERS", usable_cpus(), least=1)),
            object_timeout=timeout,
            memory_limit=quantity("WORKER_MEMORY_LIMIT", memory) if memory else cls.memory_limit,
            file_access=_is_true(env.get("ETL_DIRECT_FQN", "")),
            target_url=env.get("AIS_TARGET_URL", ""),
            token=env.get("AIS_AUTHN_TOKEN", ""),
            sidecar_url=env.get("SIDECAR_URL", ""),
            results_url=env.get("RESULTS_URL", ""),
            given_url=env.get("GIVEN_URL", ""),
            retries=int(_number(env, "AIS_DIRECT_PUT_RETRIES", cls.retries, least=0)),
            most_body=quantity("MAX_BODY", env["MAX_BODY"]) if env.get("MAX_BODY") else cls.most_body,
            roots=_list(env, "AIS_MOUNTS", ":") or tuple(mounts()),
            nodes=frozenset(_list(env, "AIS_NODES", ",")),
            proof=env.get("AIS_ETL_PROOF", "").lower() == "true",
            sources=networks("AIS_SOURCES", _list(env, "AIS_SOURCES", ",")),
            tls=_tls(env),
        )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Settings:
        """Return the settings from the output of `to_json`."""
        tuples = {name: tuple(fields[name]) for name in ("roots", "sources", "tls")}
        return cls(**{**fields, **tuples, "nodes": frozenset(fields["nodes"])})

    def to_json(self) -> bytes:
        """Return the settings, including the secrets, for a worker."""
        return json.dumps({**asdict(self), "nodes": sorted(self.nodes)}).encode()

    @property
    def largest_body(self) -> int:
        """The maximum size in bytes of an object whose content is in memory."""
        return min(self.most_body, self.memory_limit or self.most_body)

    @property
    def body_limit(self) -> str:
        """The name of the variable that determines `largest_body`."""
        return "MAX_BODY" if self.largest_body == self.most_body else "WORKER_MEMORY_LIMIT"


def quantity(name: str, text: str) -> int:
    """Convert a size such as ``2147483648``, ``512Mi`` or ``2G`` to bytes. Raises ValueError with the `name`."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{name}={text!r} is not a size: write bytes, or a size such as 512Mi or 2G")
    return int(match[1]) * _UNITS[match[2]]


def usable_cpus() -> int:
    """Return the number of CPUs that this container may use, from its quota and the node's processors."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(cpus, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # without cgroup v2, or "max"
        return cpus


def mounts() -> list[str]:
    """Return the folders that are mounted into this container, except for the system's."""
    with suppress(OSError):
        lines = _MOUNTS.read_bytes().splitlines()
        found = [os.fsdecode(re.sub(rb"\\([0-7]{3})", _unescaped, line.split(b" ")[4])) for line in lines]
        return [path for path in found if not _SYSTEM_MOUNTS.fullmatch(path)]
    return []


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def networks(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return addresses such as ``10.0.0.0/8`` unchanged. Raises ValueError with the variable's `name`."""
    for text in texts:
        try:
            ip_network(text)
        except ValueError as e:
            raise ValueError(f"{name}: {e}; write addresses such as 10.0.0.0/8, separated by commas") from e
    return tuple(texts)


def _list(env: Mapping[str, str], name: str, separator: str) -> tuple[str, ...]:
    return tuple(filter(None, env.get(name, "").split(separator)))


def _is_true(text: str) -> bool:
    return text.strip().lower() in _TRUE


def _tls(env: Mapping[str, str]) -> tuple[Any, Any]:
    """Return what the variables of AIStore's SDK say about TLS: the authority, and a client's certificate and key.

    The authority is a file's path, True for the system's authorities, or False if certificates are not verified.
    """
    certificate, key = env.get("AIS_CRT"), env.get("AIS_CRT_KEY")
    unverified = _is_true(env.get("AIS_SKIP_VERIFY_CRT", env.get("AIS_SKIP_VERIFY", "")))
    return not unverified and (env.get("AIS_CLIENT_CA") or True), (certificate, key) if certificate and key else None


def _number(env: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = env.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"{name}={text!r}: use a number of at least {least:g}")
    return number
