"""Copies and transforms on a real cluster: complete, or every missing object with its reason; even when killed."""

from __future__ import annotations

import io
import logging
import re
import time
import wave
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aistore.sdk.errors import AISError
from boto3.s3.transfer import TransferConfig
from requests import RequestException

from storeside.aistore import jobs, lock
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import list_s3
from storeside.errors import Transient
from storeside.ledger.objects import Ledger, LedgerTransientError
from storeside.stack import demo, speech_corpus
from storeside.stack.settings import Stack
from storeside.transform import bucket_job, submit
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.formats import AudioFormat
from tests.hostile_names import HOSTILE_NAMES
from tests.support import (
    contents,
    etl_servers,
    failures,
    process,
    put,
    read,
    set_properties,
    shared_etls,
    sizes,
    small_spec,
    transcode_spec,
    unique,
    until,
    versions,
)

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

MANY = 120
WAV = Naming(AudioFormat().extensions)
# words in the reason of each bad object; versions of libav differ in where they notice damage
REASONS = {
    "bad/corrupt-frames.flac": "no audio samples",
    "bad/damaged-middle.flac": "truncated|damaged flac data after",
    "bad/truncated.flac": "damaged flac data after",
    "bad/text.flac": "not an audio container",
    "bad/empty.flac": "empty",
    "bad/no-samples.flac": "no audio samples",
    "bad/no-frames.wav": "no audio samples",
}
Drive = Callable[[BucketJob], Summary]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Name and content of many distinct recordings, and of the bad objects."""
    folder = tmp_path_factory.mktemp("corpus")
    made = speech_corpus.make(demo.RECORDINGS, folder, MANY)
    return contents(folder, [o.name for o in made.objects])


def first(corpus: Mapping[str, bytes], count: int) -> dict[str, bytes]:
    return dict(list(corpus.items())[:count])


@dataclass
class Pair:
    """One test's bucket pair, and the jobs between the two."""

    client: Any
    ledger: Ledger
    source: Bucket
    destination: Bucket

    def job(self, run: str, spec: EtlSpec | None = None, **options: Any) -> BucketJob:
        naming = options.pop("naming", WAV if spec else None)
        listing = options.pop("list_source", None)
        options.setdefault("keep_etl", bool(spec) and spec.name in shared_etls())
        return BucketJob(
            self.client, self.ledger, self.source, self.destination,
            run_id=run, spec=spec, naming=naming, list_source=listing, options=Options(**options),
        )  # fmt: skip

    def reasons(self, run: str) -> dict[str, str]:
        return failures(self.ledger.client, run, self.destination)


def counters(pair: Pair) -> set[str]:
    """Return how often AIStore has counted each result as written: a lower bound, as it misses some."""
    return {version.partition("/")[0] for version in versions(pair.client, pair.destination).values()}


