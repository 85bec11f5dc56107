"""S3 events on a real queue, drained into a real table: none lost, none twice, bad messages in the dead letters."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError

from storeside.events import object_loads
from storeside.events.batches import Batches
from storeside.events.current import look_at
from storeside.events.dead_letters import DeadLetters
from storeside.events.deliveries import Delivery, Outcome
from storeside.events.drained import Drained
from storeside.events.errors import EventInputError, EventTransientError, TriedOutError
from storeside.events.ledger import EventLedger
from storeside.events.queue import Message, Queue, backoff
from storeside.events.runs import settle_batches
from storeside.transfer.base.errors import LeftError, TransferInputError, TransferTransientError
from storeside.transfer.run.engine import Transfer
from tests.mailboxes import Beats, Mailbox
from tests.support import until
from tests.transfers import jsonl

PUT = "ObjectCreated:Put"


def rows_of(n: int) -> bytes:
    return jsonl([{"n": n}])


@pytest.mark.guarantee("events-settled")
def test_objects_are_loaded_once_and_their_messages_deleted(mailbox: Mailbox) -> None:
    hostile = ["a b+c%20d.jsonl", "wy\u0144ik?*.jsonl", "{a,b}.jsonl", "'quoted`;--.jsonl"]
    keys = [*(f"in/{n:03}.jsonl" for n in range(25)), *hostile]
    mailbox.put({key: rows_of(n) for n, key in enumerate(keys)})
    mailbox.arrive(len(keys))
    found = mailbox.drain(limits={"batch_messages": 20})
    assert (found.messages, found.loaded, found.deleted, found.rows) == (29, 29, 29, 29)
    assert (found.released, found.dead) == (0, 0)
    assert mailbox.rows() == [(n,) for n in range(29)]
    assert mailbox.depth() == (0, 0)
    assert set(mailbox.events()) == {(key, PUT) for key in keys}
    assert {tuple(states) for states in mailbox.events().values()} == {(("loaded", ""),)}
    assert mailbox.drain().messages == 0
    depths = mailbox.query(
        "SELECT visible, dead FROM storeside.queue_depths WHERE queue = {q:String} ORDER BY recorded_at",
        q=mailbox.url,
    )
    assert depths[-1] == (0, 0)


@pytest.mark.parametrize("objects", [100, pytest.param(455, marks=[pytest.mark.chaos])])
def test_duplicates_in_any_order_leave_each_last_version_once(mailbox: Mailbox, objects: int) -> None:
    """Ten events per object; the bucket has the last; every tenth event comes twice; several in a message."""
    keys = [f"k/{n:03}.jsonl" for n in range(objects)]
    final = {key: mailbox.s3.put_object(Bucket=mailbox.bucket, Key=key, Body=rows_of(n))["ETag"].strip('"')
             for n, key in enumerate(keys)}  # fmt: skip
    mailbox.sqs.purge_queue(QueueUrl=mailbox.url)
    records = [mailbox.record(key, sequencer=f"{v:04X}") for key in keys for v in range(9)]
    records += [mailbox.record(key, etag=final[key], sequencer="000A") for key in keys]
    records += random.Random(5).sample(records, len(records) // 10)  # noqa: S311
    random.Random(6).shuffle(records)  # noqa: S311
    sizes = iter(records)
    while some := [r for _, r in zip(range(1 + len(records) % 3), sizes, strict=False)]:
        mailbox.send(*some)
    found = mailbox.drain(limits={"batch_messages": 150})
    assert found.events == found.loaded == len(records) == objects * 11
    assert mailbox.rows() == [(n,) for n in range(objects)]
    assert mailbox.depth() == (0, 0)
    assert mailbox.dead() == {}


def test_an_overwritten_object_is_loaded_as_it_is_now(mailbox: Mailbox) -> None:
    mailbox.put({"a.jsonl": rows_of(1)})
    mailbox.put({"a.jsonl": rows_of(2)})
    mailbox.arrive(2)
    assert mailbox.drain().loaded == 2
    assert mailbox.rows() == [(2,)]
    mailbox.put({"a.jsonl": rows_of(3)})
    mailbox.arrive(1)
    mailbox.drain(on_overwrite="replace")
    assert mailbox.rows() == [(3,)]


def test_what_tells_no_format_is_a_dead_letter_and_holds_nothing_up(mailbox: Mailbox) -> None:
    mailbox.put({"README.md": b"# words", "empty": b""})
    mailbox.arrive(2)
    first = mailbox.drain(format="auto")
    assert (first.dead, first.loaded) == (2, 0)
    assert "set `format`" in mailbox.dead()["README.md"]
    mailbox.put({"0_manifest.json": b'{"files": 3}', "README.md": b"# more words"})
    mailbox.put({f"{n}.csv": b"n\n1\n" for n in range(3)})
    mailbox.arrive(5)
    second = mailbox.drain(format="auto")
    assert second.loaded == 3
    assert mailbox.rows() == [(1,)] * 3
    assert mailbox.depth() == (0, 0)
    assert set(mailbox.dead()) == {"README.md", "empty", "0_manifest.json"}


def test_what_asks_for_nothing_is_skipped_with_its_reason(mailbox: Mailbox) -> None:
    mailbox.put({"gone.jsonl": rows_of(1), "kept.jsonl": rows_of(2), "other.csv": b"n\n1\n"})
    mailbox.s3.delete_object(Bucket=mailbox.bucket, Key="gone.jsonl")
    mailbox.arrive(4)
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody='{"Event": "s3:TestEvent"}')
    mailbox.send(mailbox.record("kept.jsonl", "ObjectRestore:Completed"), mailbox.record("folder/", size=0))
    foreign = mailbox.record("x.jsonl")
    foreign["s3"]["bucket"]["name"] = "somebody-elses"
    mailbox.send(foreign)
    found = mailbox.drain(keys="**.jsonl")
    assert (found.loaded, found.dead, found.released, found.messages) == (1, 0, 0, 7)
    assert mailbox.rows() == [(2,)]
    states = mailbox.events()
    assert states["gone.jsonl", PUT] == [("skipped", "it was deleted before it could be loaded")]
    assert states["other.csv", PUT] == [("skipped", "the key does not match")]
    assert states["x.jsonl", PUT] == [("skipped", f"the object is in another bucket than {mailbox.bucket}")]
    assert states["kept.jsonl", "ObjectRestore:Completed"] == [("skipped", "the event reports no new content")]
    assert {name for _, name in states if name.startswith("ObjectRemoved")}
    assert mailbox.depth() == (0, 0)


@pytest.mark.guarantee("events-settled")
def test_poison_goes_to_the_dead_letters_with_its_reason_and_comes_back_when_sent_back(mailbox: Mailbox) -> None:
    mailbox.put({"good.jsonl": rows_of(1), "bad.jsonl": b'{"n": "text"}\n', "also.jsonl": rows_of(4)})
    mailbox.arrive(3)
    mailbox.sqs.purge_queue(QueueUrl=mailbox.url)
    mailbox.create("n UInt32")
    mailbox.send(mailbox.record("good.jsonl"), mailbox.record("bad.jsonl"))
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody="not an event \u202e")
    mailbox.send(mailbox.record("also.jsonl"))
    found = mailbox.drain()
    assert (found.loaded, found.dead, found.deleted) == (2, 2, 1)
    assert mailbox.rows() == [(1,), (4,)]
    assert mailbox.depth() == (0, 0)
    dead = mailbox.dead()
    assert set(dead) == {"good.jsonl,bad.jsonl", "not an event \u202e"}
    assert "bad.jsonl: column 'n'" in dead["good.jsonl,bad.jsonl"]
    assert "it is not an S3 event notification: message is not JSON" in dead["not an event \u202e"]
    assert mailbox.events()["good.jsonl", PUT] == [("loaded", "")]
    assert mailbox.events()["bad.jsonl", PUT][0][0] == "dead"

    mailbox.put({"bad.jsonl": rows_of(2)})  # repaired
    mailbox.arrive(1)
    mailbox.sqs.purge_queue(QueueUrl=mailbox.url)
    dead_letters = DeadLetters(mailbox.queue)
    (letter,) = [letter for letter in dead_letters.listed() if letter.events]
    assert dead_letters.redrive([letter.message_id]) == 1
    assert set(mailbox.dead()) == {"not an event \u202e"}
    assert mailbox.drain().loaded == 2
    assert mailbox.rows() == [(1,), (2,), (4,)]
    assert dead_letters.redrive() == 1
    assert mailbox.drain().dead == 1  # as bad as before


def test_a_dead_letter_that_was_sent_twice_is_one(mailbox: Mailbox) -> None:
    for _ in range(2):
        mailbox.queue.dead_letters.send("not an event", {"storeside.reason": "why", "storeside.message_id": "m"})
    mailbox.sqs.send_message(QueueUrl=mailbox.queue.dead_letters.url, MessageBody="moved by SQS")
    dead_letters = DeadLetters(mailbox.queue)
    assert sorted(letter.reason.partition(":")[0] for letter in dead_letters.listed()) == [
        "it is not an S3 event notification", "why",
    ]  # fmt: skip
    assert dead_letters.redrive({"m"}) == 1
    assert mailbox.depth() == (1, 0)
    assert len(dead_letters.listed()) == 1


def test_folder_markers_and_objects_of_our_own_are_no_dead_letters(mailbox: Mailbox) -> None:
    mailbox.create("n UInt32")
    own = ("storeside-measurements/a/1", "storeside-throughput/a/1", ".storeside-doctor/a")
    markers = ("x/", "x/y z/", "old_$folder$")
    for key in (*own, *markers):
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key=key, Body=b"" if key in markers else b"junk")
    mailbox.put({"x/1.jsonl": rows_of(1)})
    mailbox.arrive(7)
    for key in markers:  # if the event does not state the size of the object
        mailbox.send(mailbox.record(key, size=None))
    found = mailbox.drain()
    assert (found.loaded, found.skipped, found.deleted, found.dead) == (1, 9, 10, 0)
    assert mailbox.rows() == [(1,)]
    assert mailbox.depth() == (0, 0)
    for key in markers:
        assert mailbox.events()[key, PUT] == [("skipped", "it is a folder marker")] * 2


def between_look_and_load(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Call `action` after the run has read the objects' state, and before it loads them."""

    def looked(*arguments: Any, pull: bool) -> Any:
        found = look_at(*arguments, pull=pull)
        if pull:
            action()
        return found

    monkeypatch.setattr(object_loads, "look_at", looked)


