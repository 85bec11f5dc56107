"""No source object is changed, on a real cluster: the same bucket in every spelling, and transforms in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreError, AIStoreTransientError
from storeside.aistore.stored_objects import list_s3
from storeside.copying.job import CopyJob
from storeside.ledger.copies import CopyLedger
from storeside.ledger.objects import Ledger
from storeside.operators.operators.speech import AISTranscodeAudioOperator
from storeside.stack import authn, demo, speech_corpus
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.in_place import CHANGED, InPlaceJob
from storeside.transform.naming import Naming
from storeside.transform.single import transform_object
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.formats import AudioFormat
from tests.support import (
    contents,
    failures,
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

Drive = Callable[[Any], Summary]
TEXTS = {f"{n}.txt": b"object %d" % n for n in range(6)}


def everything(client: Any, bucket: Bucket) -> dict[str, bytes]:
    return {name: read(client, bucket, name) for name in sizes(client, bucket)}


# ---- the source is the destination


def test_recordings_are_not_overwritten_by_their_own_transcode(
    stack: Stack, aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The reported case: results, refused objects and a broken one, all in one bucket."""
    made = speech_corpus.make(demo.RECORDINGS, tmp_path, 4)
    flac, wav, other, last = (tmp_path / o.name for o in made.objects)
    there = {
        "a.flac": flac.read_bytes(), "a.wav": wav.read_bytes(), "b.flac": other.read_bytes(),
        "b.mp3": last.read_bytes(), "broken.wav": b"not audio", "empty.wav": b"",
    }  # fmt: skip
    put(aistore, bucket, there)
    before = versions(aistore, bucket)
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(airflow.connections(stack)["AISTORE_DEFAULT"]))
    for module in ("operators.aistore", "bases.bucket_job"):
        monkeypatch.setattr(f"storeside.operators.{module}.ledger", lambda _: Ledger(clickhouse))
    run = SimpleNamespace(dag_id="dag", run_id=unique("run"))
    operator = AISTranscodeAudioOperator(task_id="transcode", source=str(bucket), destination=str(bucket))
    with pytest.raises(AirflowFailException, match=r"is both the source and the destination.*in_place=True"):
        operator.execute({"dag_run": run})  # type: ignore[typeddict-item]
    job = BucketJob(
        aistore, Ledger(clickhouse), bucket, bucket, run_id=unique("run"), spec=transcode_spec(),
        naming=Naming(AudioFormat().extensions),
    )  # fmt: skip
    with pytest.raises(AIStoreError, match=r"is both the source and the destination.*in_place=True") as caught:
        drive(job)
    assert not isinstance(caught.value, AIStoreTransientError)
    with pytest.raises(AIStoreError, match="is both the source and the destination"):
        job.preview()
    assert everything(aistore, bucket) == there
    assert versions(aistore, bucket) == before


@pytest.mark.guarantee("apart")
@pytest.mark.parametrize("spelling", ["own UUID", "empty namespace", "front", "two fronts", "copy to a front"])
def test_the_same_bucket_in_another_spelling_is_the_same_bucket(
    stack: Stack, aistore: Any, clickhouse: Any, s3_client: Any, bucket: Bucket, drive: Drive, spelling: str
) -> None:
    from storeside.aistore.places import Clusters

    s3 = Bucket("s3", unique("behind"))
    s3_client.create_bucket(Bucket=s3.name)
    s3_client.put_object(Bucket=s3.name, Key="a.txt", Body=b"kept")
    fronts = []
    for _ in range(2):
        fronts.append(Bucket("ais", unique("front")))
        fronts[-1].handle(aistore).create()
        set_properties(stack, fronts[-1].name, backend_bck={"name": s3.name, "provider": "aws"})
    source, destination = {
        "own UUID": (bucket, Bucket.parse(f"ais://@{Clusters.of(aistore).own}/{bucket.name}")),
        "empty namespace": (bucket, Bucket.parse(f"ais://@#/{bucket.name}/")),
        "front": (fronts[0], s3),
        "two fronts": (fronts[0], fronts[1]),
        "copy to a front": (s3, fronts[1]),
    }[spelling]
    put(aistore, bucket, {"a.txt": b"kept"})
    spec = None if spelling == "copy to a front" else small_spec("upper")
    job = BucketJob(aistore, Ledger(clickhouse), source, destination, run_id=unique("run"), spec=spec)
    with pytest.raises(AIStoreError, match=r"in_place=True"):
        drive(job)
    assert read(aistore, bucket, "a.txt") == b"kept"
    assert s3_client.get_object(Bucket=s3.name, Key="a.txt")["Body"].read() == b"kept"


