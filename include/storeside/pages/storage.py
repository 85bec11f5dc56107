"""The state of an AIStore cluster: its targets, their capacity, what it rebalances, and what does not answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storeside.aistore import control_plane
from storeside.errors import Transient

if TYPE_CHECKING:
    from aistore.sdk import Client

# Seconds in which a target must answer a page.
_SECONDS = 3.0
_PARALLEL = 8
_VERSION = re.compile(r"\d+\.\d+")
# Percent of a target's capacity from which on the page warns; AIStore begins to evict and to refuse at 90 and 95.
FULL = 80
# AIStore's alerts (cmn/cos/node_state.go), by bit, in plain words. Other bits are no alerts.
ALERTS = {
    3: "rebalances", 4: "a rebalance was interrupted", 5: "moves objects between its disks",
    6: "the move of objects between its disks was interrupted", 7: "was restarted", 8: "has no space left",
    9: "has no memory left", 10: "is in maintenance", 11: "has little space left", 12: "has little memory left",
    13: "a disk is faulty", 15: "is overloaded", 16: "its certificate will expire soon",
    17: "its certificate has expired", 18: "its certificate is not valid", 19: "lost contact to other nodes",
    20: "has no CPU left", 21: "has little CPU left", 22: "a disk has no space left",
    23: "a disk has little space left",
}  # fmt: skip


@dataclass(frozen=True)
class Disk:
    """A file system of a target, named by its host and AIStore's id of it; its used and free bytes."""

    name: str
    used: int
    free: int


@dataclass(frozen=True)
class Target:
    """A target: bytes, the fullest disk's share in percent, its disks, alerts, and the call that it does not answer.

    `remedy` is only for a target that is stuck: it answers ``/health`` and, in two checks, no control call.
    """

    id: str
    used: int = 0
    free: int = 0
    percent: int = 0
    disks: tuple[Disk, ...] = ()
    alerts: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""
    in_maintenance: bool = False

    @property
    def state(self) -> str:
        """One word for the page."""
        if self.in_maintenance:
            return "in maintenance"
        if self.problem:
            return "stuck" if self.remedy else "no answer"
        return "warning" if self.alerts or self.percent >= FULL else "ready"


@dataclass(frozen=True)
class Job:
    """A job of AIStore that runs on the whole cluster or on buckets."""

    id: str
    kind: str


@dataclass(frozen=True)
class State:
    """A cluster: its version, its targets and their disks, the number of its proxies, and its running jobs."""

    version: str
    targets: tuple[Target, ...]
    proxies: int
    jobs: tuple[Job, ...] = field(default=())

    @property
    def disks(self) -> tuple[Disk, ...]:
        """The disks of all targets. The list contains a disk once that targets of one host share."""
        return tuple({disk.name: disk for target in self.targets for disk in target.disks}.values())

    @property
    def shared(self) -> int:
        """The number of disks that several targets share."""
        counts = Counter(name for target in self.targets for name in {disk.name for disk in target.disks})
        return sum(count > 1 for count in counts.values())

    @property
    def used(self) -> int:
        """Used bytes of all disks."""
        return sum(disk.used for disk in self.disks)

    @property
    def free(self) -> int:
        """Free bytes of all disks."""
        return sum(disk.free for disk in self.disks)

    @property
    def rebalances(self) -> bool:
        """Whether objects move between targets or disks."""
        return any(job.kind in ("rebalance", "resilver") for job in self.jobs)


def state(client: Client) -> State:
    """Ask the cluster, and each target for a few seconds. Raises AISError or RequestException without a proxy."""
    cluster = client.cluster()
    smap = cluster.get_info()
    silent = {target.id: target for target in control_plane.unanswering(client, _SECONDS)}
    stuck = {name for name, target in silent.items() if target.stuck}
    if stuck:  # or only busy: the next check excludes that
        stuck &= {target.id for target in control_plane.unanswering(client, _SECONDS) if target.stuck}
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = list(pool.map(lambda name: {} if name in silent else _status(client, name), smap.tmap))
    targets = []
    for (name, node), answer in zip(smap.tmap.items(), answers, strict=True):
        found, in_maintenance = silent.get(name), node.in_maint_or_decomm()
        problem = "" if in_maintenance or (answer and not found) else "does not answer"
        if problem and found:
            problem += f": {found.call}"
        remedy = found.remedy if problem and found and name in stuck else ""
        host = (urlsplit(node.public_net.direct_url).hostname or "") if node.public_net else ""
        target = read_target(name, answer, host, in_maintenance=in_maintenance)
        targets.append(replace(target, problem=problem, remedy=remedy))
    version = next(filter(None, map(read_version, answers)), "")
    return State(version, tuple(targets), len(smap.pmap), jobs(cluster.list_running_jobs()))


def jobs(names: list[str]) -> tuple[Job, ...]:
    """Read AIStore's names of jobs, such as ``rebalance[g3]``."""
    found = (name.rstrip("]").partition("[") for name in names)
    return tuple(Job(id, kind) for kind, _, id in found)


def read_version(answer: Mapping[str, Any]) -> str:
    """Read the version of AIStore as its documentation writes it, such as ``5.0``.

    A target adds the version of its build, so that ``5.0.v1.5.0`` has two numbers.
    """
    found = _VERSION.match(str(answer.get("ais_version") or ""))
    return found[0] if found else ""


def read_target(name: str, answer: Mapping[str, Any], host: str = "", *, in_maintenance: bool = False) -> Target:
    """Read what a target on `host` says about itself; an empty answer has no figures."""
    capacity = answer.get("capacity") or {}
    flags = int((answer.get("cluster") or {}).get("flags") or 0)
    return Target(
        name,
        int(capacity.get("total_used") or 0),
        int(capacity.get("total_avail") or 0),
        int(capacity.get("pct_max") or 0),
        tuple(_disks(name, host, capacity.get("mountpaths") or {})),
        tuple(text for bit, text in ALERTS.items() if flags & 1 << bit),
        in_maintenance=in_maintenance,
    )


def _disks(target: str, host: str, mountpaths: Mapping[str, Any]) -> Iterator[Disk]:
    """Yield the disks of a target by its mountpaths (AIStore's ``fs.CDF``). A disk without an id is not shared."""
    for path, each in mountpaths.items():
        found = each if isinstance(each, dict) else {}
        system = found.get("fs") or {}
        known = (system.get("FsID") or system.get("Fs")) if isinstance(system, dict) else None
        name = f"{host} {system.get('Fs')} {known}" if known and host else f"{target} {path}"
        yield Disk(name, int(found.get("used") or 0), int(found.get("avail") or 0))


def _status(client: Client, target: str) -> dict[str, Any]:
    """Return a target's status; an empty dictionary if it does not answer."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        answer = client.cluster().client.request(
            "get", path="reverse/daemon", params={"what": "node_status"}, headers={"ais-node-id": target}
        )
        found = answer.json()
    except (AISError, RequestException, ValueError, Transient):
        return {}
    return found if isinstance(found, dict) else {}
