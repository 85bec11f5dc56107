"""Dead letters have a reason and an origin on every SQS server: the stack's, and ElasticMQ."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from storeside.events.dead_letters import DeadLetters
from storeside.events.deliveries import Delivery
from storeside.events.ledger import EventLedger
from storeside.events.queue import Queue
from storeside.events.settle import ORIGIN, QUEUE, REASON, _plain, settle
from storeside.stack.settings import default_folder
from tests import elasticmq, maven
from tests.mailboxes import Mailbox
from tests.support import unique, until
from tests.transfers import jsonl


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if absent := maven.missing():
        pytest.skip(f"ElasticMQ needs {absent}: apt-get install default-jre-headless maven")
    jars = elasticmq.download(default_folder() / "cache" / "bench")
    with elasticmq.serve(jars, Path(tmp_path_factory.mktemp("elasticmq"))) as sqs:
        yield sqs


@pytest.fixture(params=["ministack", "elasticmq"])
def sqs(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue({"ministack": "sqs_client", "elasticmq": "elastic"}[request.param])


def mailbox_of(sqs: Any, request: pytest.FixtureRequest, **more: Any) -> Mailbox:
    stack, clickhouse, s3 = (request.getfixturevalue(name) for name in ("stack", "clickhouse", "s3_client"))
    return Mailbox(stack, clickhouse, s3, sqs, notified=False, **more)


def test_a_drained_queue_leaves_dead_letters_with_reason_and_origin(sqs: Any, request: Any) -> None:
    mailbox = mailbox_of(sqs, request)
    mailbox.put({"good.jsonl": jsonl([{"n": 1}]), "bad.jsonl": b'{"n": "one"}\n'})
    sent = {}
    for key in ("good.jsonl", "bad.jsonl"):
        body = json.dumps({"Records": [mailbox.record(key)]})
        sent[key] = sqs.send_message(QueueUrl=mailbox.url, MessageBody=body)["MessageId"]
    poison = sqs.send_message(QueueUrl=mailbox.url, MessageBody="no event")["MessageId"]
    mailbox.create("n UInt32")
    found = mailbox.drain()
    assert (found.loaded, found.deleted, found.dead) == (1, 1, 2)
    letters = {letter.message_id: letter.reason for letter in DeadLetters(mailbox.queue).listed()}
    assert set(letters) == {sent["bad.jsonl"], poison}
    assert "bad.jsonl: column 'n'" in letters[sent["bad.jsonl"]]
    assert "it is not an S3 event notification" in letters[poison]
    assert DeadLetters(mailbox.queue).redrive([poison]) == 1
    assert mailbox.depth() == (1, 0)
    assert [letter.message_id for letter in DeadLetters(mailbox.queue).listed()] == [sent["bad.jsonl"]]


def test_what_sqs_itself_moved_says_so(sqs: Any, request: Any) -> None:
    """Even if the message still has attributes from when it was a dead letter before."""
    mailbox = mailbox_of(sqs, request, receives=2)
    old = {name: {"DataType": "String", "StringValue": "old"} for name in (REASON, ORIGIN, QUEUE)}
    body = json.dumps({"Records": [mailbox.record("a.jsonl")]})
    sent = sqs.send_message(QueueUrl=mailbox.url, MessageBody=body, MessageAttributes=old)["MessageId"]

    def moved() -> bool:
        mailbox.queue.receive(0)
        return mailbox.queue.dead_letters.depth().visible == 1

    until(moved, 10, "the message among the dead letters")
    (letter,) = DeadLetters(mailbox.queue).listed()
    assert letter.message_id == sent
    assert letter.reason.startswith("SQS moved the message here")
    assert [event.key for event in letter.events] == ["a.jsonl"]


def test_a_queue_leaves_the_dead_letters_of_another_alone(sqs: Any) -> None:
    def make(name: str, **attributes: str) -> str:
        return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    name = unique("shared")
    dead = make(f"{name}-dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    one, other = (Queue(sqs, make(f"{name}-{n}", RedrivePolicy=policy)) for n in range(2))
    for queue in (one, other):
        queue.dead_letters.send(f"of {queue.name}", {REASON: "why", ORIGIN: f"id of {queue.name}", QUEUE: queue.name})
        queue.send(f"moved from {queue.name}", {})
        end = time.monotonic() + 10
        while queue.receive(0) and time.monotonic() < end:
            pass
    until(lambda: one.dead_letters.depth().visible == 4, 10, "four dead letters")
    mine = DeadLetters(one)
    assert {letter.body for letter in mine.listed()} == {f"of {one.name}", f"moved from {one.name}"}
    assert mine.redrive() == 2
    assert one.depth().visible == 2
    assert {letter.body for letter in DeadLetters(other).listed()} == {f"of {other.name}", f"moved from {other.name}"}


@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(min_size=1, max_size=1200), min_size=20, max_size=40))
def test_any_reason_arrives(sqs: Any, request: Any, texts: list[str]) -> None:
    mailbox = mailbox_of(sqs, request)
    texts += ["\x00\x1f\x7f \u202e", "\U0001f600" * 1100, "é" * 999 + "<&>'\""]
    wanted = {f"id {n}": _plain(text) for n, text in enumerate(texts)}
    for name, reason in wanted.items():
        mailbox.queue.dead_letters.send("{}", {REASON: reason, ORIGIN: name, QUEUE: mailbox.name})
    assert {letter.message_id: letter.reason for letter in DeadLetters(mailbox.queue).listed()} == wanted


def test_the_last_receive_that_a_queue_allows_ends_with_a_reason(sqs: Any, request: Any) -> None:
    """At the next receive SQS would move the message without a reason."""
    mailbox = mailbox_of(sqs, request, receives=2)
    ledger = EventLedger(mailbox.client(), mailbox.url, "run")
    ledger.create()
    mailbox.send(mailbox.record("other/a.flac"))
    for released, dead in ((1, 0), (0, 1)):
        (message,) = mailbox.queue.receive(30, 5)
        settled = settle(mailbox.queue, ledger, [Delivery.read(message)])
        assert (settled.released, settled.dead) == (released, dead)
        if released:
            mailbox.queue.extend([message], 0)  # without the delay
    ((key, reason),) = mailbox.dead().items()
    assert key == "other/a.flac"
    assert "no run processed it in 2 receives, after which SQS moves a message" in reason
    assert mailbox.events()[key, "ObjectCreated:Put"] == [("dead", reason.partition(": ")[2])]
