from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseOperator
from airflow.sdk.definitions._internal.types import NOTSET
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout, TaskDeferred
from airflow.sdk.serde import deserialize, serialize
from airflow.triggers.base import BaseTrigger, TriggerEvent

from storeside.operators.bases import deferring
from storeside.operators.bases.deferring import DeferringOperator
from storeside.stack.settings import CHECKOUT

TIMED_OUT = {"error": "Trigger timeout"}  # the scheduler's text (check_trigger_timeouts)
KILLED: list[Any] = []
SLEPT: list[float] = []


class Waiting(BaseTrigger):
    """A trigger that records that it was stopped."""

    def __init__(self, job: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"job": self.job}

    async def run(self) -> Any:
        yield TriggerEvent("never")

    async def on_kill(self) -> None:
        if self.job == "broken":
            raise ConnectionError("nobody answers")
        KILLED.append(self.job)


class Instance:
    """The part of a task instance that the operator uses; its XComs go through Airflow's own serialization.

    The instances of a mapped task share `xcoms`. Like Airflow's, `xcom_pull` without an index returns those of all
    instances.
    """

    def __init__(self, map_index: int = -1, xcoms: dict[Any, Any] | None = None) -> None:
        self.map_index = map_index
        self.xcoms: dict[Any, Any] = {} if xcoms is None else xcoms

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key, self.map_index] = serialize(value)

    def xcom_pull(self, key: str, map_indexes: Any = NOTSET) -> Any:
        if map_indexes is NOTSET:
            found = [deserialize(value) for (name, _), value in self.xcoms.items() if name == key]
            return found[0] if len(found) == 1 else found
        place = (key, -1 if map_indexes is None else map_indexes)
        return deserialize(self.xcoms[place]) if place in self.xcoms else None


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: Any = {"ti": Instance()}
    monkeypatch.setattr(deferring, "get_current_context", lambda: found)
    monkeypatch.setattr("storeside.operators.bases.deferring.time.sleep", SLEPT.append)
    for noted in (KILLED, SLEPT):
        noted.clear()
    return found


def operator(minutes: float | None) -> DeferringOperator:
    limit = timedelta(minutes=minutes) if minutes else None
    return DeferringOperator(task_id="t", execution_timeout=limit)


def deferred(by: DeferringOperator, trigger: BaseTrigger) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as found:
        by.defer(trigger=trigger, method_name="finish", kwargs={"a": 1})
    assert (found.value.trigger, found.value.method_name, found.value.kwargs) == (trigger, "finish", {"a": 1})
    return found.value


@pytest.mark.guarantee("time-limit")
def test_the_time_that_a_task_may_take_is_that_of_its_trigger(context: Any) -> None:
    assert deferred(operator(5), Waiting("j")).timeout == timedelta(minutes=5)


def test_a_task_that_may_take_any_time_leaves_no_note(context: Any) -> None:
    assert deferred(operator(None), Waiting("j")).timeout is None
    assert context["ti"].xcoms == {}


@pytest.mark.guarantee("time-limit")
@pytest.mark.parametrize("job", ["etl-1", {"planned": 3, "columns": ("a", "b"), "since": 1.5, "owner": None}])
def test_what_a_task_waited_for_is_stopped_when_its_time_is_over(context: Any, job: Any) -> None:
    deferred(operator(5), Waiting(job))
    with pytest.raises(TaskDeferralTimeout, match=r"longer than its execution_timeout.*raise execution_timeout"):
        operator(5).resume_execution("__fail__", TIMED_OUT, context)
    assert [job] == KILLED


def test_a_mapped_task_stops_its_own_job_only(context: Any) -> None:
    shared: dict[Any, Any] = {}
    for index in (0, 1, 2):
        context["ti"] = Instance(index, shared)
        deferred(operator(5), Waiting(f"etl-{index}"))
    context["ti"] = Instance(1, shared)
    with pytest.raises(TaskDeferralTimeout):
        operator(5).resume_execution("__fail__", TIMED_OUT, context)
    assert KILLED == ["etl-1"]


@pytest.mark.parametrize(("minutes", "seconds"), [(5, 10), (0.1, 3)])
def test_the_triggerer_has_let_go_before_anything_is_stopped(context: Any, minutes: float, seconds: float) -> None:
    """Otherwise the triggerer would repeat the stopped work. The task has the usual time for both together."""
    deferred(operator(minutes), Waiting("j"))
    assert SLEPT == []
    with pytest.raises(TaskDeferralTimeout):
        operator(minutes).resume_execution("__fail__", TIMED_OUT, context)
    assert pytest.approx([seconds]) == SLEPT


def test_waiting_for_a_moment_has_nothing_to_stop(context: Any, capsys: pytest.CaptureFixture[str]) -> None:
    deferred(operator(5), DateTimeTrigger(datetime(2030, 1, 1, tzinfo=UTC)))
    with pytest.raises(TaskDeferralTimeout):
        operator(5).resume_execution("__fail__", TIMED_OUT, context)
    assert "may still run" not in capsys.readouterr().out


def test_a_task_whose_time_is_over_fails_for_that_whatever_does_not_answer(
    context: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    deferred(operator(5), Waiting("broken"))
    with pytest.raises(TaskDeferralTimeout):
        operator(5).resume_execution("__fail__", TIMED_OUT, context)
    assert "may still run: nobody answers" in capsys.readouterr().out


def test_nothing_is_stopped_by_an_error_or_an_event(context: Any) -> None:
    task: Any = operator(5)
    task.finish = lambda context, event, a: event
    deferred(task, Waiting("j"))
    assert task.resume_execution("finish", {"event": 7, "a": 1}, context) == 7
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": "Trigger failure"}, context)
    assert KILLED == []


@pytest.mark.guarantee("time-limit")
def test_every_operator_that_defers_holds_its_time() -> None:
    paths = (path.relative_to(CHECKOUT).with_suffix("") for path in (CHECKOUT / "operators").rglob("[a-z]*.py"))
    modules = [import_module(".".join(("storeside", *path.parts))) for path in paths]
    ours = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, BaseOperator) and kind.__module__ == module.__name__
    }
    deferring_ones = {kind for kind in ours if "self.defer(" in inspect.getsource(kind)}
    assert len(deferring_ones) >= 6
    assert {kind.__name__ for kind in deferring_ones if not issubclass(kind, DeferringOperator)} == set()


class Resuming(DeferringOperator):
    """Continues with an argument of its deferral."""

    def resume(self, context: Any, event: Any, state: str) -> tuple[Any, str]:
        return event, state


def test_dags_test_gets_the_arguments_that_airflow_drops(context: Any) -> None:
    """``airflow dags test`` continues a task in the same process, with the event alone."""
    task = Resuming(task_id="resuming")
    with pytest.raises(TaskDeferred):
        task.defer(trigger=Waiting("j"), method_name="resume", kwargs={"state": "mine"})
    assert task.resume_execution("resume", {"event": 1}, context) == (1, "mine")
    with pytest.raises(TypeError, match="state"):  # they are used once
        task.resume_execution("resume", {"event": 1}, context)
