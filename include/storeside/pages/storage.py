"""The state of an AIStore cluster: its targets, their capacity, what it rebalances, and what does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storeside.aistore import control_plane
from storeside.errors import Transient

if TYPE_CHECKING:
    from aistore.sdk import Client

# Seconds in which a target must answer a page.
_SECONDS = 3.0
_PARALLEL = 8
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
class Target:
    """A target: bytes, the fullest disk's share in percent, alerts, and, if it does not answer, the unanswered call.

    `remedy` is only for a target that is stuck: it answers ``/health`` and, in two checks, no control call.
    """

    id: str
    used: int = 0
    free: int = 0
    percent: int = 0
    disks: int = 0
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
    def used(self) -> int:
        """Used bytes of all targets."""
        return sum(target.used for target in self.targets)

    @property
    def free(self) -> int:
        """Free bytes of all targets."""
        return sum(target.free for target in self.targets)

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
        target = read_target(name, answer, in_maintenance=in_maintenance)
        targets.append(replace(target, problem=problem, remedy=remedy))
    version = next((str(answer.get("ais_version")) for answer in answers if answer.get("ais_version")), "")
    return State(version, tuple(targets), len(smap.pmap), jobs(cluster.list_running_jobs()))


def jobs(names: list[str]) -> tuple[Job, ...]:
    """Read AIStore's names of jobs, such as ``rebalance[g3]``."""
    found = (name.rstrip("]").partition("[") for name in names)
    return tuple(Job(id, kind) for kind, _, id in found)


def read_target(name: str, answer: Mapping[str, Any], *, in_maintenance: bool = False) -> Target:
    """Read what a target says about itself; an empty answer has no figures."""
    capacity = answer.get("capacity") or {}
    flags = int((answer.get("cluster") or {}).get("flags") or 0)
    return Target(
        name,
        int(capacity.get("total_used") or 0),
        int(capacity.get("total_avail") or 0),
        int(capacity.get("pct_max") or 0),
        len(capacity.get("mountpaths") or ()),
        tuple(text for bit, text in ALERTS.items() if flags & 1 << bit),
        in_maintenance=in_maintenance,
    )


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