@pytest.fixture
def pair(aistore: Any, clickhouse: Any) -> Pair:
    """Two AIStore buckets; the destination does not exist yet."""
    source = Bucket("ais", unique("in"))
    source.handle(aistore).create()
    return Pair(aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")))


@pytest.fixture
def s3_pair(aistore: Any, clickhouse: Any, s3_client: Any) -> Pair:
    """An S3 bucket and an AIStore bucket."""
    source = Bucket("s3", unique("in"))
    s3_client.create_bucket(Bucket=source.name)
    return Pair(aistore, Ledger(clickhouse), source, Bucket("ais", unique("out")))


# ---- copies


def test_a_copy_gives_names_a_prefix(pair: Pair, corpus: dict[str, bytes], drive: Drive) -> None:
    put(pair.client, pair.source, first(corpus, 2))
    assert drive(pair.job("copy", naming=Naming(prepend="in/"))).done == 2
    assert sizes(pair.client, pair.destination).keys() == {f"in/{name}" for name in first(corpus, 2)}
    assert drive(pair.job("again", naming=Naming(prepend="in/"))).skipped == 2


def test_a_request_copies_more_objects_than_one_with_an_etl(
    pair: Pair, drive: Drive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(submit, "WINDOW", 1)
    monkeypatch.setattr(submit, "COPY_WINDOW", 4)
    put(pair.client, pair.source, {str(n): b"text" for n in range(6)})
    with caplog.at_level(logging.INFO):
        assert drive(pair.job("1")).done == 6
    assert re.findall(r"submitted (\d+) objects", caplog.text) == ["4", "2"]


@pytest.mark.guarantee("overwritten-recording")
def test_a_copy_takes_what_is_new_or_changed_and_nothing_else(
    s3_pair: Pair, s3_client: Any, corpus: dict[str, bytes], drive: Drive
) -> None:
    pair = s3_pair
    objects = {**first(corpus, 6), "some/empty.flac": b""}

    def upload(name: str, content: bytes) -> None:
        s3_client.put_object(Bucket=pair.source.name, Key=name, Body=content)
        objects[name] = content

    def copy(run: str, prefix: str = "") -> Summary:
        listing = pair.job(run, prefix=prefix, list_source=lambda: list_s3(s3_client, pair.source.name, prefix))
        return drive(listing)

    for name, content in dict(objects).items():
        upload(name, content)
    one = copy("prefix", "some/")
    assert (one.listed, one.done, one.failed) == (1, 1, 0), one
    assert sizes(pair.client, pair.destination) == {"some/empty.flac": 0}
    found = copy("all")
    assert (found.listed, found.done, found.failed, found.skipped) == (7, 6, 0, 1), found
    assert not list(jobs._jobs_between(pair.client, pair.source, pair.destination))
    assert found.bytes_in == found.bytes_out == sum(map(len, objects.values()))
    again = copy("again")
    assert (again.listed, again.done, again.failed, again.skipped) == (7, 0, 0, 7), again

    name = next(iter(objects))
    upload(name, objects[name][::-1])  # the same size
    upload("late/added.flac", b"anything")
    changed = copy("changed")
    assert (changed.listed, changed.done, changed.failed, changed.skipped) == (8, 2, 0, 6), changed
    assert {n: read(pair.client, pair.destination, n) for n in sizes(pair.client, pair.destination)} == objects


def test_what_the_source_keeps_from_a_copy_is_not_bad_for_good(
    s3_pair: Pair, s3_client: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, there = s3_pair, {"a": b"first", "b": b"second"}

    def listing() -> list[Any]:
        for name, content in there.items():
            s3_client.put_object(Bucket=pair.source.name, Key=name, Body=content)
        found = list(list_s3(s3_client, pair.source.name))
        s3_client.delete_object(Bucket=pair.source.name, Key="b")  # after it is listed, and before it is copied
        return found

    with monkeypatch.context() as silent:  # as if AIStore itself got no answer
        silent.setattr("storeside.transform.reasons.reasons_of_copies", lambda *_: iter(()))
        with pytest.raises(AIStoreTransientError, match=r"1 objects of .* such as 'b'"):
            drive(pair.job("1", list_source=listing))
    assert sizes(pair.client, pair.destination) == {"a": 5}
    assert not pair.reasons("1")
    gone = drive(pair.job("1"))
    assert (gone.done, gone.failed) == (1, 1), gone
    s3_client.put_object(Bucket=pair.source.name, Key="b", Body=there["b"])
    again = drive(pair.job("2", list_source=lambda: list_s3(s3_client, pair.source.name)))
    assert (again.done, again.failed, again.known_bad, again.skipped) == (1, 0, 0, 1), again
    assert sizes(pair.client, pair.destination) == {"a": 5, "b": 6}


def copy_and_die(job: BucketJob) -> None:
    """Copy all objects, but record nothing."""
    state = job.submit(job.begin())
    follower = job.follower(state, 60)
    until(lambda: follower.poll().finished, 60, "end of the copy")
    until(lambda: len(sizes(job.client, job.destination)) == state.pending, 60, "copies")


def upload(s3_client: Any, bucket: Bucket, contents: Mapping[str, bytes], part: int) -> None:
    """Upload in parts of `part` MB, as ``aws s3 cp`` does with objects larger than eight."""
    parts = TransferConfig(multipart_threshold=part << 20, multipart_chunksize=part << 20)
    for name, content in contents.items():
        s3_client.upload_fileobj(io.BytesIO(content), bucket.name, name, Config=parts)


@pytest.mark.parametrize("listed_by", ["S3", "AIStore"])
def test_copies_of_a_run_that_died_are_copies(
    s3_pair: Pair, s3_client: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch, listed_by: str
) -> None:
    pair = s3_pair
    large = {f"{n}.wav": bytes([n]) * (6 << 20) for n in range(4)}
    upload(s3_client, pair.source, {"small": b"small", **large}, 5)

    def job(run: str) -> BucketJob:
        listing = (lambda: list_s3(s3_client, pair.source.name)) if listed_by == "S3" else None
        return pair.job(run, list_source=listing)

    copy_and_die(job("dead"))
    before = versions(pair.client, pair.destination)
    monkeypatch.setattr(bucket_job, "RETRIES", 0)
    found = drive(job("next"))
    assert (found.done, found.failed) == (5, 0), found
    assert found.bytes_out == sum(map(len, large.values())) + 5
    assert versions(pair.client, pair.destination) == before
    assert drive(job("last")).skipped == 5


def test_the_same_content_in_other_parts_is_copied(s3_pair: Pair, s3_client: Any, drive: Drive) -> None:
    pair, large = s3_pair, {"a": b"a" * (12 << 20), "b": b"b" * (12 << 20)}

    def job(run: str) -> BucketJob:
        return pair.job(run, list_source=lambda: list_s3(s3_client, pair.source.name))

    put(pair.client, pair.destination, large)  # by another client
    upload(s3_client, pair.source, large, 8)
    assert drive(job("first")).done == 2
    upload(s3_client, pair.source, {"a": large["a"]}, 5)
    found = drive(job("again"))
    assert (found.done, found.failed, found.skipped) == (1, 0, 1), found


def test_what_was_there_and_is_not_of_the_source_is_no_copy(
    s3_pair: Pair, s3_client: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = s3_pair

    def job(run: str) -> BucketJob:
        return pair.job(run, list_source=lambda: list_s3(s3_client, pair.source.name))

    upload(s3_client, pair.source, {"a": b"a" * (6 << 20)}, 5)
    copy_and_die(job("dead"))
    upload(s3_client, pair.source, {"a": b"b" * (6 << 20)}, 5)
    monkeypatch.setattr(bucket_job, "RETRIES", 0)
    with monkeypatch.context() as silent:  # as if S3 gave AIStore no answer
        silent.setattr(BucketJob, "submit", lambda job, state: replace(state, job_id=""))
        with pytest.raises(AIStoreTransientError, match=r"1 objects of .* such as 'a'"):
            drive(job("next"))
    assert drive(job("next")).done == 1
    assert read(pair.client, pair.destination, "a") == b"b" * (6 << 20)


@pytest.mark.parametrize("checksum", ["xxhash2", "none"])
def test_copies_of_a_run_that_died_within_the_cluster_are_copies(
    stack: Stack, pair: Pair, drive: Drive, checksum: str
) -> None:
    for bucket in (pair.source, pair.destination):
        bucket.handle(pair.client).create(exist_ok=True)
        set_properties(stack, bucket.name, checksum={"type": checksum})
    contents = {"a": b"a", "b": b"bb", "empty": b""}
    put(pair.client, pair.source, contents)
    copy_and_die(pair.job("dead"))
    found = drive(pair.job("next"))
    assert (found.done, found.failed) == (3, 0), found
    assert {name: read(pair.client, pair.destination, name) for name in contents} == contents


# ---- transforms


@pytest.mark.guarantee("transform-complete", "lost-by-websocket", "broken-recording")
@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_a_transform_is_complete_or_says_what_is_missing_and_why(
    pair: Pair, corpus: dict[str, bytes], bad: dict[str, bytes], drive: Drive, communication: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(submit, "WINDOW", 4)
    good = first(corpus, 12)
    put(pair.client, pair.source, {**good, **bad})
    spec = transcode_spec(communication=communication)

    found = drive(pair.job("1", spec))
    assert (found.listed, found.done, found.failed, found.known_bad) == (19, 12, 7, 0), found
    reasons = pair.reasons("1")
    assert set(reasons) == set(bad)
    assert not {name: reason for name, reason in reasons.items() if not re.search(REASONS[name], reason)}
    assert len({e[0] for e in found.examples}) == 7

    results = sizes(pair.client, pair.destination)
    assert set(results) == {WAV.destination(name) for name in good}
    assert all(results.values())
    with wave.open(io.BytesIO(read(pair.client, pair.destination, min(results)))) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (16_000, 1, 2)

    again = pair.job("2", spec)
    assert again.begin().phase == "done"
    summary = drive(again)
    assert (summary.done, summary.failed, summary.known_bad, summary.skipped) == (0, 0, 7, 12), summary
    assert counters(pair) == {"1"}


@pytest.mark.parametrize("communication", ["ws", "hpush"])
@pytest.mark.parametrize("latest", [False, True])
def test_a_transform_of_s3_objects_that_are_not_cached_needs_no_second_job(
    s3_pair: Pair, s3_client: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch, communication: str, latest: bool
) -> None:
    monkeypatch.setattr(bucket_job, "RETRIES", 0)
    upload(s3_client, s3_pair.source, {f"{n}.txt": b"object %d" % n for n in range(8)}, part=8 << 20)
    upper = small_spec("upper", communication=communication)
    found = drive(s3_pair.job("1", upper, naming=None, latest=latest))
    assert (found.done, found.failed) == (8, 0), found
    assert read(s3_pair.client, s3_pair.destination, "7.txt") == b"OBJECT 7"
    upload(s3_client, s3_pair.source, {"new.txt": b"new"}, part=8 << 20)
    found = drive(s3_pair.job("2", upper, naming=None, latest=latest))
    assert (found.done, found.skipped, found.failed) == (1, 8, 0), found


def test_a_result_that_is_made_again_as_it_was_is_a_result(pair: Pair, drive: Drive) -> None:
    put(pair.client, pair.source, {f"{n}.txt": b"object %d" % n for n in range(8)})
    upper = small_spec("upper", communication="hpush")
    copy_and_die(pair.job("dead", upper, naming=None))
    found = drive(pair.job("next", upper, naming=None))
    assert (found.done, found.failed) == (8, 0), found
    assert read(pair.client, pair.destination, "7.txt") == b"OBJECT 7"


def test_tasks_with_other_etls_between_the_same_buckets_do_not_share_a_job(pair: Pair, drive: Drive) -> None:
    """AIStore would run the second task's objects with the ETL of the first, under names of the first."""
    names = [f"{n:02}.txt" for n in range(40)]
    put(pair.client, pair.source, {name: b"object" for name in names})
    tasks = [
        pair.job(transform, small_spec(transform), naming=Naming(prepend=f"{transform}/"), names=some)
        for transform, some in (("upper", names[:20]), ("wrap", names[20:]))
    ]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(drive, tasks))
    assert [(summary.done, summary.failed) for summary in found] == [(20, 0), (20, 0)]
    made = {"upper": b"OBJECT", "wrap": b'{"content": "object"}'}
    assert set(sizes(pair.client, pair.destination)) == {f"upper/{n}" for n in names[:20]} | {
        f"wrap/{n}" for n in names[20:]
    }
    for name in sizes(pair.client, pair.destination):
        assert read(pair.client, pair.destination, name) == made[name.partition("/")[0]]
    assert not [b.name for b in pair.client.cluster().list_buckets() if b.name.startswith("storeside-lock-")]


def test_who_dies_while_submitting_is_waited_for_and_then_forgotten(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:  # the bucket stays, as after kill -9
        patched.setattr("aistore.sdk.bucket.Bucket.delete", lambda *_, **__: None)
        with jobs.submitting(pair.client, pair.source, pair.destination):
            pass
    assert lock.age_of(pair.client, unique("no-such-bucket")) is None
    monkeypatch.setattr(jobs, "SUBMIT_SECONDS", 3.0)
    began = time.monotonic()
    with jobs.submitting(pair.client, pair.source, pair.destination):
        assert time.monotonic() - began > 1
    with jobs.submitting(pair.client, pair.source, pair.destination):
        monkeypatch.setattr(jobs, "SUBMIT_SECONDS", 0.2)
        monkeypatch.setattr(lock, "age_of", lambda *_: 0.0)
        with (
            pytest.raises(AIStoreTransientError, match=r"jobs from .* locked by another task for more than"),
            jobs.submitting(pair.client, pair.source, pair.destination),
        ):
            pass


@pytest.mark.guarantee("transform-once", "broken-recording")
def test_a_transform_does_again_what_it_is_asked_to(
    pair: Pair, corpus: dict[str, bytes], bad: dict[str, bytes], drive: Drive
) -> None:
    good = first(corpus, 5)
    name = "bad/truncated.flac"
    put(pair.client, pair.source, {**good, name: bad[name]})
    one = drive(pair.job("prefix", transcode_spec(), prefix="bad/"))
    assert (one.listed, one.done, one.failed) == (1, 0, 1), one
    rest = drive(pair.job("rest", transcode_spec()))
    assert (rest.listed, rest.done, rest.failed, rest.known_bad) == (6, 5, 0, 1), rest
    assert counters(pair) == {"1"}

    # failed objects are tried again on request; a deleted result is made again
    lost = WAV.destination(max(good))
    pair.destination.handle(pair.client).object(lost).delete()
    put(pair.client, pair.source, {"bad/mended.flac": good[min(good)]})
    retried = drive(pair.job("retry", transcode_spec(), retry_failed=True))
    assert (retried.done, retried.failed, retried.known_bad, retried.skipped) == (2, 1, 0, 4), retried
    assert re.search(REASONS[name], pair.reasons("retry")[name])
    assert lost in sizes(pair.client, pair.destination)

    # another format is another result, and a new version of a failed object is tried: everything is done
    put(pair.client, pair.source, {name: good[min(good)]})
    other = drive(pair.job("8 kHz", transcode_spec(AudioFormat(sample_rate=8_000))))
    assert (other.done, other.failed, other.skipped) == (7, 0, 0), other
    results = sizes(pair.client, pair.destination)
    assert len(results) == 7
    for result in results:
        with wave.open(io.BytesIO(read(pair.client, pair.destination, result))) as audio:
            assert audio.getframerate() == 8_000


# ---- names


def test_hostile_and_colliding_names(
    stack: Stack, s3_pair: Pair, s3_client: Any, corpus: dict[str, bytes], drive: Drive
) -> None:
    contents = list(corpus.values())
    stored: set[str] = set()
    for name, content in zip(HOSTILE_NAMES, contents, strict=False):
        s3_client.put_object(Bucket=s3_pair.source.name, Key=name, Body=content)
        stored.add(name)
    refused = {name for name in stored if name.startswith("../") or "//" in name}
    assert len(refused) == 2

    found = drive(s3_pair.job("1", list_source=lambda: list_s3(s3_client, s3_pair.source.name)))
    good = stored - refused
    assert (found.listed, found.done, found.failed) == (len(stored), len(good), 2), found
    reasons = s3_pair.reasons("1")
    assert set(reasons) == refused
    assert "'..' component" in reasons["../escape.flac"]
    assert "empty component" in reasons["hostile/a//b.flac"]
    assert {n: read(s3_pair.client, s3_pair.destination, n) for n in good} == {
        n: c for n, c in zip(HOSTILE_NAMES, contents, strict=False) if n in good
    }
    assert not [p for p in (stack.state / "aistore").rglob("*escape*")]
    assert {p.name for p in (stack.state / "aistore").iterdir()} == aistore_folders(stack)

    # the same names through a transform, and two that would have one result
    pair = Pair(s3_pair.client, s3_pair.ledger, s3_pair.destination, Bucket("ais", unique("wav")))
    put(pair.client, pair.source, {"same/a.flac": contents[0], "same/a.mp3": contents[8], "same/b.mp3": contents[8]})
    transformed = drive(pair.job("1", transcode_spec()))
    assert (transformed.done, transformed.failed) == (len(good) + 2, 1), transformed
    assert set(pair.reasons("1")) == {"same/a.mp3"}
    assert "same/a.wav" in pair.reasons("1")["same/a.mp3"]
    assert "same/a.flac" in pair.reasons("1")["same/a.mp3"]
    assert set(sizes(pair.client, pair.destination)) == {
        WAV.destination(n) for n in [*good, "same/a.flac", "same/b.mp3"]
    }
    again = drive(pair.job("2", transcode_spec()))
    assert (again.done, again.failed, again.known_bad) == (0, 0, 1), again


@pytest.mark.guarantee("results-owned")
def test_a_result_of_another_object_is_not_overwritten_while_that_object_exists(
    pair: Pair, corpus: dict[str, bytes], drive: Drive
) -> None:
    flac, other, *_ = recordings = list(corpus.values())
    mp3 = recordings[8]
    put(pair.client, pair.source, {"b.mp3": mp3, "other.flac": flac})
    assert drive(pair.job("1", transcode_spec())).done == 2
    result = versions(pair.client, pair.destination)

    # the new object would be the first of the listing; it is refused also if only its own name or prefix is selected
    put(pair.client, pair.source, {"b.flac": flac})
    selections: dict[str, dict[str, Any]] = {"2": {}, "3": {"names": ["b.flac"]}, "4": {"prefix": "b.f"}}
    for run, selected in selections.items():
        found = drive(pair.job(run, transcode_spec(), retry_failed=True, **selected))
        assert (found.done, found.failed, found.known_bad) == (0, 1, 0), (run, found)
        assert versions(pair.client, pair.destination) == result, run
        assert pair.reasons(run)["b.flac"].startswith("its result would be named b.wav, which is the result of b.mp3")
        assert "keep_extension" in pair.reasons(run)["b.flac"]
    again = drive(pair.job("5", transcode_spec()))
    assert (again.done, again.failed, again.known_bad) == (0, 0, 1), again

    # the remedy works, and so does the replacement of one source by another, also after the refusal
    kept = drive(pair.job("6", transcode_spec(), names=["b.flac"], naming=Naming({"flac": "flac.wav"})))
    assert (kept.done, kept.failed) == (1, 0), kept
    pair.source.handle(pair.client).object("b.flac").delete()
    put(pair.client, pair.source, {"b.ogg": other})
    assert drive(pair.job("7", transcode_spec())).failed == 1
    pair.source.handle(pair.client).object("b.mp3").delete()
    replaced = drive(pair.job("8", transcode_spec(), names=["b.ogg"]))
    assert (replaced.done, replaced.failed, replaced.known_bad) == (1, 0, 0), replaced

    # now the result belongs to the other object
    put(pair.client, pair.source, {"b.mp3": mp3})
    returned = drive(pair.job("9", transcode_spec()))
    assert (returned.done, returned.failed) == (0, 1), returned
    assert "which is the result of b.ogg" in pair.reasons("9")["b.mp3"]


@pytest.mark.guarantee("results-owned")
def test_a_result_of_another_source_bucket_is_not_overwritten(
    pair: Pair, corpus: dict[str, bytes], drive: Drive
) -> None:
    one, other, *_ = corpus.values()
    rival = replace(pair, source=Bucket("ais", unique("in")))
    rival.source.handle(pair.client).create()
    put(pair.client, pair.source, {"a.flac": one})
    put(pair.client, rival.source, {"a.flac": other, "b.flac": other})
    assert drive(pair.job("1", transcode_spec())).done == 1
    result = versions(pair.client, pair.destination)["a.wav"]
    owner = f"its result would be named a.wav, which is the result of {pair.source}/a.flac"
    found = drive(rival.job("2", transcode_spec()))
    assert (found.done, found.failed) == (1, 1), found
    assert rival.reasons("2")["a.flac"].startswith(owner)
    put(pair.client, rival.source, {"a.wav": other})
    copied = drive(rival.job("3", names=["a.wav"]))
    assert (copied.done, copied.failed) == (0, 1), copied
    assert rival.reasons("3")["a.wav"].startswith(owner)
    rival.source.handle(pair.client).object("a.wav").delete()
    assert versions(pair.client, pair.destination)["a.wav"] == result
    assert drive(pair.job("4", transcode_spec())).skipped == 1
    # the remedies
    assert drive(rival.job("5", transcode_spec(), naming=replace(WAV, prepend="own/"))).done == 2
    pair.destination.handle(pair.client).object("a.wav").delete()
    assert drive(rival.job("6", transcode_spec(), names=["a.flac"])).done == 1


def test_two_source_buckets_at_the_same_time_do_not_overwrite_results_of_each_other(
    pair: Pair, corpus: dict[str, bytes], drive: Drive
) -> None:
    one, other, *_ = corpus.values()
    rival = replace(pair, source=Bucket("ais", unique("in")))
    put(pair.client, pair.source, {"a.flac": one})
    put(pair.client, rival.source, {"a.flac": other, "b.flac": other})
    first = pair.job("1", transcode_spec())
    first.begin()
    found = drive(rival.job("2", transcode_spec()))
    assert (found.done, found.failed) == (1, 1), found
    assert f"a run that has not ended makes of {pair.source}/a.flac" in rival.reasons("2")["a.flac"]
    assert drive(first).done == 1


def aistore_folders(stack: Stack) -> set[str]:
    from storeside.stack.servers import aistore

    return {"proxy", "data", "join", *(f"target-{n}" for n in range(stack.targets))} | {
        p.name for p in aistore.folder(stack).iterdir() if p.name.startswith("no-aws")
    }


# ---- killed and resumed


def test_a_plan_that_clickhouse_did_not_finish_is_made_again(pair: Pair, drive: Drive) -> None:
    put(pair.client, pair.source, {f"{n}": b"content" for n in range(6)})
    killed = pair.job("run")
    assert killed.begin().pending == 6
    # as if ClickHouse were killed between two of its blocks
    for statement in ("DROP PARTITION ({job:String}, 'planned')", "DELETE WHERE job = {job:String} AND object > '2'"):
        pair.ledger.client.command(
            f"ALTER TABLE storeside.listings {statement}",
            parameters={"job": killed.scope.job}, settings={"mutations_sync": 1},
        )  # fmt: skip
    found = drive(pair.job("run"))
    assert (found.listed, found.done, found.skipped) == (6, 6, 0), found


def test_a_listing_that_arrives_twice_is_refused(pair: Pair, drive: Drive) -> None:
    """The client repeats an INSERT whose answer was lost."""
    put(pair.client, pair.source, {"a": b"content"})
    job = pair.job("run")
    insert = job.ledger.client.insert
    job.ledger.client.insert = lambda *args, **kwargs: [insert(*args, **kwargs) for _ in range(2)]
    try:
        with pytest.raises(LedgerTransientError, match="stored 2 of 1 listed objects"):
            job.begin()
    finally:
        job.ledger.client.insert = insert
    found = drive(pair.job("run"))
    assert (found.listed, found.done) == (1, 1), found


@pytest.mark.guarantee("transform-resumed")
@pytest.mark.parametrize(
    "moment", ["running", *(pytest.param(m, marks=pytest.mark.exhaustive) for m in ("over", "aborted"))]
)
def test_a_killed_try_is_resumed_without_doing_anything_twice(
    pair: Pair, corpus: dict[str, bytes], drive: Drive, moment: str
) -> None:
    put(pair.client, pair.source, first(corpus, 60))
    # a job that is to run when the next try begins takes seconds on any machine
    spec = small_spec("slow", environment={"SECONDS": "0.2"}) if moment == "running" else transcode_spec()
    killed = pair.job("run", spec)
    state = killed.submit(killed.begin())
    assert state.phase == "bucket"
    follower = killed.follower(state, 60)
    if moment == "over":
        until(lambda: follower.poll().finished, 60, "end of the job")
    elif moment == "aborted":
        until(lambda: len(sizes(pair.client, pair.destination)) > 5, 30, "results", interval=0.02)
        jobs.abort(pair.client, state.job_id)
    left = versions(pair.client, pair.destination)

    resumed = pair.job("run", spec)
    begun = resumed.begin()
    if moment == "running":
        assert (begun.phase, begun.job_id, begun.waits) == ("attached", state.job_id, False)
    else:
        assert begun.phase == "objects"
    found = drive(pair.job("run", spec))
    assert (found.done, found.failed) == (60, 0), found
    now = versions(pair.client, pair.destination)
    assert len(now) == 60
    # existing results are not made again; an abort can cut off one object of each worker
    assert {name: now[name] for name in left} == left
    if moment != "aborted":
        assert counters(pair) == {"1"}


@pytest.mark.parametrize("window", [True, False])
def test_a_retry_follows_another_tasks_job_as_one_that_waits(pair: Pair, drive: Drive, window: bool) -> None:
    put(pair.client, pair.source, {f"{n}.txt": b"1" for n in range(30)})
    slow = small_spec("slow", environment={"SECONDS": "1"})
    assert pair.job("run", slow).begin().pending == 30  # and then its worker dies
    other = pair.job("other", slow, **({"names": [f"{n}.txt" for n in range(20)]} if window else {}))
    state = other.submit(other.begin())
    retry = pair.job("run", slow).begin()
    assert (retry.phase, retry.job_id, retry.waits) == ("attached", state.job_id, True)
    again = pair.job("other", slow, **({"names": [f"{n}.txt" for n in range(20)]} if window else {})).begin()
    assert (again.phase, again.job_id, again.waits) == ("attached", state.job_id, False)
    assert drive(pair.job("run", slow)).done == 30


@pytest.mark.parametrize("settled", [True, False])
def test_a_retry_does_not_take_the_results_of_another_transformer_for_its_own(
    pair: Pair, drive: Drive, settled: bool
) -> None:
    names = [f"{n}.txt" for n in range(4)]
    put(pair.client, pair.source, dict.fromkeys(names, b"1"))
    ours, others = (small_spec("upper", environment={"SUFFIX": suffix}) for suffix in ("ours", "others"))
    assert pair.job("run", ours).begin().pending == 4  # and then its worker dies
    other = pair.job("other", others)
    if settled:
        assert drive(other).done == 4
    else:
        follower = other.follower(other.submit(other.begin()), 60)
        until(lambda: follower.poll().finished, 60, "end of the job")
    assert read(pair.client, pair.destination, "0.txt") == b"1others"
    found = drive(pair.job("run", ours))
    assert (found.listed, found.done, found.skipped) == (4, 4, 0), found
    assert {read(pair.client, pair.destination, name) for name in names} == {b"1ours"}


def test_tasks_of_one_run_share_the_buckets_and_not_the_objects(
    pair: Pair, corpus: dict[str, bytes], drive: Drive
) -> None:
    names = list(first(corpus, 8))
    put(pair.client, pair.source, {f"{'ab'[n % 2]}/{name}": corpus[name] for n, name in enumerate(names)})
    put(pair.client, pair.source, {"b/broken.flac": b"not audio"})
    spec = transcode_spec()
    one, other = (pair.job("run", spec, prefix=prefix) for prefix in ("a/", "b/"))
    begun = one.begin()
    assert begun.pending == 4
    summary = drive(other)
    assert (summary.listed, summary.done, summary.failed) == (5, 4, 1)
    assert [name for name, _ in summary.examples] == ["b/broken.flac"]
    summary = drive(pair.job("run", spec, prefix="a/"))  # a retry of the first
    assert (summary.listed, summary.done, summary.failed, summary.examples) == (4, 4, 0, ())
    assert len(sizes(pair.client, pair.destination)) == 8
    both = drive(pair.job("run", spec))
    assert (both.listed, both.skipped, both.done, both.failed) == (9, 0, 8, 1), "of earlier tasks of the run, too"


def test_a_job_that_follows_an_aborted_one_can_be_told_from_it(pair: Pair) -> None:
    put(pair.client, pair.source, {f"{n}": b"content" for n in range(8)})
    job = pair.job("run")
    aborted = job.submit(job.begin())
    until(lambda: len(sizes(pair.client, pair.destination)) == 8, 10, "results")
    jobs.abort(pair.client, aborted.job_id)
    pair.destination.handle(pair.client).object("7").delete()
    again = job.submit(job.begin())
    assert again.job_id
    assert again.job_id != aborted.job_id
    follower = job.follower(again, 30)
    progress = until(lambda: (seen := follower.poll()).finished and seen, 30, "end of the job")
    assert (progress.objects, progress.error) == (1, "")
    assert len(sizes(pair.client, pair.destination)) == 8


def while_driving(job: BucketJob, drive: Drive, disturb: Callable[[], None], seconds: float) -> Summary:
    """Drive a job in a thread, disturb it meanwhile, and return its summary."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(drive, job)
        disturb()
        return running.result(seconds)


@pytest.mark.guarantee("transform-resumed", "lost-by-websocket")
def test_an_etl_server_is_killed(
    stack: Stack, pair: Pair, corpus: dict[str, bytes], bad: dict[str, bytes], drive: Drive
) -> None:
    put(pair.client, pair.source, {**corpus, "bad/text.flac": bad["bad/text.flac"]})

    def kill() -> None:
        until(lambda: len(sizes(pair.client, pair.destination)) > 5, 40, "results", interval=0.02)
        etl_servers(stack, transcode_spec().name)[0].kill()

    pair.destination.handle(pair.client).create()
    found = while_driving(pair.job("1", transcode_spec(), keep_etl=False), drive, kill, 60)
    assert (found.done, found.failed) == (MANY, 1), found
    assert re.search(REASONS["bad/text.flac"], pair.reasons("1")["bad/text.flac"])
    assert set(sizes(pair.client, pair.destination)) == {WAV.destination(name) for name in corpus}

    # the ETL of the same name starts again
    pair.destination.handle(pair.client).object(WAV.destination(min(corpus))).delete()
    assert drive(pair.job("2", transcode_spec())).done == 1


def drive_with_retries(job: Callable[[], BucketJob], drive: Drive, tries: int = 4, delay: float = 5) -> Summary:
    """Drive a job as Airflow's retries do: again after transient errors."""
    for left in reversed(range(tries)):
        try:
            return drive(job())
        except (Transient, AISError, RequestException) as error:
            logging.getLogger(__name__).warning("retry after: %s", error)
            if not left:
                raise
            time.sleep(delay)  # as long as Airflow waits before a retry, while the node starts again
    raise AssertionError


@pytest.mark.chaos
@pytest.mark.parametrize("component", ["ais-target-1", "ais-proxy"])
def test_a_node_is_killed(stack: Stack, pair: Pair, corpus: dict[str, bytes], drive: Drive, component: str) -> None:
    put(pair.client, pair.source, corpus)
    pair.destination.handle(pair.client).create()
    node = process(stack, component)

    def kill() -> None:
        until(lambda: sizes(pair.client, pair.destination), 40, "results", interval=0.02)
        node.kill()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            drive_with_retries, lambda: pair.job("1", transcode_spec(), keep_etl=False), drive, tries=8
        )
        kill()
        found = running.result(150)
    assert (found.done, found.failed) == (len(corpus), 0), found
    results = sizes(pair.client, pair.destination)
    assert set(results) == {WAV.destination(name) for name in corpus}
    assert all(results.values())
    assert process(stack, component).pid != node.pid

    # afterwards the cluster transforms as before
    pair.destination.handle(pair.client).object(min(results)).delete()
    assert drive_with_retries(lambda: pair.job("2", transcode_spec()), drive).done == 1


@pytest.mark.chaos
def test_twenty_thousand_tiny_objects(pair: Pair, drive: Drive) -> None:
    count = 20_000
    put(pair.client, pair.source, {})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: put(pair.client, pair.source, {f"{n:06}": b"object %d" % n}), range(count)))
    upper = small_spec("upper")
    found = drive(pair.job("1", upper, naming=None))
    assert (found.listed, found.done, found.failed) == (count, count, 0), found
    assert found.bytes_out == found.bytes_in
    assert drive(pair.job("2", upper, naming=None)).skipped == count