@pytest.mark.parametrize("count", [3, 25], ids=["requested", "listed"])
def test_an_object_that_s3_cannot_read_now_holds_no_other_up(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    from storeside.stack.servers import s3

    monkeypatch.setattr("storeside.transfer.staging.staging.ATTEMPTS", 2)
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(count)})
    mailbox.arrive(count)
    client = s3.of_stack("s3", mailbox.stack)

    class Body:
        def stream(self, **_: Any) -> Any:
            yield b""

    def answer(request: Any, **_: Any) -> Any:
        return AWSResponse(request.url, 503, {}, Body()) if request.url.endswith("/1.jsonl") else None

    client.meta.events.register("before-send.s3", answer)
    found = mailbox.drain(s3=client, loader="push")
    assert (found.loaded, found.deleted, found.released, found.dead) == (count - 1, count - 1, 1, 0)
    assert mailbox.rows() == [(n,) for n in range(count) if n != 1]
    ((state, reason),) = mailbox.events()["1.jsonl", PUT]
    assert state == "released"
    assert reason.startswith(f"it cannot be read at the moment: s3://{mailbox.bucket}/1.jsonl: ")


def test_a_message_that_does_not_fit_into_the_dead_letters_holds_no_other_up(mailbox: Mailbox) -> None:
    """SQS moves it itself. With its reason it is longer than SQS allows, or than the dead-letter queue does."""
    mailbox.put({"good.jsonl": rows_of(1)})
    mailbox.arrive(1)
    mailbox.sqs.set_queue_attributes(
        QueueUrl=mailbox.queue.dead_letters.url, Attributes={"MaximumMessageSize": "1024"}
    )
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody="x" * 1025)
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody="x" * 1000)
    found = mailbox.drain()
    assert (found.loaded, found.deleted, found.released, found.dead) == (1, 1, 1, 1)
    assert mailbox.rows() == [(1,)]
    assert mailbox.depth() == (0, 1)
    states = sorted(mailbox.events()["", ""])
    assert [state for state, _ in states] == ["dead", "released"]
    assert all(reason.startswith("it is not an S3 event notification") for _, reason in states)


