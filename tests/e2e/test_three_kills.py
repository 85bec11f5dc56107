"""A target, ClickHouse and the triggerer are killed at the same moment, in every phase of a run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from storeside.aistore import control_plane
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.chaos.patience import patiently
from tests.chaos.phases import DAG, PHASES, Look, kill_three, over, wait_for
from tests.chaos.pipelines import recording
from tests.support import switch_on, unique, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

OBJECTS = 150


@pytest.mark.parametrize("phase", PHASES)
def test_three_kills_lose_nothing_and_leave_no_target_stuck(
    phase: str, airflow: Stack, api: AirflowApi, aistore: Any, s3_client: Any, clickhouse: Any
) -> None:
    number = list(PHASES).index(phase)
    chance = random.Random(number)  # noqa: S311
    switch_on(api, DAG)
    until(lambda: over(api), 240, "end of earlier runs", interval=1)
    before = {run["dag_run_id"] for run in api.runs(DAG)}
    prefix = unique("three-kills") + "/"
    for n in range(OBJECTS):
        s3_client.put_object(
            Bucket=s3.BUCKET, Key=f"{prefix}{n:04}.wav", Body=recording(1_000_000 * (number + 1) + n)
        )
    api.trigger(DAG, {"prefix": prefix})
    wait_for(phase, Look(api, aistore), 240)
    names = kill_three(airflow, chance)
    print(f"{phase}: killed {', '.join(names)}")

    def rows() -> tuple[int, int]:
        found = clickhouse.query(
            "SELECT count(), uniqExact(source_object) FROM speech.manifest"
            " WHERE startsWith(source_object, {prefix:String})",
            parameters={"prefix": prefix},
        )
        return tuple(found.first_row)

    until(lambda: over(api), 600, "end of the runs", interval=1)
    states = {run["dag_run_id"]: run["state"] for run in api.runs(DAG) if run["dag_run_id"] not in before}
    assert set(states.values()) == {"success"}, states
    assert patiently(rows) == (OBJECTS, OBJECTS)
    until(lambda: control_plane.unanswering(aistore) == [], 90, "answers of all targets", interval=1)
    for target in range(airflow.targets):
        log = (airflow.state / "logs" / f"ais-target-{target}.log").read_text(errors="replace")
        assert "panic serving" not in log
