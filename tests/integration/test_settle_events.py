"""Runs that lease S3 events, process the objects with the operators of a DAG, and settle with the queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storeside.events.deliveries import Delivery
from storeside.operators import (
    AISTransformBucketOperator,
    S3ToClickHouseOperator,
    SqsLeaseS3EventsOperator,
    SqsSettleS3EventsOperator,
)
from tests.mailboxes import Mailbox
from tests.support import small_spec, task_context, unique


@pytest.fixture
def mailbox(mailbox: Mailbox, connections: None, monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    monkeypatch.setattr(Delivery, "delay_seconds", 0)  # of released messages
    return mailbox


class Run:
    """One run of a DAG."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.source = f"s3://{mailbox.bucket}"
        self.dag_run = task_context()["dag_run"]

    def execute(self, task: Any) -> Any:
        return task.execute(task_context(task.task_id, self.dag_run))

    def lease(self, count: int) -> None:
        self.mailbox.arrive(count)
        lease = SqsLeaseS3EventsOperator(task_id="lease", sqs_queue=self.mailbox.name)
        assert self.execute(lease) == {"messages": count}

    def load(self, source: str) -> Any:
        return self.execute(
            S3ToClickHouseOperator(
                task_id="load", source=f"{source}/", table=self.mailbox.table, format="jsonl",
                on_failed_objects="report", on_overwrite="replace",
            )
        )  # fmt: skip

    def settle(self, **arguments: Any) -> tuple[int, int, int]:
        """Return the numbers of messages deleted, released and dead."""
        settle = SqsSettleS3EventsOperator(
            task_id="settle", sqs_queue=self.mailbox.name, source=self.source, **arguments
        )
        found = self.execute(settle)
        return found["deleted"], found["released"], found["dead"]


def put(mailbox: Mailbox, **objects: str) -> None:
    for name, content in objects.items():
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key=f"in/{name}.jsonl", Body=content.encode())


def test_objects_that_a_run_transforms_and_loads(mailbox: Mailbox) -> None:
    run, to = Run(mailbox), f"ais://{unique('results')}"
    put(mailbox, good='{"a": 1}\n', refused="bad", unreadable="no json\n")
    run.lease(3)
    transform = AISTransformBucketOperator(
        task_id="transform", source=run.source, destination=to, etl=small_spec("upper"), keep_etl=True,
        on_failed_objects="report", latest=True, deferrable=False,
    )  # fmt: skip
    assert run.execute(transform)["done"] == 2
    both = {"destination": to, "table": mailbox.table}
    assert run.settle(**both, complete=False) == (0, 2, 1), "results that were not loaded are not done"
    assert list(mailbox.dead()) == ["in/refused.jsonl"]

    again = Run(mailbox)
    again.lease(2)
    assert again.execute(transform)["skipped"] == 2
    assert again.load(to)["loaded"] == 1
    assert again.settle(**both, complete=True) == (1, 0, 1)
    assert "in/unreadable.jsonl" in mailbox.dead()
    assert mailbox.depth() == (0, 0)

    later = Run(mailbox)
    put(mailbox, good='{"a": 2}\n')
    later.lease(1)
    assert later.execute(transform)["done"] == 1
    assert later.settle(**both, complete=False) == (0, 1, 0), "an earlier version is loaded, not this one"
    last = Run(mailbox)
    last.lease(1)
    assert last.load(to)["loaded"] == 1
    assert last.settle(**both, complete=True) == (1, 0, 0)
    assert mailbox.query(f"SELECT A FROM {mailbox.table}") == [(2,)]


def test_objects_that_a_run_loads(mailbox: Mailbox) -> None:
    run = Run(mailbox)
    put(mailbox, first='{"a": 1}\n', unreadable="no json\n")
    put(mailbox, first='{"a": 2}\n')  # two events, one current version
    run.lease(3)
    assert run.load(run.source)["loaded"] == 1
    put(mailbox, first='{"a": 3}\n', late='{"a": 4}\n')
    assert run.settle(table=mailbox.table) == (0, 2, 1), "the version of the events is no longer the current one"
    assert "no outcome of the object" in mailbox.events()["in/first.jsonl", "ObjectCreated:Put"][0][1]
    again = Run(mailbox)
    again.lease(4)
    assert again.load(run.source)["loaded"] == 2
    assert again.settle(table=mailbox.table) == (4, 0, 0)


def test_objects_that_other_tasks_process(mailbox: Mailbox) -> None:
    run = Run(mailbox)
    put(mailbox, good="1", broken="2")
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="elsewhere", Body=b"3")
    run.lease(3)
    reports = {"prefix": "in/", "failed": json.dumps({"in/broken.jsonl": "no such codec"})}
    assert run.settle(**reports, complete=False) == (0, 2, 1)
    assert mailbox.dead() == {"in/broken.jsonl": f"{run.source}/in/broken.jsonl: no such codec"}
    again = Run(mailbox)
    again.lease(2)
    assert again.settle(**reports, complete=True) == (1, 1, 0)
