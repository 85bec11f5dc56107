"""A process that drains a queue, and its servers, killed at random: every object once, and the queue empty."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import pytest

from storeside.stack.settings import CHECKOUT, Stack
from tests.mailboxes import Mailbox
from tests.support import unique, until
from tests.transfers import environment, jsonl, kill_clickhouse

LEASE_SECONDS = 6


@pytest.mark.guarantee("events-settled")
@pytest.mark.parametrize(
    ("objects", "kills"),
    [
        (60, 3),
        pytest.param(1500, 30, marks=[pytest.mark.chaos, pytest.mark.timeout(1500)]),
    ],
)
def test_kill_9_at_random(
    stack: Stack, clickhouse: Any, s3_client: Any, sqs_client: Any, objects: int, kills: int
) -> None:
    """Every fifth event comes twice; two messages and an object are bad; the long form kills S3 and SQS too."""
    mailbox = Mailbox(stack, clickhouse, s3_client, sqs_client, receives=1000)
    mailbox.create("n UInt32")
    mailbox.put({f"{n:05}.jsonl": jsonl([{"n": n}]) for n in range(objects)} | {"bad.jsonl": b'{"n": "x"}\n'})
    for n in range(0, objects, 5):
        mailbox.send(mailbox.record(f"{n:05}.jsonl"))
    for poison in ("poison", "{}"):
        mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody=poison)
    if objects > 100:  # the server is killed, too, and keeps only saved messages
        saved = stack.state / "s3" / "services" / "sqs.json"
        until(lambda: '"{}"' in saved.read_text(), 60, "saved queue")
    chance = random.Random(11)  # noqa: S311
    killed = 0
    while True:
        command = [
            *(sys.executable, "-m", "storeside.events", "--queue", mailbox.url, f"s3://{mailbox.bucket}/"),
            *(mailbox.table, "--format", "jsonl", "--collection", "storeside_s3"),
            *("--run-id", unique("run"), "--batch-messages", str(max(10, objects // 50))),
            *("--lease-seconds", str(LEASE_SECONDS), "--idle-seconds", str(LEASE_SECONDS + 2)),
        ]
        variables = {**environment(stack), "AWS_ENDPOINT_URL": stack.url("s3")}
        worker = subprocess.Popen(command, cwd=CHECKOUT, env=variables, stderr=subprocess.DEVNULL)
        if killed < kills:
            time.sleep(chance.uniform(1.5, 4))  # the kill comes at a random time; Python's start takes a second of it
            killed += 1
            victim = chance.random()
            if victim < 0.25:
                kill_clickhouse(stack)
            elif victim < 0.35 and objects > 100:
                mailbox.kill_server()
            else:
                worker.kill()
        if worker.wait(timeout=600) in (0, 1) and killed >= kills:
            break
    assert mailbox.query(f"SELECT count(), uniqExact(n) FROM {mailbox.table}") == [(objects, objects)]
    assert set(mailbox.dead()) == {"poison", "{}", "bad.jsonl"}
    assert mailbox.depth() == (0, 0)
