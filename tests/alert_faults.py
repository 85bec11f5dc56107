"""Faults of pipelines on the real stack, and the texts of their alerts: for tests and `make bench-alerts`."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.http.notifications import HttpNotifier
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from storeside.operators import (
    DeadLetters,
    FailedObjects,
    FailedTasks,
    Freshness,
    KnownFailures,
    Lag,
    S3EventsToClickHouseOperator,
    S3ToClickHouseOperator,
    SendAlertsOperator,
    Volume,
)
from storeside.stack.airflow import airflow
from storeside.stack.settings import HOST, Stack
from tests.mailboxes import Mailbox
from tests.receivers import Receiver, mailbox, webhook
from tests.support import unique, until


class Watched(Mailbox):
    """A pipeline with its own bucket, table and queue: tasks that load, and a task that alerts.

    `hook` and `mails` are the servers that receive the alerts.
    """

    def __init__(self, stack: Stack, clickhouse: Any, s3: Any, sqs: Any, hook: Receiver, mails: Receiver) -> None:
        super().__init__(stack, clickhouse, s3, sqs, receives=1)
        self.silence()
        self.hook, self.mails = hook, mails
        for receiver in (hook, mails):
            receiver.taken()  # messages of other pipelines
        self.dag_id = unique("alerts")
        self.conditions: list[Any] = [FailedTasks(), FailedObjects()]
        self.states: dict[str, str] = {}
        self.run_id = unique("run")

    def load(self, **arguments: Any) -> None:  # type: ignore[override]
        """Run the task that loads the bucket, in a new run."""
        self.run_id = unique("run")
        common: Any = {"task_id": "load", "source": f"s3://{self.bucket}", "table": self.table, "deferrable": False}
        with DAG(self.dag_id):
            task = S3ToClickHouseOperator(**{**common, "on_failed_objects": "report", **arguments})
        self._execute(task)

    def take_events(self) -> None:
        """Run the task that loads the objects of the queue's messages, in a new run."""
        self.run_id = unique("run")
        with DAG(self.dag_id):
            task = S3EventsToClickHouseOperator(
                task_id="load", sqs_queue=self.name, bucket=self.bucket, table=self.table, deferrable=False,
                on_failed_objects="report", idle_seconds=1,
            )  # fmt: skip
        self._execute(task)

    def _execute(self, task: Any) -> None:
        context = self._context(task)
        try:
            task.pre_execute(context)
            task.execute(context)
            self.states["load"] = "success"
        except AirflowException:
            self.states["load"] = "failed"

    def _context(self, task: Any) -> Any:
        instance = SimpleNamespace(
            dag_id=self.dag_id, run_id=self.run_id, task_id=task.task_id, map_index=-1, try_number=1,
            xcom_push=lambda **_: None, xcom_pull=lambda *_, **__: None,
            get_task_states=lambda dag_id, run_ids: {run_ids[0]: self.states},
        )  # fmt: skip
        run = SimpleNamespace(dag_id=self.dag_id, run_id=self.run_id)
        return {
            "dag": task.dag, "task": task, "ti": instance, "dag_run": run, "params": {},
            "outlet_events": OutletEventAccessors(),
        }  # fmt: skip

    def alert(self) -> str:
        """Run the task that alerts; return the problems and examples that its webhook has received, as text."""
        with DAG(self.dag_id):
            task = SendAlertsOperator(
                task_id="alert", conditions=self.conditions,
                notifiers=[HttpNotifier(), SmtpNotifier(to="team@example.com")],
            )  # fmt: skip
        context = self._context(task)
        task.pre_execute(context)
        task.execute(context)
        return json.dumps([body["problems"] for body in self.hook.taken()], ensure_ascii=False)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def receivers(stack: Stack) -> Iterator[tuple[Receiver, Receiver]]:
    """Run a webhook and a mail server, with Airflow's connections to them and to the stack."""
    with webhook() as hook, mailbox() as mails:
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com", "retry_limit": 1}
        given = {
            **airflow.connections(stack),
            "HTTP_DEFAULT": {"conn_type": "http", "host": HOST, "port": hook.port},
            "SMTP_DEFAULT": {"conn_type": "smtp", "host": HOST, "port": mails.port, "extra": extra},
        }
        with environment({f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in given.items()}):
            yield hook, mails


def rows(count: int, start: int = 0) -> bytes:
    return b"n\n" + b"".join(b"%d\n" % n for n in range(start, start + count))


# --- the faults: each function makes one, and returns the message about it


def truncated_gzip(w: Watched) -> str:
    w.put({"good.csv": rows(3), "bad.csv.gz": gzip.compress(os.urandom(9999))[:5000]})
    w.load(format="csv")
    return w.alert()


def no_parquet(w: Watched) -> str:
    w.put({"good.csv": rows(3), "worse.parquet": b"PAR1"})
    w.load()
    return w.alert()


def wrong_value(w: Watched) -> str:
    w.create("n UInt8")
    w.put({"good.csv": rows(3), "large.csv": b"n\n300\n"})
    w.load()
    return w.alert()


def hostile_name(w: Watched) -> str:
    w.put({"good.csv": rows(3), "{{ 7 * 7 }}<b>.parquet": b"PAR1"})
    w.load()
    return w.alert()