def test_messages_stay_leased_until_their_dead_letters_are_sent(mailbox: Mailbox) -> None:
    seen: list[Any] = []

    class SlowDeadLetters(Beats):
        slow = True

        def send_message(self, **arguments: Any) -> Any:
            if self.slow:
                self.slow = False
                self.outlive()
            seen.extend(mailbox.queue.receive(1))
            return mailbox.sqs.send_message(**arguments)

    mailbox.create("n UInt32")
    for n in range(90):
        mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody=f"bad {n}")
    mailbox.arrive(90)
    found = mailbox.drain(SlowDeadLetters(mailbox.sqs), {"lease_seconds": 3})
    assert (found.messages, found.dead) == (90, 90)
    assert not seen
    assert mailbox.depth() == (0, 0)
    assert mailbox.queue.dead_letters.depth().visible == 90, "none is there twice"


def test_a_second_try_of_a_settlement_counts_no_second_failure(mailbox: Mailbox) -> None:
    class FailsOnce:
        failures = 1

        def change_message_visibility_batch(self, **arguments: Any) -> Any:
            self.failures -= 1
            if self.failures == 0:
                raise EndpointConnectionError(endpoint_url="http://sqs")
            return mailbox.sqs.change_message_visibility_batch(**arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(mailbox.sqs, name)

    mailbox.create("n UInt32")
    mailbox.send(mailbox.record("busy.jsonl"))
    mailbox.arrive(1)
    (message,) = mailbox.queue.receive(60)
    message = replace(message, receives=2)
    client = mailbox.client()
    ledger = EventLedger(client, mailbox.url, "dag/first")
    ledger.create()
    undone = Outcome("undone", "it was not loaded")
    ledger.record([Delivery(message, Delivery.read(message).events, [undone])], "released")
    Batches(client, mailbox.url).open([message], "dag/second")

    def decide(deliveries: Any) -> None:
        for delivery in deliveries:
            delivery.outcomes = [undone]

    queue = Queue(FailsOnce(), mailbox.url)  # type: ignore[arg-type]
    with pytest.raises(EventTransientError):
        settle_batches(queue, client, "dag/second", decide)
    settled = settle_batches(queue, client, "dag/second", decide)
    assert (settled.released, settled.dead) == (1, 0)
    assert ledger.known([message]) == {message.id: (False, 2)}


def test_what_changes_while_it_is_loaded_is_given_back_and_at_last_a_dead_letter(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"busy.jsonl": rows_of(0), "gone.jsonl": rows_of(-1)})
    mailbox.arrive(2)
    mailbox.silence()
    mailbox.send(mailbox.record("busy.jsonl"))
    mailbox.send(mailbox.record("gone.jsonl"))
    count = iter(range(1, 100))

    def change() -> None:
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key="busy.jsonl", Body=rows_of(next(count)))
        mailbox.s3.delete_object(Bucket=mailbox.bucket, Key="gone.jsonl")

    between_look_and_load(monkeypatch, change)
    mailbox.create("n Int32")
    found = mailbox.drain(limits={"most_failures": 2})
    assert (found.released, found.dead, found.skipped) == (1, 0, 1)
    ((state, reason),) = mailbox.events()["busy.jsonl", PUT]
    assert (state, reason.partition(":")[0]) == ("released", "it was overwritten while it was loaded")
    assert mailbox.depth() == (0, 1)  # for 15 s
    (failures,) = mailbox.query(
        "SELECT max(failures) FROM storeside.events FINAL WHERE queue = {q:String}", q=mailbox.url
    )
    assert failures == (1,)
    mailbox.sqs.purge_queue(QueueUrl=mailbox.url)
    assert mailbox.rows() == []