@pytest.mark.parametrize("use", ["quarantine", "sidecars"])
@pytest.mark.parametrize("of", ["source", "destination"])
def test_neither_quarantine_nor_facts_go_where_objects_or_results_are(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, use: str, of: str
) -> None:
    put(aistore, bucket, {**TEXTS, "bad.txt": b"bad object"})
    results = Bucket("ais", unique("out"))
    options = Options(**{use: bucket if of == "source" else results})
    job = BucketJob(
        aistore, Ledger(clickhouse), bucket, results, run_id=unique("run"), spec=small_spec("upper"), options=options
    )
    with pytest.raises(
        AIStoreError, match=f"is both the {of} and the {'quarantine' if use == 'quarantine' else 'bucket of facts'}"
    ):
        drive(job)
    assert everything(aistore, bucket) == {**TEXTS, "bad.txt": b"bad object"}


def test_one_object_is_transformed_into_a_new_one(aistore: Any, bucket: Bucket) -> None:
    put(aistore, bucket, TEXTS)
    upper = small_spec("upper")
    for result in ("0.txt", "1.txt"):
        with pytest.raises(AIStoreError, match="which the result would overwrite"):
            transform_object(aistore, bucket, "0.txt", Bucket.parse(f"ais://{bucket.name}/"), result, upper)
    assert everything(aistore, bucket) == TEXTS
    assert transform_object(aistore, bucket, "0.txt", bucket, "new.txt", upper) == len(TEXTS["0.txt"])
    assert everything(aistore, bucket) == {**TEXTS, "new.txt": b"OBJECT 0"}


# ---- in place


def in_place(
    aistore: Any, clickhouse: Any, bucket: Bucket, run: str, transform: str = "upper", **options: Any
) -> Any:
    naming = options.pop("naming", None)
    spec = options.pop("spec", None) or small_spec(transform)
    options.setdefault("keep_etl", spec.over("hpush").name in shared_etls())
    return InPlaceJob(
        aistore, Ledger(clickhouse), bucket, run_id=run, spec=spec, naming=naming, options=Options(**options)
    )


def left(client: Any) -> list[str]:
    return [b.name for b in client.cluster().list_buckets() if b.name.startswith("storeside-in-place-")]


@pytest.mark.guarantee("in-place")
def test_a_transform_in_place_replaces_what_it_can_once(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive
) -> None:
    put(aistore, bucket, {**TEXTS, "bad.txt": b"bad object", "a/0.txt": b"other"})
    found = drive(in_place(aistore, clickhouse, bucket, "1", "wrap", prefix=""))
    assert (found.listed, found.done, found.failed) == (8, 8, 0), found
    assert (found.source, found.destination) == (str(bucket), str(bucket))
    wrapped = everything(aistore, bucket)
    assert wrapped["0.txt"] == b'{"content": "object 0"}'
    before = versions(aistore, bucket)
    again = drive(in_place(aistore, clickhouse, bucket, "2", "wrap"))
    assert (again.done, again.failed, again.skipped) == (0, 0, 8), again  # a result is not transformed again
    assert versions(aistore, bucket) == before
    put(aistore, bucket, {"0.txt": b"new"})
    third = drive(in_place(aistore, clickhouse, bucket, "3", "wrap"))
    assert (third.done, third.skipped) == (1, 7), third
    assert everything(aistore, bucket) == {**wrapped, "0.txt": b'{"content": "new"}'}
    assert not left(aistore)