def no_bucket(w: Watched) -> str:
    w.load(source=f"s3://{unique('absent')}")
    return w.alert()


def killed_worker(w: Watched) -> str:
    w.states = {"load": "failed"}
    return w.alert()


def failed_for_good(w: Watched) -> str:
    w.conditions = [KnownFailures()]
    w.put({"good.csv": rows(3), "worse.parquet": b"PAR1"})
    w.load()
    assert w.alert() == "[]"  # this run has tried it
    w.load()
    return w.alert()


def old_rows(w: Watched) -> str:
    w.conditions = [Freshness(w.table, hours=1e-7)]
    w.put({"good.csv": rows(3)})
    w.load()
    return w.alert()


def no_such_table(w: Watched) -> str:
    w.conditions = [Freshness(f"{w.table}_typo", hours=24)]
    return w.alert()


def _volume(w: Watched, last: int) -> str:
    w.conditions = [Volume(runs=6)]
    for n in range(5):
        w.put({f"{n}.csv": rows(100 + n, n * 1000)})
        w.load()
        assert w.alert() == "[]"
    if last:
        w.put({"last.csv": rows(last, 9000)})
    w.load()
    return w.alert()


def empty_source(w: Watched) -> str:
    return _volume(w, 0)


def few_rows(w: Watched) -> str:
    return _volume(w, 20)


def many_rows(w: Watched) -> str:
    return _volume(w, 2000)


def strange_message(w: Watched) -> str:
    w.conditions = [DeadLetters(w.name)]
    w.sqs.send_message(QueueUrl=w.url, MessageBody="no event")
    w.take_events()
    return w.alert()


def broken_object_of_an_event(w: Watched) -> str:
    w.conditions = [DeadLetters(w.name)]
    w.put({"worse.parquet": b"PAR1"})
    w.send(w.record("worse.parquet"))
    w.take_events()
    return w.alert()


def received_too_often(w: Watched) -> str:
    w.conditions = [DeadLetters(w.name)]
    w.send(w.record("a.csv"))

    def is_dead() -> bool:
        w.queue.receive(0)
        return w.queue.dead_letters.depth().visible > 0

    until(is_dead, 30, "move to the dead-letter queue")
    return w.alert()


def no_consumer(w: Watched) -> str:
    w.conditions = [Lag(w.name, minutes=1 / 6000)]
    w.send(w.record("a.csv"))
    w.arrive(1)
    w.alert()  # it sees the message for the first time
    found: list[str] = []
    until(lambda: found.append(w.alert()) or found[-1] != "[]", 30, "lag")  # type: ignore[func-returns-value]
    return found[-1]


def no_queue(w: Watched) -> str:
    w.conditions = [DeadLetters(unique("absent"))]
    return w.alert()


def _without_ledger(w: Watched, **changes: Any) -> str:
    w.states = {"load": "failed"}
    given = {name: {**airflow.connections(w.stack)[name], **changes} for name in ("CLICKHOUSE_LEDGER",)}
    with environment({f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in given.items()}):
        return w.alert()


def clickhouse_is_down(w: Watched) -> str:
    return _without_ledger(w, port=1)


def wrong_password(w: Watched) -> str:
    return _without_ledger(w, password="s3cret-and-wrong")


def webhook_is_down(w: Watched) -> str:
    w.states = {"load": "failed"}
    w.hook.status = 500
    with pytest.raises(AirflowException, match="1 of 2 notifiers could not send: HttpNotifier 1: 500") as raised:
        w.alert()
    assert not isinstance(raised.value, AirflowFailException), "a retry must come"
    w.hook.status = 200
    (mail,) = w.mails.taken()
    assert "task load failed" in mail["Subject"]
    sent = w.alert()  # the retry
    assert w.mails.taken() == []
    return sent


# A fault -> text that the message must have
FAULTS: Mapping[Callable[[Watched], str], Sequence[str]] = {
    truncated_gzip: ("1 of 2 objects failed", "bad.csv.gz"),
    no_parquet: ("1 of 2 objects failed", "worse.parquet"),
    wrong_value: ("1 of 2 objects failed", "large.csv"),
    hostile_name: ("1 of 2 objects failed", "{{ 7 * 7 }}<b>.parquet"),
    no_bucket: ("task load failed",),
    killed_worker: ("task load failed",),
    failed_for_good: ("1 object left out", "worse.parquet"),
    old_rows: ("got no new rows",),
    no_such_table: ("never got rows",),
    empty_source: ("0 rows", "the median of the last 5 runs is 102"),
    few_rows: ("20 rows",),
    many_rows: ("2,000 rows",),
    strange_message: ("1 dead letter",),
    broken_object_of_an_event: ("1 dead letter", "worse.parquet"),
    received_too_often: ("1 dead letter",),
    no_consumer: ("the oldest message waits",),
    no_queue: ("cannot check dead letters", "there is no queue"),
    clickhouse_is_down: ("task load failed", "the ledger in ClickHouse does not answer"),
    wrong_password: ("task load failed", "the ledger in ClickHouse does not answer"),
    webhook_is_down: ("task load failed",),
}
# Without the ledger, an alert does not remember the sent problems.
UNREMEMBERED = (clickhouse_is_down, wrong_password)