class Impatient:
    """A queue whose released messages can be received at once."""

    def __init__(self, sqs: Any) -> None:
        self._sqs = sqs

    def change_message_visibility_batch(self, **arguments: Any) -> Any:
        for entry in arguments["Entries"]:
            entry["VisibilityTimeout"] = min(entry["VisibilityTimeout"], 1)
        return self._sqs.change_message_visibility_batch(**arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sqs, name)


def test_after_so_many_failures_a_message_is_a_dead_letter(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.put({"busy.jsonl": rows_of(0)})
    mailbox.arrive(1)
    mailbox.silence()
    mailbox.send(mailbox.record("busy.jsonl"))
    mailbox.create("n Int32")
    count = iter(range(1, 100))

    def change() -> None:
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key="busy.jsonl", Body=rows_of(next(count)))

    between_look_and_load(monkeypatch, change)
    found = mailbox.drain(Impatient(mailbox.sqs), {"idle_seconds": 3, "most_failures": 3})
    assert (found.released, found.dead) == (2, 1)
    assert "overwritten while it was loaded" in mailbox.dead()["busy.jsonl"]
    assert mailbox.depth() == (0, 0)


def test_messages_are_held_for_as_long_as_it_takes(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.put({"slow.jsonl": rows_of(1)})
    mailbox.arrive(1)
    beats, seen = Beats(mailbox.sqs), []

    def wait() -> None:
        beats.outlive()
        seen.append(mailbox.queue.receive(1))

    between_look_and_load(monkeypatch, wait)
    assert mailbox.drain(beats, {"lease_seconds": 3}).deleted == 1
    assert seen == [[]]
    assert mailbox.rows() == [(1,)]


def test_a_lease_that_ends_in_the_middle_costs_work_and_no_rows(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stops for longer than its lease; another one loads meanwhile."""
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(5)})
    mailbox.arrive(5)
    monkeypatch.setattr("storeside.events.lease.Lease._beat", lambda self: None)
    first = mailbox.events_load(limits={"lease_seconds": 3})
    others: list[Any] = []

    def overtake() -> None:
        monkeypatch.setattr(object_loads, "look_at", look_at)
        mailbox.arrive(5)
        others.append(mailbox.drain())

    between_look_and_load(monkeypatch, overtake)
    held_up = threading.Thread(target=first.run)
    held_up.start()
    held_up.join()
    assert others[0].loaded == 5
    assert first.drained.loaded == 5  # it finds them loaded
    assert first.drained.deleted == 0  # by the other one
    assert mailbox.rows() == [(n,) for n in range(5)]
    assert mailbox.depth() == (0, 0)


def test_the_next_batch_is_received_meanwhile_and_given_back_when_this_one_cannot_be_loaded(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(35)})
    mailbox.arrive(35)

    def fail() -> None:
        until(lambda: mailbox.depth() == (5, 30), 10, "a batch to be received while two are loaded")
        raise TransferTransientError("ClickHouse does not answer")

    between_look_and_load(monkeypatch, fail)
    monkeypatch.setattr("storeside.events.object_loads._DELAYS", ())
    monkeypatch.setattr("storeside.events.load.backoff", lambda message: 0)
    with pytest.raises(EventTransientError):
        mailbox.drain(limits={"batch_messages": 10})
    assert mailbox.depth() == (35, 0)


def test_a_batch_is_loaded_while_another_one_waits_and_an_error_lets_the_other_one_finish(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch to be looked up waits until the other one is visible in the table, and then fails."""
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(20)})
    mailbox.arrive(20)
    mailbox.create("n Int32")
    first = iter([True])

    def wait() -> None:
        if next(first, False):
            until(lambda: len(mailbox.rows()) == 10, 30, "the second batch to be loaded meanwhile")
            raise TransferInputError("the first batch fails")

    between_look_and_load(monkeypatch, wait)
    with pytest.raises(TransferInputError, match="the first batch fails"):
        mailbox.drain(limits={"batch_messages": 10})
    assert mailbox.depth() == (10, 0)  # the messages of the first batch alone
    monkeypatch.undo()
    assert mailbox.drain().loaded == 10
    assert mailbox.rows() == [(n,) for n in range(20)]


