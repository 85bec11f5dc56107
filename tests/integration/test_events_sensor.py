"""The sensor of S3 events with a real queue: it waits without leasing, and leases each message for one run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from storeside.operators import SqsS3EventsSensor
from tests.mailboxes import Mailbox
from tests.support import unique

pytestmark = pytest.mark.usefixtures("connections")


@pytest.fixture
def sensor(mailbox: Mailbox) -> Callable[..., SqsS3EventsSensor]:
    def made(**arguments: Any) -> SqsS3EventsSensor:
        arguments = {"sqs_queue": mailbox.name, "poke_interval": 0.2, **arguments}
        return SqsS3EventsSensor(task_id="wait", **arguments)

    return made


def context(dag: str = "dag") -> Any:
    run = SimpleNamespace(dag_id=dag, run_id=unique("run"))
    ti = SimpleNamespace(dag_id=dag, task_id="wait", map_index=-1, try_number=1)
    return {"dag_run": run, "ti": ti, "triggering_asset_events": {}}


def deferred(sensor: SqsS3EventsSensor, here: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as found:
        sensor.execute(here)
    return found.value


def fired(found: TaskDeferred) -> Any:
    async def event() -> Any:
        return await anext(found.trigger.run())

    return asyncio.run(event()).payload


def test_messages_that_wait_are_leased_at_once(mailbox: Mailbox, sensor: Callable[..., SqsS3EventsSensor]) -> None:
    mailbox.send(mailbox.record("a"))
    mailbox.send(mailbox.record("b"))
    mailbox.arrive(2)
    assert sensor().execute(context()) == {"messages": 2}
    assert mailbox.depth() == (0, 2)


def test_a_sensor_waits_in_the_triggerer_and_leases_nothing_there(
    mailbox: Mailbox, sensor: Callable[..., SqsS3EventsSensor]
) -> None:
    here, waiting = context(), sensor()
    found = deferred(waiting, here)
    threading.Timer(3, lambda: mailbox.send(mailbox.record("late"))).start()
    event = fired(found)
    assert event == {"messages": 1}
    assert mailbox.depth() == (1, 0)
    assert waiting.resume(here, event, **(found.kwargs or {})) == {"messages": 1}
    assert mailbox.depth() == (0, 1)


def test_each_message_is_leased_for_one_dag(mailbox: Mailbox, sensor: Callable[..., SqsS3EventsSensor]) -> None:
    first, second = context("first"), context("second")
    waiting = [(sensor(), here) for here in (first, second)]
    found = [deferred(one, here) for one, here in waiting]
    mailbox.send(mailbox.record("a"))
    mailbox.arrive(1)
    events = [fired(one) for one in found]
    assert events == [{"messages": 1}] * 2
    assert waiting[0][0].resume(first, events[0], **(found[0].kwargs or {})) == {"messages": 1}
    waits, again = [], found[1]
    for _ in range(3):
        with pytest.raises(TaskDeferred) as deferral:
            waiting[1][0].resume(second, events[1], **(again.kwargs or {}))
        again = deferral.value
        waits.append(again.trigger.serialize()[1]["wait"])  # grows, because what is visible may not be delivered
    assert waits == [0.2, 0.4, 0.8]


def test_a_retry_keeps_the_messages_of_its_run(mailbox: Mailbox, sensor: Callable[..., SqsS3EventsSensor]) -> None:
    mailbox.send(mailbox.record("a"))
    mailbox.arrive(1)
    here = context()
    assert sensor().execute(here) == {"messages": 1}
    assert sensor().execute(here) == {"messages": 1}


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
@pytest.mark.parametrize("deferrable", [True, False])
def test_an_empty_queue(
    sensor: Callable[..., SqsS3EventsSensor], soft_fail: bool, error: type[Exception], deferrable: bool
) -> None:
    here, waiting = context(), sensor(timeout=6, soft_fail=soft_fail, deferrable=deferrable)
    began = time.monotonic()
    end: Callable[[], Any] = partial(waiting.execute, here)
    if deferrable:
        found = deferred(waiting, here)
        end = partial(waiting.resume, here, fired(found), **(found.kwargs or {}))
    with pytest.raises(error, match=r"had no messages for 6 s"):
        end()
    assert time.monotonic() - began >= 6


def test_a_queue_that_does_not_exist(mailbox: Mailbox, sensor: Callable[..., SqsS3EventsSensor]) -> None:
    """Also if it is deleted while the task waits."""
    with pytest.raises(AirflowFailException, match="nothing-here"):
        sensor(sqs_queue="nothing-here").execute(context())
    here, waiting = context(), sensor()
    found = deferred(waiting, here)
    mailbox.sqs.delete_queue(QueueUrl=mailbox.url)
    with pytest.raises(AirflowFailException, match=mailbox.name):
        waiting.resume(here, fired(found), **(found.kwargs or {}))
