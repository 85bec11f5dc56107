"""The requests that a drain of S3 events sends: few for many objects, and several at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from storeside.events.errors import EventTransientError
from storeside.stack.servers import s3
from storeside.transfer.objects.listing import list_objects
from storeside.transfer.run.engine import Transfer
from tests.mailboxes import Mailbox
from tests.transfers import jsonl

COUNT = 30  # more than a few


@pytest.fixture
def mailbox(mailbox: Mailbox) -> Mailbox:
    mailbox.create("n Int32")
    return mailbox


class Requests:
    """Counts the requests for one object that this process and ClickHouse send to S3 while it is active."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.s3 = s3.of_stack("s3", mailbox.stack)
        self.of_worker: Counter[str] = Counter()
        self.s3.meta.events.register("before-call.s3", lambda model, **_: self.of_worker.update([model.name]))
        self._before = self._heads()

    @property
    def heads(self) -> int:
        return self.of_worker["HeadObject"] + self._heads() - self._before

    def _heads(self) -> int:
        counted = self.mailbox.query("SELECT value FROM system.events WHERE event = 'S3HeadObject'")
        return int(counted[0][0]) if counted else 0


def put(mailbox: Mailbox, keys: list[str], others: int = 0) -> None:
    """Put objects with a row each, and others whose events do not arrive."""
    mailbox.silence()
    mailbox.put({f"in/{n:04}.other": b"" for n in range(others)})
    mailbox.put({key: jsonl([{"n": n}]) for n, key in enumerate(keys)})
    for key in keys:
        mailbox.send(mailbox.record(key))


def keys_of(count: int) -> list[str]:
    return [f"in/{n:04}.jsonl" for n in range(count)]


def test_objects_side_by_side_are_listed_and_not_requested_one_by_one(mailbox: Mailbox) -> None:
    put(mailbox, keys_of(COUNT), others=2 * COUNT)
    requests = Requests(mailbox)
    found = mailbox.drain(s3=requests.s3)
    assert (found.loaded, found.deleted) == (COUNT, COUNT)
    assert requests.of_worker["ListObjectsV2"] == 1
    assert requests.heads == 0
    assert mailbox.rows() == [(n,) for n in range(COUNT)]


def test_objects_among_many_others_are_requested(mailbox: Mailbox) -> None:
    put(mailbox, [f"in/{40 * n:04}.jsonl" for n in range(COUNT)], others=1200)
    requests = Requests(mailbox)
    assert mailbox.drain(s3=requests.s3).loaded == COUNT
    assert requests.of_worker["ListObjectsV2"] == 1  # and no second page
    assert requests.heads >= COUNT
    assert mailbox.rows() == [(n,) for n in range(COUNT)]


def test_an_object_that_is_not_listed_is_gone_only_if_a_request_proves_it(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(COUNT)
    put(mailbox, keys)
    mailbox.s3.delete_object(Bucket=mailbox.bucket, Key=keys[3])

    def without_the_first(client: Any, bucket: str, prefix: str) -> Any:
        return ([o for o in page if o.key != keys[0]] for page in list_objects(client, bucket, prefix))

    monkeypatch.setattr("storeside.events.current.list_objects", without_the_first)
    found = mailbox.drain()
    assert (found.loaded, found.skipped, found.dead) == (COUNT - 1, 1, 0)
    assert mailbox.events()[keys[3], "ObjectCreated:Put"] == [("skipped", "it was deleted before it could be loaded")]
    assert mailbox.rows() == [(n,) for n in range(COUNT) if n != 3]


def test_a_bucket_that_may_not_be_listed(mailbox: Mailbox) -> None:
    put(mailbox, keys_of(COUNT))
    requests = Requests(mailbox)

    class Body:
        def stream(self, **_: Any) -> Any:
            yield b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

    def deny(request: Any, **_: Any) -> Any:
        return AWSResponse(request.url, 403, {}, Body()) if "list-type=2" in request.url else None

    requests.s3.meta.events.register("before-send.s3", deny)
    assert mailbox.drain(s3=requests.s3).loaded == COUNT
    assert mailbox.rows() == [(n,) for n in range(COUNT)]


def test_objects_that_are_loaded_need_no_load(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(COUNT)
    put(mailbox, keys)
    assert mailbox.drain().loaded == COUNT
    for key in keys:
        mailbox.send(mailbox.record(key))
    monkeypatch.setattr(Transfer, "prepare", lambda *_: pytest.fail("all objects are known"))
    found = mailbox.drain()
    assert (found.loaded, found.rows, found.deleted) == (COUNT, 0, COUNT)
    assert mailbox.rows() == [(n,) for n in range(COUNT)]


def test_a_batch_is_loaded_while_the_one_before_is_settled(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    put(mailbox, keys_of(COUNT))
    second_loads, run, loads = threading.Event(), Transfer.run, Counter[str]()

    def loading(self: Transfer, prepared: Any) -> Any:
        loads["begun"] += 1
        if loads["begun"] == 2:
            second_loads.set()
        return run(self, prepared)

    def wait(**_: Any) -> None:
        assert second_loads.wait(30), "the second batch is not loaded before the first one is settled"

    monkeypatch.setattr(Transfer, "run", loading)
    sqs = s3.of_stack("sqs", mailbox.stack)
    sqs.meta.events.register("before-call.sqs.DeleteMessageBatch", wait)
    sqs.meta.events.register(
        "before-call.sqs.ChangeMessageVisibilityBatch", lambda **_: pytest.fail("no message is to be released")
    )
    found = mailbox.drain(sqs, {"batch_messages": 10})
    assert (found.messages, found.loaded, found.deleted) == (COUNT, COUNT, COUNT)
    assert mailbox.depth() == (0, 0)
    assert mailbox.rows() == [(n,) for n in range(COUNT)]


def test_a_run_that_waits_for_messages_ends_when_it_cannot_settle(mailbox: Mailbox) -> None:
    put(mailbox, keys_of(1))

    def fail(**_: Any) -> None:
        raise EventTransientError("throttled")

    sqs = s3.of_stack("sqs", mailbox.stack)
    sqs.meta.events.register("before-call.sqs.DeleteMessageBatch", fail)
    with pytest.raises(EventTransientError, match="throttled"):
        mailbox.drain(sqs, {"idle_seconds": 600})
    again = mailbox.drain(limits={"idle_seconds": 1})  # the failed run has released the message of its loaded object
    assert (again.messages, again.loaded, again.deleted) == (1, 0, 1)