def test_the_same_object_in_two_batches_at_the_same_time_is_loaded_once(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(10)})
    mailbox.arrive(10)
    mailbox.send(*(mailbox.record(f"{n}.jsonl") for n in range(10)))
    mailbox.create("n Int32")
    both = threading.Barrier(2, timeout=30)
    between_look_and_load(monkeypatch, lambda: both.wait() and None)
    found = mailbox.drain(limits={"batch_messages": 10})
    assert (found.loaded, found.dead, found.released) == (20, 0, 0)
    assert mailbox.rows() == [(n,) for n in range(10)]
    assert mailbox.depth() == (0, 0)


def test_what_a_killed_run_left_in_a_lane_is_dropped_by_its_next_try(mailbox: Mailbox) -> None:
    """The next try has a single batch, and so uses one lane."""
    mailbox.put({"0.jsonl": rows_of(0)})
    mailbox.arrive(1)
    mailbox.create("n Int32")
    load = mailbox.events_load(run_id="dag/run")
    left = f"storeside_staging.load_{load.objects.new_transfer(1).id}_0_{'a' * 8}_1"
    mailbox.clickhouse.command(f"CREATE TABLE {left} (n Int32) ENGINE = MergeTree ORDER BY n")
    assert load.run().loaded == 1
    assert mailbox.query(f"EXISTS {left}") == [(0,)]