def test_what_fails_in_place_keeps_its_original(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, tmp_path: Any
) -> None:
    made = speech_corpus.make(demo.RECORDINGS, tmp_path, 3)
    sound = contents(tmp_path, [o.name for o in made.objects])
    audio = transcode_spec(communication="hpush")
    source = Bucket("ais", unique("raw"))
    source.handle(aistore).create()
    put(aistore, source, sound)
    drive(
        BucketJob(
            aistore, Ledger(clickhouse), source, bucket, run_id="wav", spec=audio,
            naming=Naming(AudioFormat().extensions), options=Options(keep_etl=audio.name in shared_etls()),
        )
    )  # fmt: skip
    put(aistore, bucket, {"broken.wav": b"not audio", "empty.wav": b"", "other.flac": next(iter(sound.values()))})
    before = everything(aistore, bucket)
    job = in_place(
        aistore, clickhouse, bucket, "8k", spec=transcode_spec(AudioFormat(sample_rate=8_000)),
        naming=Naming(AudioFormat().extensions),
    )  # fmt: skip
    found = drive(job)
    assert (found.done, found.failed) == (3, 3), found
    why = failures(clickhouse, "8k", bucket)
    assert set(why) == {"broken.wav", "empty.wav", "other.flac"}
    assert "other.wav, but an in-place transform keeps names" in why["other.flac"]
    after = everything(aistore, bucket)
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] == before[name]} == set(why)
    assert all(0 < len(after[name]) < len(before[name]) for name in before if name not in why)


