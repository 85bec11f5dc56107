"""A task that skips the tasks after it: which of them it asks, and what their answers lead to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped

from storeside.operators.bases.ahead import SkippingOperator
from storeside.operators.movement import DESTINATION
from storeside.operators.restrictions import FormOperator
from tests.support import task_context


class First(SkippingOperator):
    def execute(self, context: Any) -> Any:
        self.skip_if_idle(context, {"done": 0})
        return {"done": 0}


class Later(FormOperator):
    """A task that is idle or not, as its template says; `wrong` is an error in its arguments."""

    template_fields = ("answer", "effect")
    results_before = ("effect",)

    def __init__(self, *, answer: str = "{{ params.answer }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answer = answer
        self.effect = "{{ ti.xcom_pull('first')['effect'] }}"  # unknown until the tasks before have run

    def is_idle(self, context: Any) -> bool:
        assert context["ti"].task_id == context["task"].task_id == self.task_id
        if self.answer == "wrong":
            raise AirflowFailException("the argument is wrong")
        return self.answer == "idle"


def later(name: str, **arguments: Any) -> Later:
    return Later(task_id=name, **arguments)


def skipped(change: Callable[[DAG], None] = lambda dag: None, *, answer: str = "idle", **first: Any) -> list[str]:
    """Run the first of four tasks, the last of which is a teardown; return the tasks that it skips."""
    with DAG("d", schedule=None, params={"answer": answer}) as dag:
        start = First(task_id="first", **{"skip_idle": True, "outlets": [DESTINATION], **first})
        chain = [start, later("b"), later("a"), later("end", answer="wrong")]
        for one, other in pairwise(chain):
            one >> other
        chain[-1].as_teardown(setups=start.as_setup())
        change(dag)
    context = task_context("first")
    context |= {"dag": dag, "task": start, "params": {"answer": answer}}
    pushed: dict[str, Any] = {}
    context["ti"].xcom_push, context["ti"].xcom_pull = pushed.__setitem__, lambda *_, **__: None
    names: list[str] = []
    try:
        assert start.execute(context) == {"done": 0}
    except DownstreamTasksSkipped as e:
        names = list(e.tasks)
    result = {"return_value": {"done": 0}, "nothing_to_do": names, "skipmixin_key": {"skipped": names}}
    assert pushed == (result if names else {})
    return names


def test_idle_tasks_are_skipped_in_their_order_and_a_teardown_is_not() -> None:
    assert skipped() == ["b", "a"]
    assert First(
        task_id="t", skip_idle=True
    ).inherits_from_skipmixin  # so that a task that is cleared is skipped again


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (None, {"skip_idle": False}),
        (None, {"answer": "busy"}),
        (None, {"answer": "wrong"}),
        (lambda dag: later("c", answer="busy").set_upstream(dag.get_task("a")), {}),
        (lambda dag: BaseOperator(task_id="foreign").set_upstream(dag.get_task("a")), {}),
        (lambda dag: dag.get_task("a").set_upstream(later("beside")), {}),
        (lambda dag: later("c", pre_execute=print).set_upstream(dag.get_task("a")), {}),
        (lambda dag: Later.partial(task_id="mapped").expand(answer=["idle"]).set_upstream(dag.get_task("a")), {}),
        (lambda dag: later("c", outlets=[Asset("x")]).set_upstream(dag.get_task("a")), {"outlets": []}),
    ],
    ids=["off", "busy", "wrong", "one busy", "foreign", "beside", "function", "mapped", "no alias"],
)
def test_nothing_is_skipped_if_one_task_may_have_something_to_do(change: Any, given: dict[str, Any]) -> None:
    assert skipped(change or (lambda dag: None), **given) == []


def test_a_task_before_the_first_may_also_precede_the_later_ones() -> None:
    def change(dag: DAG) -> None:
        later("before") >> [dag.get_task("first"), dag.get_task("a")]

    assert skipped(change) == ["b", "a"]


def test_a_mapped_task_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.operators.bases.ahead.is_mapped", lambda context: context["ti"].map_index == -1)
    assert skipped() == []