def test_another_process_ends_the_queries_of_all_lanes(mailbox: Mailbox) -> None:
    """When the time of a deferred task is over, its trigger has left, and the task that wakes up cancels."""
    rows = b"n\n" + b"\n".join(b"%d" % n for n in range(400_000)) + b"\n"
    mailbox.put({f"{n}.csv": rows for n in range(20)})
    mailbox.arrive(20)
    mailbox.create("n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.0000025)")
    trigger = mailbox.events_load(limits={"batch_messages": 10}, format="csv", loader="pull", run_id="dag/run")
    ids = [trigger.objects.new_transfer(lane).id for lane in (0, 1)]

    def reading() -> list[bool]:
        text = "SELECT query_id FROM system.processes WHERE startsWith(query_id, 'storeside-load_')"
        queries = [query for (query,) in mailbox.query(text)]
        return [any(query.startswith(f"storeside-load_{id}_") for query in queries) for id in ids]

    def leave() -> None:
        with pytest.raises(LeftError):
            trigger.run()

    thread = threading.Thread(target=leave)
    thread.start()
    until(lambda: reading() == [True, True], 30, "a query of each lane")
    trigger.leave()
    assert reading() == [True, True]
    mailbox.events_load(format="csv", loader="pull", run_id="dag/run").cancel()
    until(lambda: reading() == [False, False], 3, "end of both")
    thread.join(20)
    assert mailbox.query(f"SELECT count() FROM {mailbox.table}") == [(0,)]


def test_the_next_try_of_a_run_reports_what_the_first_one_did(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"poison.jsonl": b"no json\n", **{f"{n}.jsonl": rows_of(n) for n in range(9)}})
    mailbox.arrive(10)
    first = mailbox.events_load(run_id="dag/run")
    # all is settled when it dies, so the next attempt finds an empty queue
    monkeypatch.setattr(first.ledger, "record_depth", lambda *_: first.drained.messages and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.run()
    done = first.drained
    assert (done.messages, done.loaded, done.deleted, done.dead, done.rows) == (10, 9, 9, 1, 9)
    again = mailbox.drain(run_id="dag/run")
    assert (again.messages, again.loaded, again.deleted, again.dead, again.rows) == (9, 9, 9, 0, 9)
    assert again.bytes == done.bytes
    assert mailbox.drain(run_id="dag/run2") == Drained(seconds=ANY)


def test_two_at_once_share_the_queue(mailbox: Mailbox) -> None:
    mailbox.put({f"{n:02}.jsonl": rows_of(n) for n in range(60)})
    mailbox.arrive(60)
    mailbox.create("n UInt32")
    loads = [mailbox.events_load(limits={"batch_messages": 15}) for _ in range(2)]
    threads = [threading.Thread(target=load.run) for load in loads]
    for thread in threads:
        thread.start()
    mailbox.load(format="jsonl")  # and a transfer that polls
    for thread in threads:
        thread.join()
    assert sum(load.drained.deleted for load in loads) == 60
    assert mailbox.rows() == [(n,) for n in range(60)]
    assert mailbox.depth() == (0, 0)


def test_limits_bound_a_run(mailbox: Mailbox) -> None:
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(25)})
    mailbox.arrive(25)
    assert mailbox.drain(limits={"messages": 10}).messages == 10
    assert mailbox.depth() == (15, 0)
    assert mailbox.drain(limits={"seconds": 0}).messages == 0
    small = mailbox.drain(limits={"batch_bytes": 1, "batch_messages": 1000})  # ten at a time
    assert (small.messages, small.loaded) == (15, 15)


