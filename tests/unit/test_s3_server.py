"""The embedded S3 and SQS server: its queues keep their messages, and long queues do not stop it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from storeside.stack import tls
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, free_ports
from tests.support import until


@contextmanager
def sqs_of(stack: Stack) -> Iterator[Any]:
    """Run the server of a stack and yield a client of its SQS."""
    (component,) = s3.components(stack)
    with subprocess.Popen(
        component.command, env={**os.environ, **component.environment}, cwd=component.directory
    ) as server:
        try:
            until(component.healthy, 60, "the server")
            s3.prepare(stack)  # a server with saved notifications is healthy before it has created missing queues
            yield s3.of_stack("sqs", stack)
        finally:
            server.terminate()


def bodies(sqs: Any, name: str) -> list[str]:
    """Receive the messages of a queue, and leave them in it."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    found = [message["Body"] for message in answer.get("Messages", [])]
    return [body for body in found if "s3:TestEvent" not in body]


def send(sqs: Any, name: str, body: str) -> None:
    """Send a message to a queue."""
    sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], MessageBody=body)


@contextmanager
def saved_queues(stack: Stack) -> Iterator[dict[str, Any]]:
    """Yield the queues that a server has saved, and save what the caller changes."""
    file = stack.state / "s3" / "services" / "sqs.json"
    record = json.loads(file.read_text())
    yield record["payload"]["queues"]["data"]
    file.write_text(json.dumps(record))


@pytest.mark.exhaustive
def test_messages_move_with_the_server(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 1)
    dead = f"{s3.QUEUE}-dlq"
    with sqs_of(stack) as sqs:
        send(sqs, s3.QUEUE, "event")
        send(sqs, dead, "dead letter")
    moved = replace(stack, tls=True, ports=stack.ports | {"s3": free_ports(1)[0]})
    tls.prepare(moved)
    with sqs_of(moved) as sqs:
        assert bodies(sqs, s3.QUEUE) == ["event"]
        assert bodies(sqs, dead) == ["dead letter"]
        urls = sqs.list_queues()["QueueUrls"]
        assert len(urls) == 4
        assert all(url.startswith(moved.url("s3")) for url in urls)


@pytest.mark.exhaustive
def test_queues_that_an_earlier_version_made_twice_are_joined(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 1)
    with sqs_of(stack) as sqs:
        send(sqs, s3.QUEUE, "second")
    with saved_queues(stack) as queues:
        former = json.dumps(queues).replace(stack.url("s3"), "http://127.0.0.1:9").replace('"second"', '"first"')
        present = dict(queues)
        queues.clear()
        queues.update(json.loads(former) | present)
    with sqs_of(stack) as sqs:
        assert bodies(sqs, s3.QUEUE) == ["first", "second"]
        assert len(sqs.list_queues()["QueueUrls"]) == 4


@pytest.mark.exhaustive
def test_saving_a_long_queue_takes_a_small_part_of_the_servers_time(tmp_path: Path) -> None:
    stack = Stack.create(tmp_path, 1)
    with sqs_of(stack) as sqs:
        send(sqs, s3.QUEUE, "event")
    with saved_queues(stack) as queues:
        for queue in queues.values():
            queue["messages"] *= 10_000
    file = stack.state / "s3" / "services" / "sqs.json"
    with sqs_of(stack) as sqs:
        command = "storeside.stack.servers.s3_server"
        (server,) = (one for one in psutil.Process().children() if command in one.cmdline())
        start, before = time.monotonic(), sum(server.cpu_times()[:2])
        for _ in range(2):
            saved = file.stat().st_mtime_ns
            send(sqs, s3.QUEUE, "another")
            until(lambda: file.stat().st_mtime_ns > saved, 120, "saved queue")  # noqa: B023
        share = (sum(server.cpu_times()[:2]) - before) / (time.monotonic() - start)
        # Before the server ends: then it saves its queues in any case.
        assert '"another"' in file.read_text()
    assert share < 0.4
