"""The short form of ``make chaos``: each fault of a link while a queue is drained, and its consequences."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from storeside.errors import Transient
from storeside.events.current import look_at
from storeside.events.intake import Limits
from storeside.events.load import EventLoad
from storeside.events.queue import Queue
from storeside.stack import demo
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import USER
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base.errors import DENIED, TransferTransientError
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from tests.chaos.answers import AWS_ANSWERS, GATEWAY_ANSWERS, Answer, aws
from tests.chaos.pipelines import ROWS, csv, verdict
from tests.link import Link, linked
from tests.mailboxes import Mailbox
from tests.support import unique, until

SEED = 8
OBJECTS = 6  # added with each fault


@contextmanager
def answering(link: Link, answer: Answer) -> Iterator[None]:
    link.answer = answer
    try:
        yield
    finally:
        link.answer = None


@contextmanager
def truncating(link: Link) -> Iterator[None]:
    link.truncates = True
    try:
        yield
    finally:
        link.truncates = False


class Worker(threading.Thread):
    """Drains a queue through two links, again and again, as Airflow's retries and runs do."""

    def __init__(self, mailbox: Mailbox, to_s3: Link, to_clickhouse: Link) -> None:
        super().__init__(daemon=True)
        self.mailbox, self.to_s3, self.to_clickhouse = mailbox, to_s3, to_clickhouse
        self.stop = threading.Event()
        self.transient: list[str] = []
        self.other: list[BaseException] = []

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._drain()
            except Transient as e:
                self.transient.append(str(e))
            except Exception as e:
                self.other.append(e)

    def _drain(self) -> None:
        from clickhouse_connect.driver.exceptions import Error

        stack = self.mailbox.stack
        endpoint = f"http://{HOST}:{self.to_s3.port}"
        clients = {name: s3.client(name, endpoint, *s3.keys(stack)) for name in ("s3", "sqs")}
        behind = replace(stack, ports={**stack.ports, "clickhouse_http": self.to_clickhouse.port})
        try:
            client = demo.clickhouse_client(behind)
        except Error as e:  # it asks for the server's identity
            raise TransferTransientError(str(e)) from e
        source = Source(self.mailbox.bucket, "", collection="storeside_s3")
        request = Request(source, self.mailbox.table, "csv", loader="push")
        limits = Limits(seconds=5, idle_seconds=0, batch_messages=100, lease_seconds=3)
        EventLoad(
            Queue(clients["sqs"], self.mailbox.url), request, client, clients["s3"], unique("run"), limits
        ).run()


def staging(mailbox: Mailbox) -> set[tuple[Any, ...]]:
    return set(mailbox.query(f"SELECT name FROM system.tables WHERE database = '{STAGING}'"))


def test_every_fault_of_a_link_costs_nothing_but_time(
    stack: Stack, clickhouse: Any, s3_client: Any, sqs_client: Any
) -> None:
    mailbox = Mailbox(stack, clickhouse, s3_client, sqs_client, receives=1000)
    mailbox.create("object UInt32, row UInt32, text String")
    left_by_others = staging(mailbox)
    with linked(stack.ports["s3"]) as to_s3, linked(stack.ports["clickhouse_http"]) as to_clickhouse:
        faults: list[tuple[Link, Callable[[], Any]]] = [
            *((to_s3, lambda a=answer: answering(to_s3, a)) for answer in AWS_ANSWERS.values()),
            *((to_clickhouse, lambda a=answer: answering(to_clickhouse, a)) for answer in GATEWAY_ANSWERS.values()),
            (to_s3, lambda: truncating(to_s3)),
            (to_clickhouse, lambda: truncating(to_clickhouse)),
        ]
        random.Random(SEED).shuffle(faults)  # noqa: S311
        worker = Worker(mailbox, to_s3, to_clickhouse)
        worker.start()
        put = 0
        for link, fault in faults:
            mailbox.put({f"{n:04}.csv": csv(n) for n in range(put, put + OBJECTS)})
            put += OBJECTS
            before = link.met
            with fault():
                until(lambda found=link, met=before: found.met > met, 60, "request that meets the fault")
            for one in (to_s3, to_clickhouse):
                one.reset()
        until(lambda: mailbox.query(f"SELECT count() FROM {mailbox.table}")[0][0] >= put * ROWS, 90, "all rows")
        until(lambda: mailbox.depth() == (0, 0), 90, "empty queue")
        worker.stop.set()
        worker.join(60)
    assert worker.other == []
    found = verdict(mailbox.query, mailbox.table, range(put))
    assert (found.lost, found.duplicated, found.truncated) == ([], [], [])
    assert mailbox.dead() == {}
    assert staging(mailbox) <= left_by_others


