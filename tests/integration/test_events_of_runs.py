"""Batches of events that pass from a watcher to a run, and from one task of a run to another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from storeside.aistore.names import PROBES
from storeside.events.batches import Batches
from storeside.events.following import Following
from storeside.events.lease import Lease, take_or_receive
from storeside.events.load import EventLoad
from storeside.events.processed import settle_processed
from storeside.events.queue import Message, Queue
from storeside.events.settle import Settled
from storeside.events.watch import Watch, Window
from storeside.ledger.listing import Row
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.speech.recordings import settle_run
from tests.mailboxes import Beats, Mailbox
from tests.support import next_second, unique, until
from tests.transfers import jsonl

# --- a watcher and the run that it starts


@pytest.fixture
def lease(mailbox: Mailbox) -> Iterator[Lease]:
    mailbox.sqs = Beats(mailbox.sqs)
    with Lease(mailbox.queue, 3) as lease:
        yield lease


def watch(mailbox: Mailbox, lease: Lease, **window: float) -> Watch:
    settings = {"messages": 10, "seconds": 0.0, "repeat_seconds": 1.0, **window}
    return Watch(mailbox.queue, mailbox.client(), lease, Window(**settings))  # type: ignore[arg-type]


def run_of(mailbox: Mailbox, told: dict[str, Any], **limits: Any) -> EventLoad:
    load = mailbox.events_load(limits=limits)
    load.run([told["batch"]])
    return load


def test_one_batch_at_a_time_and_the_next_when_the_run_is_done(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.put({f"{n:02}.jsonl": jsonl([{"n": n}]) for n in range(25)})
    mailbox.arrive(25)
    watcher = watch(mailbox, lease, repeat_seconds=60)
    told = watcher.step()
    assert told
    assert (told["queue"], told["messages"], told["objects"], told["bytes"]) == (mailbox.name, 10, 10, 90)
    assert told["events"][0] == {
        "event": "ObjectCreated:Put", "bucket": mailbox.bucket, "key": "00.jsonl", "bytes": 9,
    }  # fmt: skip
    assert watcher.step() is None
    assert isinstance(mailbox.sqs, Beats)
    mailbox.sqs.outlive()
    assert mailbox.depth() == (15, 10)
    assert run_of(mailbox, told, messages=1).drained.messages == 20  # its batch, and ten from the queue
    assert mailbox.depth() == (5, 0)
    second = watcher.step()
    assert second
    assert second["messages"] == 5
    assert run_of(mailbox, second).drained.loaded == 5
    assert mailbox.rows() == [(n,) for n in range(25)]
    assert watcher.step() is None


def test_what_asks_for_nothing_starts_no_run(mailbox: Mailbox, lease: Lease) -> None:
    probe = f"{PROBES}1"
    mailbox.sqs.send_message(QueueUrl=mailbox.url, MessageBody='{"Event": "s3:TestEvent"}')
    mailbox.send(mailbox.record(probe))
    watcher = watch(mailbox, lease)
    until(lambda: watcher.step() or len(mailbox.events()) == 2, 10, "end of both")
    assert mailbox.depth() == (0, 0)
    assert mailbox.events()[probe, "ObjectCreated:Put"] == [
        ("skipped", "Storeside wrote the object to test or measure the bucket")
    ]
    mailbox.send(mailbox.record(probe), mailbox.record("a.jsonl"))  # but events that come with others do
    told = until(watcher.step, 10, "batch")
    assert told["messages"] == 1
    assert run_of(mailbox, told).drained.skipped == 2


def test_what_an_event_says_is_bounded(mailbox: Mailbox, lease: Lease) -> None:
    records = [mailbox.record("k" * 200 + str(n)) for n in range(200)]
    mailbox.send(*records[:100])
    mailbox.send(*records[100:])
    told = watch(mailbox, lease).step()
    assert told
    assert (told["messages"], told["objects"], len(told["events"])) == (2, 200, 50)
    assert len(json.dumps(told)) < 32_000


def test_a_batch_is_told_of_again_until_a_run_takes_it(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.send(mailbox.record("gone.jsonl"))
    watcher = watch(mailbox, lease)
    told = watcher.step()
    assert told
    assert watcher.step() is None
    assert until(watcher.step, 5, "repetition") == told
    run_of(mailbox, told)
    mailbox.arrive(0)
    assert watcher.step() is None


def test_a_paused_dag_costs_its_messages_one_receive(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    watcher = watch(mailbox, lease, repeat_seconds=60, untaken_seconds=1, ring_seconds=1)
    told = watcher.step()
    assert told
    for _ in range(3):
        rung = until(watcher.step, 30, "event without a batch")
        assert (rung["batch"], rung["messages"]) == ("", 1)
    assert mailbox.depth() == (1, 0)
    (message,) = mailbox.queue.receive(1)
    assert message.receives == 2  # the watcher's and this one
    mailbox.queue.extend([message], 0)
    assert run_of(mailbox, told).drained.loaded == 1  # resumed: its batch is gone, so it takes from the queue
    mailbox.put({"b.jsonl": jsonl([{"n": 2}])})
    assert until(watcher.step, 5, "next batch")["messages"] == 1


def test_a_watcher_that_is_back_after_a_pause_rings_at_once(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    assert watch(mailbox, lease).step()  # Airflow ends it when the DAG is paused
    batches = Batches(mailbox.client(), mailbox.url)
    until(lambda: batches.unsettled()[0][2] > 1, 30, "batch that no run takes")
    rung = watch(mailbox, lease, untaken_seconds=1, ring_seconds=300).step()
    assert rung
    assert (rung["batch"], rung["messages"]) == ("", 1)


@pytest.mark.guarantee("follower")
def test_a_watcher_leaves_a_queue_to_the_task_that_follows_it(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.create("n UInt32")
    mailbox.put({"1.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    watcher = watch(mailbox, lease, repeat_seconds=60, followed_seconds=1)
    assert watcher.step()  # of a paused DAG: no run takes the batch
    told = []

    def loaded(count: int) -> bool:
        told.append(watcher.step())
        return mailbox.rows() == [(n,) for n in range(1, count + 1)]

    follower = mailbox.events_load(limits={"seconds": 40, "idle_seconds": 40})
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(follower.run)
        try:
            until(lambda: loaded(1), 20, "row of the batch")
            for n in range(2, 6):
                mailbox.put({f"{n}.jsonl": jsonl([{"n": n}])})
                until(lambda: loaded(n), 10, "row of an object")  # noqa: B023
        finally:
            follower.cancel()
        run.result(30)
    assert not any(told)
    mailbox.put({"6.jsonl": jsonl([{"n": 6}])})  # no task follows any more
    mailbox.arrive(1)
    assert until(watcher.step, 10, "next batch")["messages"] == 1


def test_a_follower_that_was_killed_counts_for_a_while(
    mailbox: Mailbox, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = watch(mailbox, lease)
    with monkeypatch.context() as killed:
        killed.setattr(Following, "__exit__", lambda following, *_: following._end.set())
        mailbox.drain(limits={"seconds": 1, "idle_seconds": 1})
    mailbox.put({"1.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    assert watcher.step() is None
    assert mailbox.depth() == (1, 0)
    monkeypatch.setattr("storeside.events.following._COUNTS_SECONDS", 0)  # a minute later
    assert until(watcher.step, 10, "next batch")["messages"] == 1


def test_a_batch_that_a_run_takes_at_the_last_moment_is_the_runs(
    mailbox: Mailbox, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.put({"1.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    watcher = watch(mailbox, lease, untaken_seconds=0)
    told = watcher.step()
    assert told
    unsettled = watcher.batches.unsettled

    def take() -> Any:
        found = unsettled()
        assert watcher.batches.take(told["batch"], "dag/run")
        return found

    monkeypatch.setattr(watcher.batches, "unsettled", take)
    watcher.step()
    assert watcher.batches.state(told["batch"]) == ("taken", "dag/run")
    assert mailbox.depth() == (0, 1)


# Seconds.
AGE = 1000.0


def depths(mailbox: Mailbox) -> list[tuple[int, int, float]]:
    """Return the recorded depths of the queue: messages that are visible, those that are not, and the age."""
    return mailbox.query(
        "SELECT visible, in_flight + delayed, oldest_seconds FROM storeside.queue_depths WHERE queue = {q:String}"
        " ORDER BY recorded_at",
        q=mailbox.url,
    )


@pytest.fixture
def sent_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be `AGE` older than they are, so that an age that begins again is seen."""
    receive = Queue.receive

    def older(*given: Any) -> list[Message]:
        return [replace(message, sent=message.sent - AGE) for message in receive(*given)]

    monkeypatch.setattr(Queue, "receive", older)


