"""The phases of a run of `speech_pipeline`, and three kills at the same moment in one of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests

from storeside.aistore.jobs import running_transforms
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import Stack
from tests.support import process

DAG = "speech_pipeline"
_LOOK_SECONDS = 0.02


@dataclass
class Look:
    """Observes the runs of the DAG and the cluster; `transformed` is set after the first transform."""

    api: AirflowApi
    aistore: Any
    transformed: bool = False

    def states(self, task: str) -> set[str]:
        """Return the states of a task in all runs that are not over."""
        found = set()
        for run in self.api.runs(DAG, state="running"):
            found |= {t["state"] for t in self.api.task_instances(DAG, run["dag_run_id"]) if t["task_id"] == task}
        return found

    def etl_starts(self) -> bool:
        """Return whether AIStore is starting an ETL."""
        etls = self.aistore.cluster().client.request("get", path="etl").json() or []
        return any(etl["stage"] == "Initializing" for etl in etls)

    def transforms(self) -> bool:
        """Return whether a transform runs."""
        now = bool(running_transforms(self.aistore))
        self.transformed = self.transformed or now
        return now

    def reconciles(self) -> bool:
        """Return whether a transform is over and its task is not."""
        if self.transforms() or not self.transformed:
            return False
        return bool(self.states("transcode") & {"deferred", "scheduled", "queued", "running"})


PHASES: dict[str, Callable[[Look], bool]] = {
    "ETL starting": Look.etl_starts,
    "running": Look.transforms,
    "reconciling": Look.reconciles,
    "loading": lambda look: "running" in look.states("load"),
    "settling": lambda look: "running" in look.states("settle_events"),
}


def wait_for(phase: str, look: Look, seconds: float) -> None:
    """Return as soon as a run is in a phase; raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if PHASES[phase](look):
            return
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"no run was {phase} within {seconds:g} s")


def kill_three(stack: Stack, chance: random.Random) -> tuple[str, ...]:
    """Kill a target, ClickHouse and the triggerer at the same moment; returns their names."""
    names = (f"ais-target-{chance.randrange(stack.targets)}", "clickhouse", "triggerer")
    for victim in [process(stack, name) for name in names]:
        victim.kill()
    return names


def over(api: AirflowApi) -> bool:
    """Return whether no run of the DAG waits or runs; also when Airflow does not answer, no."""
    with suppress(requests.RequestException):
        return all(run["state"] in ("success", "failed") for run in api.runs(DAG))
    return False