def denied(request: bytes) -> bytes:
    """Deny objects, but not listings."""
    line = request.partition(b"\r\n")[0]
    return aws(403, "AccessDenied", "Access Denied")(request) if b".csv" in line else b""


def test_what_s3_denies_for_a_while_is_not_bad_for_good(
    stack: Stack, clickhouse: Any, s3_client: Any, sqs_client: Any
) -> None:
    mailbox = Mailbox(stack, clickhouse, s3_client, sqs_client, receives=1000)
    mailbox.create("object UInt32, row UInt32, text String")
    mailbox.put({f"{n:04}.csv": csv(n) for n in range(3)})
    with linked(stack.ports["s3"]) as to_s3, answering(to_s3, denied):
        behind = s3.client("s3", f"http://{HOST}:{to_s3.port}", *s3.keys(stack))
        drained = mailbox.drain(s3=behind, format="csv", loader="push")
        assert (drained.released, drained.dead, mailbox.dead()) == (3, 0, {})
        transfer = mailbox.transfer(s3=behind, format="csv", loader="push")
        assert transfer.run(transfer.prepare()).failed == 3
    assert all(reason.startswith(DENIED) for reason in mailbox.reasons().values())
    assert mailbox.load(format="csv", loader="push").loaded == 3


CUT_OFF = b"HTTP/1.1 200 OK\r\nX-ClickHouse-Query-Id: cut off\r\n"


def test_an_answer_of_clickhouse_that_ends_within_its_head_is_no_empty_one(stack: Stack) -> None:
    with linked(stack.ports["clickhouse_http"]) as to_clickhouse:
        behind = replace(stack, ports={**stack.ports, "clickhouse_http": to_clickhouse.port})
        client = demo.clickhouse_client(behind)
        assert client.query("SELECT number FROM numbers(0)").result_rows == []
        with (
            answering(to_clickhouse, lambda request: CUT_OFF),
            pytest.raises(OperationalError, match="within its headers"),
        ):
            client.query("SELECT number FROM numbers(3)")


def test_an_empty_answer_of_clickhouse_is_no_proof_that_an_object_is_gone(
    stack: Stack, clickhouse: Any, s3_client: Any, sqs_client: Any
) -> None:
    """The run requests the object from S3, regardless of the client's result."""
    mailbox = Mailbox(stack, clickhouse, s3_client, sqs_client, receives=1000)
    mailbox.put({"0000.csv": csv(0)})
    with linked(stack.ports["clickhouse_http"]) as to_clickhouse:
        behind = replace(stack, ports={**stack.ports, "clickhouse_http": to_clickhouse.port})
        client = clickhouse_connect.get_client(
            host=HOST, port=to_clickhouse.port, username=USER, password=behind.secrets["clickhouse"]
        )
        to_clickhouse.answer = lambda request: CUT_OFF
        source = Source(mailbox.bucket, "", collection="storeside_s3")
        found = look_at(source, ["0000.csv", "gone.csv"], client, s3_client, pull=True)
    assert found["gone.csv"] is None
    assert getattr(found["0000.csv"], "size", 0) == len(csv(0))