@pytest.mark.guarantee("in-place")
def test_an_object_that_changes_meanwhile_is_left_as_it_is(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(aistore, bucket, TEXTS)
    job = in_place(aistore, clickhouse, bucket, "1")
    after: Any = job._after

    def meddle(state: Any) -> Any:
        if state.phase == "done":  # all results are made
            put(aistore, bucket, {"0.txt": b"overwritten"})
            bucket.handle(aistore).object("1.txt").delete()
        return after(state)

    monkeypatch.setattr(job, "_after", meddle)
    found = drive(job)
    assert (found.done, found.failed) == (4, 2), found
    assert failures(clickhouse, "1", bucket) == {"0.txt": CHANGED, "1.txt": CHANGED}
    assert everything(aistore, bucket) == {
        "0.txt": b"overwritten", **{f"{n}.txt": b"OBJECT %d" % n for n in range(2, 6)},
    }  # fmt: skip
    assert drive(in_place(aistore, clickhouse, bucket, "2")).done == 1
    assert read(aistore, bucket, "0.txt") == b"OVERWRITTEN"


@pytest.mark.guarantee("in-place")
@pytest.mark.parametrize(
    "moment", ["made", *(pytest.param(m, marks=pytest.mark.exhaustive) for m in ("half", "replaced", "settled"))]
)
def test_a_killed_run_transforms_nothing_twice(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of `wrap` show how often an object was transformed."""
    put(aistore, bucket, TEXTS)
    killed = in_place(aistore, clickhouse, bucket, "run", "wrap")

    def die(*_: Any) -> Any:
        raise KeyboardInterrupt

    if moment == "made":
        monkeypatch.setattr(killed._replace, "begin", die)
    elif moment == "half":
        monkeypatch.setattr("storeside.transform.submit.COPY_WINDOW", 3)
        monkeypatch.setattr(killed._replace, "advance", die)
    elif moment == "replaced":
        monkeypatch.setattr(killed._make, "finish", die)
    else:
        monkeypatch.setattr(killed.ledger, "forget_listings", die)
    with pytest.raises(KeyboardInterrupt):
        drive(killed)
    if moment == "half":
        until(lambda: sum(b"content" in o for o in everything(aistore, bucket).values()) == 3, 20, "half")
    with pytest.raises(AIStoreTransientError, match="retry that task"):
        drive(in_place(aistore, clickhouse, bucket, "another", "wrap"))
    found = drive(in_place(aistore, clickhouse, bucket, "run", "wrap"))
    assert (found.done, found.failed) == (6, 0), found
    expected = {name: b'{"content": "%s"}' % content for name, content in TEXTS.items()}
    assert everything(aistore, bucket) == expected
    assert drive(in_place(aistore, clickhouse, bucket, "next", "wrap")).skipped == 6
    assert not left(aistore)


def test_what_cannot_be_done_in_place_is_refused(
    stack: Stack, aistore: Any, clickhouse: Any, s3_client: Any, bucket: Bucket, drive: Drive
) -> None:
    with pytest.raises(ValueError, match="is a remote bucket"):
        in_place(aistore, clickhouse, Bucket("s3", "any"), "1")
    s3 = Bucket("s3", unique("behind"))
    s3_client.create_bucket(Bucket=s3.name)
    set_properties(stack, bucket.name, backend_bck={"name": s3.name, "provider": "aws"})
    job = in_place(aistore, clickhouse, bucket, "1")
    for attempt in (job.preview, lambda: drive(job)):
        with pytest.raises(AIStoreError, match=f"are stored in {s3}"):
            attempt()


# ---- results that no longer exist


@pytest.mark.guarantee("damaged-results")
def test_a_copy_that_was_damaged_or_deleted_is_made_again(
    aistore: Any, clickhouse: Any, s3_client: Any, drive: Drive
) -> None:
    source, destination = Bucket("s3", unique("in")), Bucket("ais", unique("out"))
    s3_client.create_bucket(Bucket=source.name)
    there = {f"{n}": b"content of %d" % n for n in range(6)}
    for name, content in there.items():
        s3_client.put_object(Bucket=source.name, Key=name, Body=content)

    def copy(run: str) -> Summary:
        listing = lambda: list_s3(s3_client, source.name)  # noqa: E731
        return drive(BucketJob(aistore, Ledger(clickhouse), source, destination, run_id=run, list_source=listing))

    assert copy("1").done == 6
    put(aistore, destination, {"0": b"another size", "1": there["1"][::-1], "2": b""})
    destination.handle(aistore).object("3").delete()
    requests_made = copy("2")
    assert (requests_made.done, requests_made.skipped) == (4, 2), requests_made
    assert everything(aistore, destination) == there
    assert copy("3").skipped == 6


@pytest.mark.guarantee("damaged-results")
@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_a_result_that_was_damaged_or_deleted_is_made_again(
    aistore: Any, clickhouse: Any, bucket: Bucket, drive: Drive, communication: str
) -> None:
    destination = Bucket("ais", unique("out"))
    put(aistore, bucket, {f"{n}.txt": b"object %d" % n for n in range(10)})

    def transform(run: str) -> Summary:
        spec = small_spec("upper", communication=communication)
        options = Options(keep_etl=spec.name in shared_etls())
        return drive(
            BucketJob(aistore, Ledger(clickhouse), bucket, destination, run_id=run, spec=spec, options=options)
        )

    assert transform("1").done == 10
    made = everything(aistore, destination)
    put(aistore, destination, {"0.txt": b"longer than it was", "1.txt": made["1.txt"][::-1], "2.txt": b""})
    destination.handle(aistore).object("3.txt").delete()
    until(lambda: "3.txt" not in sizes(aistore, destination), 30, "listing without the deleted object")
    found = transform("2")
    assert (found.done, found.skipped) == (4, 6), found
    assert everything(aistore, destination) == made
    assert transform("3").skipped == 10


def test_a_copy_through_the_worker_that_was_damaged_is_made_again(
    stack: Stack, aistore: Any, clickhouse: Any, s3_client: Any
) -> None:
    from storeside.copying.s3 import AIStoreStore, S3Store

    name = unique("worker")
    s3_client.create_bucket(Bucket=name)
    there = {f"{n}": b"content of %d" % n for n in range(4)}
    for key, content in there.items():
        s3_client.put_object(Bucket=name, Key=key, Body=content)
    destination = AIStoreStore(authn.cluster(stack), unique("copied"), 4)

    def copy() -> Summary:
        return CopyJob(S3Store(s3_client, name), destination, CopyLedger(clickhouse), run_id=unique("run")).run()

    assert copy().done == 4
    own = Bucket("ais", destination.bucket)
    put(aistore, own, {"0": b"other", "1": there["1"][::-1]})
    own.handle(aistore).object("2").delete()
    found = copy()
    assert (found.done, found.skipped) == (3, 1), found
    assert everything(aistore, own) == there
