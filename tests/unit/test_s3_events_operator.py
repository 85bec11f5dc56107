"""The operator that drains a queue: the options that reach the engine, and its run's record for the pages."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, BaseHook, Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped, TaskDeferred

from storeside.events.dead_letters import DeadLetter
from storeside.events.drained import Drained
from storeside.events.intake import Limits
from storeside.events.queue import Queue
from storeside.events.settle import Settled
from storeside.operators import (
    AISPrefetchBucketOperator,
    SqsLeaseS3EventsOperator,
    SqsS3EventsSensor,
    SqsSettleS3EventsOperator,
    SqsSettleSpeechEventsOperator,
)
from storeside.operators.bases.queue import QueueOperator
from storeside.operators.errors import OperatorInputError
from storeside.operators.operators import s3_events
from storeside.operators.operators.redrive import SqsRedriveDeadLettersOperator
from storeside.operators.operators.s3_events import S3EventsToClickHouseOperator
from storeside.speech import recordings
from tests.support import task_context

URL = "http://sqs/1/events"


def operator(**arguments: Any) -> S3EventsToClickHouseOperator:
    return S3EventsToClickHouseOperator(
        task_id="load", sqs_queue=URL, bucket="trips", table="d.t", format="csv", **arguments
    )


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the limits that a task with these arguments passes to its trigger."""
    monkeypatch.setattr(BaseHook, "get_connection", lambda conn_id: Connection(conn_id=conn_id, conn_type="aws"))
    monkeypatch.setattr(Queue, "find", Queue)
    monkeypatch.setattr("storeside.operators.bases.queue.sqs_client", lambda conn: None)
    monkeypatch.setattr(s3_events, "clients", lambda *_: (None, None))
    monkeypatch.setattr("storeside.events.load.EventLoad.pulls", True)
    monkeypatch.setattr(s3_events, "run_key", lambda context: "d/r")
    monkeypatch.setattr(S3EventsToClickHouseOperator, "_record_running", lambda *_: None)

    def deferred(**arguments: Any) -> Limits:
        with pytest.raises(TaskDeferred) as found:
            operator(**arguments).execute({})  # type: ignore[typeddict-item]
        return Limits(**found.value.trigger.serialize()[1]["limits"])

    return deferred


def test_defaults_are_the_engines(limits: Any) -> None:
    assert limits() == Limits()


def test_limits_reach_the_engine_as_templates_give_them(limits: Any) -> None:
    given = {"max_messages": "2", "max_bytes": "3", "max_seconds": "4", "idle_seconds": "5", "batch_messages": "6"}
    expected = Limits(
        messages=2, bytes=3, seconds=4.0, idle_seconds=5.0, batch_messages=6, batch_bytes=7, lease_seconds=8
    )
    assert limits(**given, batch_bytes=7, lease_seconds=8) == expected
    assert set(given) <= set(S3EventsToClickHouseOperator.template_fields)


@pytest.mark.parametrize("wrong", [{"max_bytes": -1}, {"max_messages": "0"}])
def test_limits_that_make_no_sense_fail_the_task_at_once(limits: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="needs to be 1 or more"):
        limits(**wrong)


@pytest.mark.parametrize("name", ["max_messages", "max_bytes", "max_seconds", "idle_seconds", "batch_messages"])
def test_an_argument_that_is_none_is_named(limits: Any, name: str) -> None:
    with pytest.raises(AirflowFailException, match=f"^{name} 'some' is n"):
        limits(**{name: "some"})


def test_the_run_says_whose_dead_letters_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(s3_events, "ledger", lambda conn_id: SimpleNamespace(create=lambda: None))
    monkeypatch.setattr(
        S3EventsToClickHouseOperator, "record_end", lambda self, context, tables, row, **_: rows.append(row)
    )
    report = asdict(Drained(messages=3, dead=2))
    event = {"report": report}
    assert operator(on_failed_objects="report").finish({}, event) == report  # type: ignore[typeddict-item]
    (row,) = rows
    assert (row["failed"], json.loads(row["detail"])["queue"]) == (2, URL)


def test_a_run_that_only_handles_objects_of_earlier_runs_did_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_events, "ledger", lambda conn_id: SimpleNamespace(create=lambda: None))
    monkeypatch.setattr(S3EventsToClickHouseOperator, "record_end", lambda *_, **__: None)
    task = operator(on_nothing="skip")
    report = asdict(Drained(handled=1))
    assert task.finish({}, {"report": report}) == report  # type: ignore[typeddict-item]
    with pytest.raises(AirflowSkipException, match="has no messages"):
        task.finish({}, {"report": asdict(Drained())})  # type: ignore[typeddict-item]