def test_bytes_of_new_objects_bound_a_run(mailbox: Mailbox) -> None:
    mailbox.silence()
    for n in range(30):
        mailbox.send(mailbox.record(f"{n:02}.jsonl", size=100))
        mailbox.send(mailbox.record(f"{n:02}.jsonl", "ObjectRemoved:Delete", size=10_000))  # of no new object
    received = mailbox.drain(limits={"bytes": 1001, "batch_messages": 10}).messages
    assert 21 <= received <= 39  # every second one, ten at a time
    assert received % 10 == 0
    assert mailbox.depth() == (60 - received, 0)
    assert mailbox.drain().messages == 60 - received  # no limit


def test_a_stopped_run_gives_everything_back_at_once(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(5)})
    mailbox.arrive(5)
    load = mailbox.events_load()
    between_look_and_load(monkeypatch, load.cancel)
    with pytest.raises(Exception, match="stopped"):
        load.run()
    assert mailbox.depth() == (5, 0)
    monkeypatch.undo()
    assert mailbox.drain().loaded == 5


def test_a_queue_that_is_deleted_and_made_again(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.put({"a.jsonl": rows_of(1)})
    mailbox.arrive(1)

    def delete() -> None:
        mailbox.sqs.delete_queue(QueueUrl=mailbox.url)

    between_look_and_load(monkeypatch, delete)
    with pytest.raises(EventInputError, match=f"there is no queue {mailbox.name}: create it"):
        mailbox.drain()
    assert mailbox.rows() == [(1,)]
    monkeypatch.undo()
    mailbox.make_queue()
    mailbox.put({"b.jsonl": rows_of(2)})
    mailbox.arrive(1)
    assert mailbox.drain().loaded == 1
    assert mailbox.rows() == [(1,), (2,)]


def test_credentials_that_expire_in_the_middle(mailbox: Mailbox) -> None:
    from storeside.stack.servers import s3

    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(30)})
    mailbox.arrive(30)
    sqs = s3.of_stack("sqs", mailbox.stack)
    expired: list[str] = []

    class Body:
        def stream(self, **_: Any) -> Any:
            yield b'{"__type": "com.amazonaws.sqs#ExpiredToken", "message": "The security token is expired"}'

    def answer(request: Any, **_: Any) -> Any:
        expired.append(request.headers["X-Amz-Target"].decode())
        return AWSResponse(request.url, 403, {"content-type": "application/x-amz-json-1.0"}, Body())

    def expire() -> None:
        sqs.meta.events.register("before-send.sqs", answer)

    sqs.meta.events.register("before-call.sqs.DeleteMessageBatch", lambda **_: expire() if not expired else None)
    with pytest.raises(EventTransientError, match="ExpiredToken"):
        mailbox.drain(sqs, {"batch_messages": 10, "lease_seconds": 3})
    assert expired
    assert len(mailbox.rows()) == 20  # the second batch is loaded while the first one is settled
    mailbox.arrive(30)  # none was deleted; they become visible when the lease is over
    assert mailbox.drain().deleted == 30
    assert mailbox.rows() == [(n,) for n in range(30)]