@pytest.mark.usefixtures("sent_long_ago")
def test_the_age_of_the_oldest_message_goes_on_while_it_is_not_done(mailbox: Mailbox) -> None:
    """Held for a run, in the batch of a run, released because the DAG is paused, and with a new watcher."""
    window = {"repeat_seconds": 60, "ring_seconds": 60, "depth_seconds": 0}
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    with Lease(mailbox.queue, 30) as lease:
        watcher = watch(mailbox, lease, untaken_seconds=60, **window)
        told = watcher.step()
        assert told
        assert depths(mailbox) == []  # nothing waits for it
        assert watcher.step() is None
        Batches(mailbox.client(), mailbox.url).take(told["batch"], "d/r")
        assert watcher.step() is None
    with Lease(mailbox.queue, 30) as lease:
        paused = watch(mailbox, lease, untaken_seconds=0, taken_seconds=60, **window)
        Batches(mailbox.client(), mailbox.url)._record(told["batch"], "open", 1, "")
        assert paused.step()  # it fires
        for _ in range(2):
            assert paused.step() is None
    assert [row[:2] for row in depths(mailbox)] == [(0, 1), (0, 1), (0, 1), (1, 0), (1, 0)]
    with Lease(mailbox.queue, 30) as lease:
        late = watch(mailbox, lease, **window)
        assert late.step()
        assert late.step() is None
    ages = [age for _, _, age in depths(mailbox)]
    assert ages == sorted(ages)
    assert ages[0] > AGE
    assert ages[-1] <= time.time() - mailbox.queue.receive(0)[0].sent
    assert mailbox.drain().loaded == 1
    assert depths(mailbox)[-1] == (0, 0, 0.0)