@pytest.fixture
def redrive(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return how many of three dead letters a task redrives; only two are listed, as when there are too many."""
    asked: list[Any] = []

    class Letters:
        def __init__(self, queue: Any) -> None:
            self.there = {"a", "b", "c"}

        def listed(self) -> list[DeadLetter]:
            return [DeadLetter(name, "why", 0.0, (), "") for name in ("a", "b")]

        def redrive(self, message_ids: set[str] | None) -> int:
            asked.append(message_ids)
            return len(self.there if message_ids is None else self.there & message_ids)

    monkeypatch.setattr("storeside.events.dead_letters.DeadLetters", Letters)
    monkeypatch.setattr(QueueOperator, "conn", lambda self: (SimpleNamespace(name="events"), None))

    def run(message_ids: Any, redrive: Any = "True") -> tuple[int, Any]:
        task = SqsRedriveDeadLettersOperator(
            task_id="t", sqs_queue="events", redrive=redrive, message_ids=message_ids
        )
        sent = task.execute({})["redriven"]  # type: ignore[typeddict-item]
        return sent, asked[0] if asked else "nothing"

    return run


@pytest.mark.parametrize(
    ("message_ids", "sent"),
    [(["a", "c"], (2, {"a", "c"})), ("a c", (2, {"a", "c"})), ("b\n", (1, {"b"})), ("", (3, None)), ([], (3, None))],
)
def test_dead_letters_are_chosen_by_a_list_or_what_a_template_made_of_it(
    redrive: Any, message_ids: Any, sent: Any
) -> None:
    assert redrive(message_ids) == sent


def test_messages_that_are_no_dead_letters_are_named_when_the_others_are_sent(redrive: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"^1 of 3 messages were sent back: x, y not among .* of events;"):
        redrive(["y", "a", "x"])
    with pytest.raises(AirflowFailException, match=r"\['a'\] not among the dead letters"):
        redrive("['a']")


def test_whether_to_send_them_back_is_true_or_false(redrive: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"^redrive 'yes' is neither true nor false"):
        redrive("a", redrive="yes")


def test_dead_letters_are_only_listed_by_default(redrive: Any) -> None:
    assert redrive("x", redrive=False) == (0, "nothing")


def test_a_run_whose_task_reported_nothing_releases_its_messages() -> None:
    settle = SqsSettleS3EventsOperator(
        task_id="settle", sqs_queue="q", source="s3://in", failed="{{ ti.xcom_pull('work') | tojson }}",
        complete="{{ ti.xcom_pull('work') is not none }}",
    )  # fmt: skip
    settle.failed = "null"
    assert settle.failures(complete=False) == {}
    with pytest.raises(OperatorInputError, match="failed 'null' is not a mapping of strings"):
        settle.failures(complete=True)
    settle.failed = '{"a": "broken"}'
    assert settle.failures(complete=False) == {"a": "broken"}


def test_the_bucket_of_a_speech_run_is_that_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def settle_run(*arguments: Any, complete: bool) -> Settled:
        asked.append((*arguments[4:], complete))
        return Settled()

    monkeypatch.setattr(recordings, "settle_run", settle_run)
    monkeypatch.setattr(SqsSettleSpeechEventsOperator, "conn_if_any", lambda _: (None, None))
    monkeypatch.setattr("storeside.operators.bases.queue.s3_client_of", lambda _: None)
    settle = SqsSettleSpeechEventsOperator(task_id="settle", sqs_queue="q", source="s3://recordings/")
    settle.execute(task_context())
    assert asked == [("s3://recordings", "", True)]


@pytest.mark.parametrize("is_teardown", [True, False])
@pytest.mark.parametrize("leases", [SqsLeaseS3EventsOperator, SqsS3EventsSensor])
def test_nothing_is_leased_that_no_teardown_settles(leases: Any, is_teardown: bool) -> None:
    """A DAG without the teardown does not parse; a task of it that runs all the same, as in `dag.test()`, fails."""
    with DAG("d", schedule=None) as dag:
        lease = leases(task_id="lease", sqs_queue="q")
        work = AISPrefetchBucketOperator(task_id="work", bucket="s3://in")
        settle = SqsSettleS3EventsOperator(task_id="settle", sqs_queue="q", source="s3://in", destination="ais://out")
        lease >> work >> settle
    if is_teardown:
        settle.as_teardown(setups=lease)
    context: Any = {"dag": dag, "task": lease, "params": {}}
    bag = DagBag(os.devnull)
    if is_teardown:
        lease.pre_execute(context)
        bag.bag_dag(dag)
        return
    with pytest.raises(AirflowFailException, match=r"Add settle\.as_teardown\(setups=lease\) to the DAG"):
        bag.bag_dag(dag)
    with pytest.raises(AirflowFailException, match=r"Add settle\.as_teardown\(setups=lease\) to the DAG"):
        lease.pre_execute(context)


@pytest.mark.parametrize(("messages", "setups"), [(0, ["lease"]), (3, ["lease"]), (0, ["lease", "other"])])
def test_without_messages_the_task_that_would_settle_them_is_skipped(
    monkeypatch: pytest.MonkeyPatch, messages: int, setups: list[str]
) -> None:
    """Also with a second setup, whose messages the teardown may have to settle, nothing is skipped."""
    with DAG("d", schedule=None):
        tasks = [SqsLeaseS3EventsOperator(task_id=name, sqs_queue="q") for name in setups]
        work = AISPrefetchBucketOperator(task_id="work", bucket="s3://in")
        settle = SqsSettleS3EventsOperator(task_id="settle", sqs_queue="q", source="s3://in", destination="ais://out")
        tasks >> work >> settle
        settle.as_teardown(setups=tasks)
    monkeypatch.setattr(SqsLeaseS3EventsOperator, "lease", lambda *_: {"messages": messages})
    context, pushed = task_context("lease"), {}
    context["ti"].xcom_push = pushed.__setitem__
    if messages or len(setups) > 1:
        assert tasks[0].execute(context) == {"messages": messages}
        assert not pushed
        return
    with pytest.raises(DownstreamTasksSkipped) as found:
        tasks[0].execute(context)
    assert found.value.tasks == ["settle"]
    assert pushed == {"return_value": {"messages": 0}, "skipmixin_key": {"skipped": ["settle"]}}