def test_a_clickhouse_that_does_not_answer_costs_no_message_a_try(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"a.jsonl": rows_of(1)})
    mailbox.arrive(1)

    tries: list[int] = []

    def fail(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise TransferTransientError("ClickHouse does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("storeside.transfer.run.engine.Transfer.run", fail)
        patch.setattr("storeside.events.object_loads._DELAYS", (0.01, 0.01))
        with pytest.raises(TriedOutError, match="ClickHouse does not answer"):
            mailbox.drain()
        assert len(tries) == 3  # and received once
        assert mailbox.depth() == (0, 1)  # it becomes visible in a quarter of a minute
        assert mailbox.drain().messages == 0
    (message,) = until(lambda: mailbox.queue.receive(30, 1), 20, "the message")
    assert message.receives == 2
    mailbox.queue.extend([message], 0)
    assert mailbox.drain().loaded == 1


def test_a_fault_that_passes_while_messages_are_held_costs_nothing(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"a.jsonl": rows_of(1)})
    mailbox.arrive(1)
    monkeypatch.setattr("storeside.events.object_loads._DELAYS", (0.01,))
    run, faults = Transfer.run, [TransferTransientError("S3 asks for fewer requests")]

    def fail_once(*given: Any) -> Any:
        if faults:
            raise faults.pop()
        return run(*given)

    monkeypatch.setattr(Transfer, "run", fail_once)
    assert mailbox.drain().loaded == 1
    assert mailbox.depth() == (0, 0)


@pytest.mark.parametrize(("receives", "seconds"), [(1, 15), (2, 30), (6, 480), (7, 900), (99, 900)])
def test_messages_wait_longer_each_time(receives: int, seconds: int) -> None:
    assert backoff(Message("id", "handle", "", 0.0, receives)) == seconds


def test_a_bucket_that_is_gone_is_no_reason_to_forget_its_events(mailbox: Mailbox) -> None:
    mailbox.create("n UInt32")
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody="{}")
    mailbox.send(mailbox.record("a.jsonl"))
    mailbox.s3.delete_bucket(Bucket=mailbox.bucket)
    with pytest.raises(TransferInputError, match="there is no bucket"):
        mailbox.drain()
    assert mailbox.depth() == (2, 0)


def test_fifo(stack: Any, clickhouse: Any, s3_client: Any, sqs_client: Any) -> None:
    mailbox = Mailbox(stack, clickhouse, s3_client, sqs_client, fifo=True)
    mailbox.put({f"{n}.jsonl": rows_of(n) for n in range(6)})
    for n in range(6):
        mailbox.send(mailbox.record(f"{n}.jsonl"), group=f"g{n % 2}")
    mailbox.sqs.send_message(
        QueueUrl=mailbox.url, MessageBody="poison", MessageGroupId="g0", MessageDeduplicationId="p"
    )
    mailbox.send(mailbox.record("5.jsonl"), group="g0")
    found = mailbox.drain()
    assert (found.deleted, found.dead) == (7, 1)
    assert mailbox.rows() == [(n,) for n in range(6)]
    assert set(mailbox.dead()) == {"poison"}
    dead_letters = DeadLetters(mailbox.queue)
    assert dead_letters.redrive() == 1
    assert mailbox.drain().dead == 1
    assert len(dead_letters.listed()) == 1


def test_wrong_queues_are_refused_before_anything_is_received(mailbox: Mailbox) -> None:
    with pytest.raises(
        EventInputError, match="there is no queue no-such-queue: create it, or correct its name or region"
    ):
        Queue.find(mailbox.sqs, "no-such-queue")
    url, _ = mailbox._queue(f"plain-{mailbox.name}", {})
    mailbox.sqs.send_message(QueueUrl=url, MessageBody="{}")
    mailbox.url = url
    with pytest.raises(EventInputError, match=r"has no dead-letter queue.* give it a RedrivePolicy"):
        mailbox.drain()
    assert mailbox.depth() == (1, 0)
    with pytest.raises(EventInputError, match="all_or_nothing"):
        mailbox.drain(all_or_nothing=True)
    for wrong in ({"messages": 0}, {"lease_seconds": 1}, {"batch_bytes": 0}, {"bytes": -1}):
        with pytest.raises(EventInputError, match=next(iter(wrong))):
            mailbox.drain(limits=wrong)


def test_archived_objects_are_no_dead_letters(mailbox: Mailbox) -> None:
    for n in range(6):
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key=f"{n}.jsonl", Body=rows_of(n), StorageClass="GLACIER")
    mailbox.arrive(6)
    found = mailbox.drain()
    assert (found.messages, found.loaded, found.released, found.dead) == (6, 0, 6, 0)
    assert all("it is archived" in reason for [(_, reason)] in mailbox.events().values())
