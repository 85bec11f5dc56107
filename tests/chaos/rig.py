"""The embedded stack with a link between any two parts, on which faults can be put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from storeside.stack.airflow import airflow
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.building import nodes
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.images import IMAGES
from storeside.stack.servers import aistore, clickhouse, s3
from storeside.stack.settings import CHECKOUT, HOST, Stack, default_folder
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.supervisor import Supervisor
from tests.link import Link, linked

FOLDER = default_folder() / "chaos"
# The client and the server of each link, and the server's port in the stack.
LINKS = {
    "workers > S3, SQS": "s3",
    "workers > ClickHouse": "clickhouse_http",
    "workers > AIStore": "ais_proxy",
    "ClickHouse > S3": "s3",
    "AIStore > S3": "s3",
}
# Airflow notices a task whose worker is gone after five minutes; a run with hundreds of faults cannot wait for that.
AIRFLOW = {
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60,
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 60,
}
# Small disks can be filled; a tmpfs is enough for tens of thousands of small objects.
DISKS = {"ClickHouse": ("clickhouse", 1_500_000_000), "mountpath": ("aistore/data", 1_500_000_000)}


@dataclass
class Rig:
    """The running stack, the links between its parts, and the small disks, where there are some.

    `alone` is held by a fault of ClickHouse that another one must not meet.
    """

    stack: Stack
    links: dict[str, Link]
    disks: dict[str, Path]
    alone: threading.Lock = field(default_factory=threading.Lock)

    @property
    def clock(self) -> Path:
        """The file with the seconds that the clock of S3 and SQS is ahead."""
        return self.stack.state / "ahead"

    def api(self) -> AirflowApi:
        """Return a client of Airflow, past all links."""
        return AirflowApi(self.stack.url("airflow"), "admin", self.stack.secrets["airflow_admin"], timeout=20)

    def pids(self, seconds: float = 0) -> dict[str, int]:
        """Return the components that have run for so long, with their processes."""
        status = Supervisor(self.stack).status()
        return {s.name: s.pid for s in status if s.state == "running" and s.pid and (s.uptime or 0) >= seconds}


@contextmanager
def rig(with_airflow: bool = True) -> Iterator[Rig]:
    """Start a new stack with its links, and take it down at the end; its logs stay."""
    _remove()
    with ExitStack() as things:
        found = Stack.create(FOLDER, targets=2, secure=False)  # no fault of these is one of AuthN
        found.save()
        (FOLDER / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
        disks = {name: found.state / path for name, (path, size) in DISKS.items() if _mount(found.state / path, size)}
        links = {name: things.enter_context(linked(found.ports[port])) for name, port in LINKS.items()}
        made = Rig(found, links, disks)
        if with_airflow:
            airflow.prepare(found, print)
        stages = _stages(made) if with_airflow else _stages(made)[:2]
        try:
            Supervisor(found).start(stages, lambda text: print(f"  {text}", flush=True))
            yield made
        finally:
            Supervisor(found).stop()
            for path in disks.values():
                _keep(path)


def _remove() -> None:
    if (old := Stack.load(FOLDER)) is not None:
        Supervisor(old).stop()
    for path, _ in DISKS.values():
        _unmount(FOLDER / "state" / path)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)


def _stages(made: Rig) -> list[list[Component]]:
    stack = made.stack
    access_key, secret_key = s3.keys(stack)
    backend = dict(
        zip(aistore.BACKEND, (_url(made.links["AIStore > S3"]), s3.REGION, access_key, secret_key), strict=True)
    )
    (server,) = s3.components(stack)
    server = skewed(server, made.clock)
    seen = {name: link.port for name, link in made.links.items()}
    of_clickhouse = _seeing(stack, s3=seen["ClickHouse > S3"])
    of_workers = _seeing(
        stack,
        s3=seen["workers > S3, SQS"],
        clickhouse_http=seen["workers > ClickHouse"],
        ais_proxy=seen["workers > AIStore"],
    )
    more = {f"AIRFLOW__{name}": str(value) for name, value in AIRFLOW.items()}
    return [
        [server, *clickhouse.components(of_clickhouse), *podrunner.components(stack, IMAGES)],
        aistore.components(stack, nodes.build(stack.cache, print), backend=backend),
        [replace(c, environment={**c.environment, **more}) for c in airflow.components(of_workers)],
    ]


def skewed(server: Component, clock: Path) -> Component:
    """Return the embedded S3 and SQS with the clock of a file. It starts where Python finds `tests`."""
    command = (sys.executable, "-m", "tests.chaos.skewed", str(clock))
    return replace(server, command=command, directory=CHECKOUT)


def _seeing(stack: Stack, **ports: int) -> Stack:
    """Return the stack with the addresses of the links."""
    return replace(stack, ports={**stack.ports, **ports})


def _url(link: Link) -> str:
    return f"http://{HOST}:{link.port}"


def _mount(path: Path, size: int) -> bool:
    """Put a small disk at a folder; only root can."""
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "storeside-chaos", str(path)]
    return subprocess.run(command, check=False).returncode == 0


def _keep(path: Path) -> None:
    """Take a small disk away; the logs on it stay."""
    logs = [file for file in path.glob("*.log") if file.is_file()]
    kept = path.with_name(f"{path.name}-logs")
    kept.mkdir(exist_ok=True)
    for file in logs:
        shutil.copy(file, kept)
    _unmount(path)


def _unmount(path: Path) -> None:
    deadline = time.monotonic() + 20
    while path.is_mount() and time.monotonic() < deadline:
        if subprocess.run(["umount", str(path)], check=False, stderr=subprocess.DEVNULL).returncode:
            time.sleep(0.5)