@pytest.mark.usefixtures("sent_long_ago")
def test_a_run_that_ends_early_leaves_an_age(mailbox: Mailbox) -> None:
    mailbox.put({f"{n}.jsonl": jsonl([{"n": n}]) for n in range(12)})
    mailbox.arrive(12)
    assert mailbox.drain(limits={"messages": 10}).messages == 10
    ((*_, begun), (visible, hidden, age)) = depths(mailbox)
    assert (visible, hidden) == (2, 0)
    assert begun > AGE
    assert age > AGE
    assert mailbox.drain(limits={"seconds": 0}).messages == 0
    assert depths(mailbox)[-1][2] >= age


def test_a_queue_without_dead_letters_is_watched(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.url, _ = mailbox._queue(f"plain-{mailbox.name}", {})
    assert watch(mailbox, lease).step() is None
    assert depths(mailbox) == [(0, 0, 0.0)]


def test_another_watcher_goes_on_with_the_batch_of_one_that_was_killed(mailbox: Mailbox) -> None:
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    mailbox.sqs = Beats(mailbox.sqs)
    with Lease(mailbox.queue, 3) as killed:
        told = watch(mailbox, killed).step()
    with Lease(mailbox.queue, 3) as lease:
        watcher = watch(mailbox, lease)
        assert watcher.step() is None
        assert isinstance(mailbox.sqs, Beats)
        mailbox.sqs.outlive()
        assert mailbox.depth() == (0, 1)
        assert until(watcher.step, 30, "repetition") == told


def test_the_next_run_gets_what_a_failed_one_could_not_settle(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    watcher = watch(mailbox, lease, failed_seconds=1)
    told = watcher.step()
    assert told
    batches = Batches(mailbox.client(), mailbox.url)
    assert len(batches.take(told["batch"], "dag/failed")) == 1
    assert until(watcher.step, 20, "word of the batch once more")["batch"] == told["batch"]
    since = time.monotonic()
    assert until(watcher.step, 20, "word of the batch again")["batch"] == told["batch"]
    assert time.monotonic() - since > 1.8  # twice as long
    assert take_or_receive(mailbox.queue, mailbox.client(), "other/run", [told["batch"]], 10, 3) == 0
    load = mailbox.events_load()
    load.run_id = "dag/next"
    assert load.run().loaded == 1
    assert batches.state(told["batch"]) == ("settled", "dag/next")
    assert mailbox.depth() == (0, 0)


def test_a_batch_belongs_to_one_run(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.send(mailbox.record("a.jsonl"))
    told = watch(mailbox, lease).step()
    assert told
    batches = Batches(mailbox.client(), mailbox.url)
    assert len(batches.take(told["batch"], "one")) == 1
    assert len(batches.take(told["batch"], "one")) == 1  # a retry
    assert batches.take(told["batch"], "another") == []
    assert batches.take("unknown", "one") == []
    batches.settled(told["batch"], "one")
    assert batches.take(told["batch"], "one") == []
    assert batches.messages(told["batch"]) == []


def test_a_run_leaves_the_batch_of_another_dag_alone(mailbox: Mailbox, lease: Lease) -> None:
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    told = watch(mailbox, lease).step()
    assert told
    batches = Batches(mailbox.client(), mailbox.url)
    assert len(batches.take(told["batch"], "a/run")) == 1
    assert mailbox.events_load(run_id="b/run").run([told["batch"]]).messages == 0
    assert batches.state(told["batch"]) == ("taken", "a/run")
    assert mailbox.events_load(run_id="a/run").run().loaded == 1
    assert batches.state(told["batch"]) == ("settled", "a/run")


def test_a_batch_whose_leases_have_expired_is_settled(mailbox: Mailbox, lease: Lease) -> None:
    """ClickHouse deletes the leases of a batch after a day; SQS delivers its messages again."""
    mailbox.put({"a.jsonl": jsonl([{"n": 1}])})
    mailbox.arrive(1)
    told = watch(mailbox, lease).step()
    assert told
    mailbox.clickhouse.command(f"ALTER TABLE storeside.event_leases DROP PARTITION '{told['batch']}'")
    run_of(mailbox, told)
    assert Batches(mailbox.client(), mailbox.url).state(told["batch"])[0] == "settled"


# --- the first and the last task of a run of the speech pipeline


class Run:
    """A run that leases recordings' events at its start, and settles at its end."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.client = mailbox.client()
        self.id = unique("run")
        Ledger(self.client).create()

    def lease(self, batches: tuple[str, ...] = ()) -> int:
        return take_or_receive(self.mailbox.queue, self.client, self.id, batches, 200, 60)

    def settle(self, prefix: str = "", *, source: str = "", complete: bool = True) -> Settled:
        source = source or f"s3://{self.mailbox.bucket}"
        return settle_run(
            self.mailbox.queue, self.client, self.mailbox.s3, self.id, source, prefix, complete=complete
        )

    def settle_tasks(self, prefix: str = "", *, complete: bool = True, **names: str) -> Settled:
        """Settle a run that transforms or loads the objects of the bucket; see `settle_processed`."""
        source = f"s3://{self.mailbox.bucket}"
        return settle_processed(
            self.mailbox.queue, self.client, self.mailbox.s3, self.id, source, prefix, complete=complete, **names
        )

    def loaded_into(self, table: str, bucket: str, key: str, version: str) -> None:
        """Record that a version of an object is loaded into a table."""
        self.client.insert(
            "storeside.loads",
            [[table, bucket, key, version, "loaded"]],
            column_names=["destination", "bucket", "key", "version", "state"],
            settings={"async_insert": 0},
        )

    def loaded(self, key: str, etag: str) -> None:
        """Record that a recording is in the manifest."""
        self.client.insert(
            "speech.manifest",
            [["ais://speech", f"{self.mailbox.bucket}/{key}", f"s3://{self.mailbox.bucket}", key, etag, self.id]],
            column_names=["bucket", "object", "source_bucket", "source_object", "source_version", "run_id"],
            settings={"async_insert": 0},
        )

    def ledger_row(
        self, source: str, destination: str, key: str, result: str, status: str, version: str = "v",
        listed: float | None = None,
    ) -> None:  # fmt: skip
        """Record the outcome of a version, which was listed at a time: now by default; 0 in rows of version 0.1.0."""
        reason = "broken" if status == "failed" else ""
        row = {
            "source": source, "destination": destination, "object": key, "version": version,
            "destination_object": result, "status": status, "reason": reason,
            "listed_at": time.time() if listed is None else listed,
        }  # fmt: skip
        insert = f"INSERT INTO storeside.objects ({', '.join(row)}) SETTINGS async_insert = 0 FORMAT JSONEachRow "
        self.client.command(insert + json.dumps(row))


@pytest.fixture
def run(mailbox: Mailbox) -> Run:
    return Run(mailbox)


def put(mailbox: Mailbox, *keys: str) -> dict[str, str]:
    """Put objects and return their ETags, once their events are in the queue."""
    before = mailbox.depth()[0]
    etags = {
        key: mailbox.s3.put_object(Bucket=mailbox.bucket, Key=key, Body=key.encode())["ETag"].strip('"')
        for key in keys
    }
    mailbox.arrive(before + len(keys))
    return etags


def test_recordings_that_are_done_failed_and_not_there_yet(mailbox: Mailbox, run: Run) -> None:
    name = "wy\u0144ik/a b+c%20d.flac"  # URL-encoded in the event
    etags = put(mailbox, name, "copy-failed.flac", "transcode-failed.flac", "unknown.flac", "gone.flac")
    mailbox.s3.delete_object(Bucket=mailbox.bucket, Key="gone.flac")
    mailbox.arrive(6)
    assert run.lease() == 6
    assert run.lease() == 6  # a retry keeps its lease
    assert mailbox.depth() == (0, 6)
    run.loaded(name, etags[name])
    run.ledger_row(f"s3://{mailbox.bucket}", "ais://recordings", "copy-failed.flac", "", "failed")
    results = f"ais://{mailbox.bucket}"
    run.ledger_row(f"s3://{mailbox.bucket}", results, "transcode-failed.flac", "transcode-failed.flac", "done")
    run.ledger_row(results, "ais://speech", "transcode-failed.flac", "transcode-failed.wav", "failed")
    run.ledger_row("s3://elsewhere", "ais://elsewhere", "unknown.flac", "", "failed")  # of this name in another run
    assert run.settle() == Settled(deleted=3, released=1, dead=2)
    assert mailbox.dead() == {
        "copy-failed.flac": f"s3://{mailbox.bucket}/copy-failed.flac: broken",
        "transcode-failed.flac": f"s3://{mailbox.bucket}/transcode-failed.flac: broken",
    }
    assert mailbox.depth() == (0, 1)  # released with a delay
    assert mailbox.events()["unknown.flac", "ObjectCreated:Put"][0][0] == "released"
    assert run.settle() == Settled()


def test_many_recordings_are_looked_up_together(mailbox: Mailbox, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["a\tb\nc.flac", "it's \"\\ wy\u0144ik.flac", *(f"{n}.flac" for n in range(118))]
    for key in keys:
        mailbox.send(mailbox.record(key, etag=f"etag of {key[0]}"))
        run.loaded(key, f"etag of {key[0]}")
    assert run.lease() == len(keys) == 120
    statements: list[str] = []
    query = run.client.query
    monkeypatch.setattr(run.client, "query", lambda text, **more: statements.append(text) or query(text, **more))
    assert run.settle() == Settled(deleted=120)
    assert len([text for text in statements if "speech.manifest" in text]) == 1
    assert mailbox.depth() == (0, 0)


def test_folder_markers_start_no_run_and_end_none(mailbox: Mailbox, run: Run, lease: Lease) -> None:
    markers = ("x/", "x/y z/", "old_$folder$")
    for key in markers:
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key=key)
    mailbox.arrive(len(markers))
    watcher = watch(mailbox, lease)
    until(lambda: watcher.step() or len(mailbox.events()) == len(markers), 10, "end of all")
    assert mailbox.depth() == (0, 0)
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="x/empty.flac")
    mailbox.arrive(1)
    for key in markers:  # if the event does not state the size of the object
        mailbox.send(mailbox.record(key, size=None))
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="x/_SUCCESS")
    mailbox.arrive(1)
    assert run.lease() == 5
    assert run.settle() == Settled(deleted=4, released=1)  # an empty recording is not one of them
    assert mailbox.dead() == {}
    assert mailbox.events()["x/_SUCCESS", "ObjectCreated:Put"][0][0] == "skipped"
    skipped = ("skipped", "it is a folder marker")
    for key in markers:
        assert mailbox.events()[key, "ObjectCreated:Put"] == [skipped] * 2


def test_a_bad_recording_that_is_put_again_as_it_was(mailbox: Mailbox, run: Run) -> None:
    """Its version failed for good, so no run tries it again: the reason is that of the version."""
    keys = ("copy.flac", "transcode.flac", "changed.flac")
    source, results = f"s3://{mailbox.bucket}", f"ais://{mailbox.bucket}"
    etags = put(mailbox, *keys)
    for key, etag in {**etags, "changed.flac": "of an earlier content"}.items():
        copied = "failed" if key == "copy.flac" else "done"
        run.ledger_row(source, results, key, "" if copied == "failed" else key, copied, etag)
        if copied == "done":
            run.ledger_row(results, "ais://speech", key, "", "failed")
    mailbox.sqs.purge_queue(QueueUrl=mailbox.url)
    next_second()
    assert put(mailbox, *keys) == etags
    assert run.lease() == 3
    assert run.settle() == Settled(released=1, dead=2)
    assert mailbox.dead() == {key: f"{source}/{key}: broken" for key in keys[:2]}


def test_what_is_given_back_says_why(mailbox: Mailbox, run: Run) -> None:
    put(mailbox, "in/a.flac", "other/b.flac")
    assert run.lease() == 2
    run.settle("in/")
    put(mailbox, "in/c.flac")
    broken_off = Run(mailbox)
    assert broken_off.lease() == 1
    broken_off.settle(complete=False)
    ((_, missing),), ((_, other),), ((_, later),) = (
        mailbox.events()[key, "ObjectCreated:Put"] for key in ("in/a.flac", "other/b.flac", "in/c.flac")
    )
    assert (
        "neither speech.manifest nor storeside.objects has an outcome of the recording: start speech_pipeline"
        in missing
    )
    assert other == f"the last run with its event processes only s3://{mailbox.bucket}/in/*"
    assert later == "the run ended before it reached this recording: its log has the reason"


def test_keys_may_be_long(mailbox: Mailbox, run: Run) -> None:
    """All of a batch's keys together exceed ClickHouse's limit for a parameter."""
    name = "'" * 1000
    for part in range(2):
        mailbox.send(*(mailbox.record(f"{part}/{n:03}{name}") for n in range(100)))
    assert run.lease() == 2
    assert run.settle() == Settled(deleted=2)


@pytest.mark.usefixtures("sent_long_ago")
def test_what_a_run_did_not_get_to_is_not_to_blame(mailbox: Mailbox, run: Run) -> None:
    put(mailbox, "in/a.flac", "other/b.flac")
    assert run.lease() == 2
    assert run.settle("in/") == Settled(released=2)
    assert mailbox.depth() == (0, 2)  # both become visible after a while, including that of the other prefix
    ((*hidden, age),) = depths(mailbox)
    assert hidden == [0, 2]
    assert age > AGE
    failures = mailbox.query(
        "SELECT key, failures FROM storeside.events FINAL WHERE queue = {q:String}", q=mailbox.url
    )
    assert sorted(failures) == [("in/a.flac", 1), ("other/b.flac", 0)]
    put(mailbox, "in/c.flac")
    broken_off = Run(mailbox)
    assert broken_off.lease() == 1
    assert broken_off.settle(complete=False) == Settled(released=1)
    put(mailbox, "in/d.flac")
    of_another_bucket = Run(mailbox)
    assert of_another_bucket.lease() == 1
    assert of_another_bucket.settle(source="s3://elsewhere") == Settled(released=1)
    failures = "SELECT max(failures) FROM storeside.events FINAL WHERE queue = {q:String} AND key = {k:String}"
    for key in ("in/c.flac", "in/d.flac"):
        assert mailbox.query(failures, q=mailbox.url, k=key) == [(0,)]
    assert mailbox.depth() == (0, 4)


def test_an_object_that_was_overwritten_after_its_event(mailbox: Mailbox, run: Run) -> None:
    put(mailbox, "late.flac")
    put(mailbox, "late.flac")
    newest = mailbox.s3.put_object(Bucket=mailbox.bucket, Key="late.flac", Body=b"new")["ETag"].strip('"')
    mailbox.arrive(3)
    assert run.lease() == 3
    run.loaded("late.flac", newest)
    assert run.settle() == Settled(deleted=3)
    assert mailbox.depth() == (0, 0)


@pytest.mark.guarantee("events-overwritten")
def test_a_recording_that_is_overwritten_while_it_is_processed(mailbox: Mailbox, run: Run) -> None:
    """The load or the failure of the version before is later than the event, but not of its version."""
    source = f"s3://{mailbox.bucket}"
    for n, (key, status) in enumerate({"a.flac": "done", "b.flac": "failed"}.items()):
        etag, listed = put(mailbox, key)[key], time.time()
        next_second()
        mailbox.s3.put_object(Bucket=mailbox.bucket, Key=key, Body=b"new")
        mailbox.arrive(2 * n + 2)
        run.ledger_row(source, "ais://speech", key, key, status, etag, listed)
        if status == "done":
            run.loaded(key, etag)
    assert run.lease() == 4
    assert run.settle(complete=False) == Settled(deleted=1, released=2, dead=1)
    assert mailbox.dead() == {"b.flac": f"{source}/b.flac: broken"}  # the message of the version that failed


@pytest.mark.parametrize("bucket", ["gone-by-now", "no/bucket", "x"])
@pytest.mark.parametrize("tasks", ["speech", "transform", "load"])
def test_an_event_of_another_bucket_holds_nothing_up(mailbox: Mailbox, run: Run, bucket: str, tasks: str) -> None:
    source, table = f"s3://{mailbox.bucket}", f"data.{unique('t')}"
    etag = put(mailbox, "a.flac")["a.flac"]
    foreign = mailbox.record("b.flac")
    foreign["s3"]["bucket"]["name"] = bucket
    mailbox.send(foreign)
    assert run.lease() == 2
    if tasks == "speech":
        run.loaded("a.flac", etag)
        settled = run.settle()
    elif tasks == "transform":
        run.ledger_row(source, "ais://words", "a.flac", "a.json", "done", etag)
        settled = run.settle_tasks(destination="ais://words")
    else:
        run.loaded_into(table, mailbox.bucket, "a.flac", etag)
        settled = run.settle_tasks(table=table)
    assert settled == Settled(deleted=1, released=1)
    ((state, reason),) = mailbox.events()["b.flac", "ObjectCreated:Put"]
    assert (state, reason) == ("released", f"the last run with its event processes only {source}/*")


# --- a run that transforms a bucket


def test_objects_that_a_transform_has_done_and_others(mailbox: Mailbox, run: Run) -> None:
    source, to = f"s3://{mailbox.bucket}", "ais://words"
    etags = put(mailbox, "in/done.txt", "in/same.txt", "in/bad.txt", "in/elsewhere.txt", "in/gone.txt", "other.txt")
    mailbox.s3.delete_object(Bucket=mailbox.bucket, Key="in/gone.txt")
    mailbox.arrive(7)
    assert run.lease() == 7
    run.ledger_row(source, to, "in/done.txt", "in/done.json", "done")
    run.ledger_row(source, to, "in/same.txt", "in/same.json", "done", etags["in/same.txt"])
    run.ledger_row(source, to, "in/bad.txt", "", "failed", etags["in/bad.txt"])
    run.ledger_row(source, "ais://other", "in/elsewhere.txt", "in/elsewhere.json", "done")
    assert run.settle_tasks("in/", destination=to) == Settled(deleted=4, released=2, dead=1)
    assert mailbox.dead() == {"in/bad.txt": f"{source}/in/bad.txt: broken"}
    reasons = {key: mailbox.events()[key, "ObjectCreated:Put"][0] for key in ("in/elsewhere.txt", "other.txt")}
    assert reasons["in/elsewhere.txt"][0] == "released"
    assert "Storeside's ledger has no outcome of the object" in reasons["in/elsewhere.txt"][1]
    assert reasons["other.txt"] == ("released", f"the last run with its event processes only {source}/in/*")
    assert run.settle_tasks("in/", destination=to) == Settled()


@pytest.mark.guarantee("events-overwritten")
@pytest.mark.parametrize("tasks", ["transform", "load", "facts"])
def test_an_object_that_is_overwritten_while_it_is_processed(mailbox: Mailbox, run: Run, tasks: str) -> None:
    """The run before recorded its version after the event of the next one, which this run has not reached."""
    source, to, facts, table = f"s3://{mailbox.bucket}", "ais://words", "ais://facts", f"data.{unique('t')}"
    etag, listed = put(mailbox, "a.txt")["a.txt"], time.time()
    next_second()
    mailbox.s3.put_object(Bucket=mailbox.bucket, Key="a.txt", Body=b"new")
    mailbox.arrive(2)
    run.ledger_row(source, to, "a.txt", "a.json", "done", etag, listed)
    run.ledger_row(to, facts, "a.json", "a.jsonl", "done", "")
    run.loaded_into(table, to, "a.json", "")
    run.loaded_into(table, facts, "a.jsonl", "")
    names = {"transform": {}, "load": {"table": table}, "facts": {"table": table, "facts": facts}}[tasks]
    assert run.lease() == 2
    assert run.settle_tasks(destination=to, complete=False, **names) == Settled(deleted=1, released=1)
    assert sorted(state for state, _ in mailbox.events()["a.txt", "ObjectCreated:Put"]) == ["loaded", "released"]


def test_an_object_that_was_overwritten_before_it_was_transformed(mailbox: Mailbox, run: Run) -> None:
    """Its last version is done, in a row of version 0.1.0, which does not state when the version was listed."""
    put(mailbox, "a.txt")
    etag = mailbox.s3.put_object(Bucket=mailbox.bucket, Key="a.txt", Body=b"new")["ETag"].strip('"')
    mailbox.arrive(2)
    run.ledger_row(f"s3://{mailbox.bucket}", "ais://words", "a.txt", "a.json", "done", etag, listed=0)
    assert run.lease() == 2
    assert run.settle_tasks(destination="ais://words") == Settled(deleted=2)


def test_a_version_counts_from_the_time_when_its_listing_began(run: Run) -> None:
    """Also if an earlier try of the run has listed the bucket before."""
    ledger, scope = Ledger(run.client), Scope("s3://in", f"ais://{run.id}", "effect", run.id)
    begun: list[float] = []

    def listing() -> Iterator[Row]:
        begun.append(time.time())
        next_second()
        yield "a", "a", 1, "v", ""

    for _ in range(2):
        called = int(time.time())
        ledger.record_listing(scope, "source", listing())
    ledger.record_listing(scope, "before", ())
    ledger.plan(scope, retry_failed=False, keeps_result=True)
    ledger.record_listing(scope, "after", [("", "a", 1, "1", "")])
    ledger.settle(scope, record_done=True, no_reason="")
    query = "SELECT toFloat64(listed_at) FROM storeside.objects WHERE run_id = {run_id:String}"
    ((listed,),) = run.client.query(query, parameters=scope.parameters).result_rows
    assert begun[0] < called <= listed <= begun[1]
    ledger.forget_listings(scope)
    query = "SELECT count() FROM storeside.listings WHERE job = {job:String}"
    assert run.client.query(query, parameters=scope.parameters).result_rows == [(0,)]


def test_a_transform_that_did_not_end_counts_no_failures(mailbox: Mailbox, run: Run) -> None:
    put(mailbox, "a.txt")
    assert run.lease() == 1
    assert run.settle_tasks(destination="ais://words", complete=False) == Settled(released=1)
    ((_, reason),) = mailbox.events()["a.txt", "ObjectCreated:Put"]
    assert reason == "the run ended before it reached this object: its log has the reason"
    counted = "SELECT max(failures) FROM storeside.events FINAL WHERE queue = {queue:String}"
    assert run.client.query(counted, parameters={"queue": mailbox.url}).result_rows == [(0,)]
