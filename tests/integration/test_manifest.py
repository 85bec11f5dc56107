"""From audio in AIStore to rows in ClickHouse: the facts are the real ones, and each is loaded once."""

from __future__ import annotations

import hashlib
import io
import json
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.operators import (
    ClickHouseLoadManifestOperator,
    ClickHousePublishManifestOperator,
    ClickHouseStageManifestOperator,
    GXValidateManifestOperator,
)
from storeside.speech.errors import ManifestError, UnreadableFactsError
from storeside.speech.manifest import SpeechManifest, facts_naming, facts_prefix, facts_url
from storeside.stack import demo, speech_corpus
from storeside.stack.settings import Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import probe
from tests.hostile_names import HOSTILE_NAMES
from tests.support import (
    contents,
    failures,
    probe_spec,
    put,
    read,
    sizes,
    task_context,
    transcode_spec,
    unique,
    until,
    versions,
)

pytestmark = pytest.mark.usefixtures("connections", "no_etl_is_left")

Drive = Callable[[BucketJob], Summary]
SIGNAL_COLUMNS = tuple(SignalFacts.__dataclass_fields__)
HOSTILE = tuple(n for n in HOSTILE_NAMES if not n.startswith("../") and "//" not in n)
# The limits of the recordings in these tests.
LIMITS: dict[str, Any] = {"min_seconds": 0.01}
# The longest names whose facts AIStore can store, and extensions that its mapping does not change.
NAMES = (*HOSTILE, "n" * 246 + ".flac", "a.Flac", "take1", "dir.wav/f", "x.json", "b.WAV", "c.d.opus")


@dataclass
class Shelf:
    """A bucket of audio and its path into the manifest."""

    stack: Stack
    aistore: Any
    clickhouse: Any
    drive: Drive
    audio: Bucket
    facts: Bucket

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.clickhouse)

    def put(self, audio: dict[str, bytes]) -> None:
        """Store audio as if a transcode had made it from recordings of the same content."""
        put(self.aistore, self.audio, audio)
        columns = ["source", "destination", "object", "version", "destination_object", "status"]
        self.ledger.create()
        self.clickhouse.insert(
            "storeside.objects",
            [
                ["s3://made", str(self.audio), name, hashlib.sha256(content).hexdigest(), name, "done"]
                for name, content in audio.items()
            ],
            column_names=columns,
        )

    def probe(self, run: str, prefix: str = "") -> tuple[BucketJob, Summary]:
        job = self.probing(run, prefix)
        return job, self.drive(job)

    def probing(self, run: str, prefix: str = "") -> BucketJob:
        return BucketJob(
            self.aistore, self.ledger, self.audio, self.facts,
            run_id=run, spec=probe_spec(), naming=facts_naming(run, self.audio),
            options=Options(prefix=prefix, keeps_result=False, keep_etl=True),
        )  # fmt: skip

    def transcode(
        self, recordings: Bucket, run: str, *, facts: bool = True, to: Bucket | None = None, over: str = "ws",
        audio: AudioFormat | None = None, prefix: str = "",
    ) -> Summary:  # fmt: skip
        """Transcode recordings, with their facts in the same pass."""
        spec = transcode_spec(audio, communication=over)
        if facts:
            url = facts_url(self.stack.url("ais_proxy"), self.facts, run, self.audio)
            spec = replace(spec, tuning={**spec.tuning, "SIDECAR_URL": url})
        job = BucketJob(
            self.aistore, self.ledger, recordings, to or self.audio, run_id=run, spec=spec,
            naming=Naming((audio or AudioFormat()).extensions),
            options=Options(prefix=prefix, sidecars=self.facts if facts else None, keep_etl=True),
        )  # fmt: skip
        return self.drive(job)

    def found_facts(self, run: str) -> dict[str, bytes]:
        """Return the facts of a run by their names below its prefix."""
        prefix = facts_prefix(run, self.audio)
        names = [name for name in sizes(self.aistore, self.facts) if name.startswith(prefix)]
        return {name.removeprefix(prefix): read(self.aistore, self.facts, name) for name in names}

    def manifest(self, run: str) -> SpeechManifest:
        return SpeechManifest(self.clickhouse, self.audio, self.facts, run)

    def collected(self, job: BucketJob) -> list[dict[str, Any]]:
        """Collect the rows of a run, and return them."""
        manifest = self.manifest(job.scope.run_id)
        count = manifest.collect(self.aistore, job.scope).rows
        lines = read(self.aistore, self.facts, manifest.key).splitlines() if count else []
        assert len(lines) == count
        return [json.loads(line) for line in lines]

    def task(self, kind: Any, run: str, **arguments: Any) -> Any:
        """Execute an operator of the manifest in a run."""
        dag, _, run = run.partition("/")
        task = kind(task_id="load", bucket=str(self.audio), facts=str(self.facts), **arguments)
        return task.execute(task_context("load", SimpleNamespace(dag_id=dag, run_id=run)))

    def former(self, kind: Any, run: str, **arguments: Any) -> Any:
        """Execute one of the operators that the load has replaced."""
        with pytest.warns(DeprecationWarning, match="use ClickHouseLoadManifestOperator") as warned:
            result = self.task(kind, run, **arguments)
        assert [one.filename for one in warned] == [__file__]
        return result

    def load(self, job: BucketJob, **arguments: Any) -> int:
        """Load the rows of a run as the pipeline does; return the number of rows loaded."""
        report = self.task(
            ClickHouseLoadManifestOperator, job.scope.run_id, effect=job.scope.effect, **{**LIMITS, **arguments}
        )
        return int(report["rows"])

    def rows(self) -> list[dict[str, Any]]:
        found = self.clickhouse.query(
            "SELECT * FROM speech.manifest WHERE bucket = {bucket:String} ORDER BY object",
            parameters={"bucket": str(self.audio)},
        )
        return list(found.named_results())

    def quarantined(self, run: str) -> dict[str, list[str]]:
        """Return the reasons by recording of a run's rows in the quarantine."""
        found = self.clickhouse.query(
            "SELECT JSONExtractString(row, 'object'), reasons FROM speech.manifest_quarantine"
            " WHERE key = {key:String}",
            parameters={"key": self.manifest(run).key},
        )
        return dict(found.result_rows)

    def left(self, run: str) -> list[str]:
        """Return the facts and rows that a run has left in AIStore."""
        manifest = self.manifest(run)
        return [n for n in sizes(self.aistore, self.facts) if n.startswith((manifest.prefix, manifest.key))]


@pytest.fixture
def shelf(stack: Stack, aistore: Any, clickhouse: Any, drive: Drive) -> Shelf:
    return Shelf(stack, aistore, clickhouse, drive, Bucket("ais", unique("audio")), Bucket("ais", unique("facts")))


def new_run() -> str:
    return f"speech/{unique('run')}"


def tone(seconds: float, level: int = 8_000) -> bytes:
    """Return a WAV file of a square wave."""
    written = io.BytesIO()
    with wave.open(written, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(16_000)
        half = level.to_bytes(2, "little", signed=True) * 20 + (-level).to_bytes(2, "little", signed=True) * 20
        audio.writeframes(half * int(seconds * 16_000 / 40))
    return written.getvalue()


def test_rows_are_the_facts_of_the_objects_and_are_published_once(
    shelf: Shelf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    made = speech_corpus.make(demo.RECORDINGS, folder, len(HOSTILE) + 3).objects
    names = [*HOSTILE, *(o.name for o in made[len(HOSTILE) :])]
    recordings = Bucket("ais", unique("in"))
    put(shelf.aistore, recordings, dict(zip(names, contents(folder, [o.name for o in made]).values(), strict=True)))
    run = new_run()
    naming = Naming(AudioFormat().extensions)
    transcode = BucketJob(
        shelf.aistore, shelf.ledger, recordings, shelf.audio, run_id=run, spec=transcode_spec(), naming=naming,
        options=Options(keep_etl=True),
    )  # fmt: skip
    assert shelf.drive(transcode).done == len(names)
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (len(names), 0), summary

    collected = shelf.collected(job)
    assert len(collected) == len(names)
    stored = versions(shelf.aistore, shelf.facts)
    assert shelf.collected(job) == collected
    assert versions(shelf.aistore, shelf.facts) == stored  # a retry stores equal rows once
    assert not shelf.rows()  # nothing is visible yet
    assert shelf.load(job, channels=1) == len(names)

    rows = {row["object"]: row for row in shelf.rows()}
    assert len(shelf.rows()) == len(rows) == len(names)
    assert {row["source_object"]: name for name, row in rows.items()} == {n: naming.destination(n) for n in names}
    lengths = {naming.destination(n): o for n, o in zip(names, made, strict=True)}
    for name, row in rows.items():
        content = read(shelf.aistore, shelf.audio, name)
        assert row["checksum"] == hashlib.sha256(content).hexdigest(), name
        assert row["bytes"] == len(content)
        with wave.open(io.BytesIO(content)) as audio:
            assert (row["sample_rate"], row["channels"], row["samples"]) == (
                audio.getframerate(),
                audio.getnchannels(),
                audio.getnframes(),
            )
        assert row["duration_seconds"] == pytest.approx(row["samples"] / row["sample_rate"])
        assert row["duration_seconds"] == pytest.approx(lengths[name].samples / lengths[name].sample_rate, abs=0.1)
        assert row["codec"] == "pcm_s16le"
        assert row["rms_dbfs"] <= row["peak_dbfs"] <= 0
        assert (row["complete"], row["ignored"]) == ("yes", "")
        assert row["declared_seconds"] == pytest.approx(row["duration_seconds"])
        known = asdict(probe(content))
        assert [row[column] for column in SIGNAL_COLUMNS] == [known[column] for column in SIGNAL_COLUMNS]
        assert 0 < row["bandwidth_hz"] <= 8_000
        assert row["run_id"] == run

    until(lambda: not shelf.left(run), 20, "end of what the run left")  # AIStore deletes facts in the background
    assert shelf.load(job) == len(names)  # the task is cleared: it states what the run has loaded
    job, again = shelf.probe(new_run())
    assert (again.done, again.skipped) == (0, len(names)), again
    assert shelf.load(job) == 0
    assert len(shelf.rows()) == len(names)


@pytest.mark.guarantee("manifest-once")
def test_a_crash_between_publishing_and_acknowledging_doubles_no_row(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put({f"{n}.wav": tone(n + 1) for n in range(4)})
    job, _ = shelf.probe(new_run())
    with monkeypatch.context() as killed:
        killed.setattr(SpeechManifest, "finish", lambda *_: 1 / 0)
        for loaded in (4, 0):  # the same task again
            with pytest.raises(ZeroDivisionError):
                shelf.load(job)
            assert len(shelf.rows()) == 4, loaded

    shelf.put({"0.wav": tone(9), "new.wav": tone(5)})
    job, summary = shelf.probe(new_run())  # this run does not know that the other one published
    assert summary.done == 5
    assert shelf.load(job) == 2
    rows = shelf.rows()
    assert sorted((row["object"], round(row["duration_seconds"])) for row in rows) == [
        ("0.wav", 1), ("0.wav", 9), ("1.wav", 2), ("2.wav", 3), ("3.wav", 4), ("new.wav", 5),
    ]  # fmt: skip
    versions = {(row["object"], row["checksum"]) for row in rows}
    assert len(versions) == len(rows)
    newest = shelf.clickhouse.query(
        "SELECT count(), uniqExact(object) FROM speech.manifest FINAL WHERE bucket = {bucket:String}",
        parameters={"bucket": str(shelf.audio)},
    ).first_row
    assert newest == (5, 5)


def test_runs_of_prefixes_that_do_not_overlap_run_at_the_same_time(shelf: Shelf, drive: Drive) -> None:
    recordings = Bucket("ais", unique("in"))
    prefixes = {new_run(): prefix for prefix in ("a/", "b/")}
    names = [f"{prefix}{n}.wav" for prefix in prefixes.values() for n in range(3)]
    put(shelf.aistore, recordings, {name: tone(n + 1) for n, name in enumerate(names)})

    def whole(run: str) -> int:
        own = replace(shelf, clickhouse=demo.clickhouse_client(shelf.stack))
        summary = own.transcode(recordings, run, prefix=prefixes[run])
        assert (summary.listed, summary.done, summary.failed) == (3, 3, 0), summary
        job, summary = own.probe(run, prefixes[run])
        assert (summary.done, summary.failed, summary.job_seconds) == (3, 0, 0), summary
        return own.load(job)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(whole, prefixes)) == [3, 3]
    rows = {row["object"]: row["run_id"] for row in shelf.rows()}
    assert rows == {f"{prefix}{n}.wav": run for run, prefix in prefixes.items() for n in range(3)}
    assert len(shelf.rows()) == 6
    for run, prefix in prefixes.items():  # neither has changed what the ledger says about the other's objects
        assert shelf.transcode(recordings, new_run(), prefix=prefix).skipped == 3, run
        assert shelf.probe(new_run(), prefix)[1].skipped == 3


def test_tasks_of_one_run_probe_parts_of_a_bucket(shelf: Shelf) -> None:
    shelf.put({f"{prefix}/{n}.wav": tone(n + 1) for prefix in "ab" for n in range(3)})
    run = new_run()
    for prefix in ("a/", "b/"):
        job, summary = shelf.probe(run, prefix)
        assert (summary.listed, summary.done, summary.failed) == (3, 3, 0), summary
    shelf.probe(run, "b/0")  # parts may overlap
    killed = shelf.probing(run, "b/")  # a try that ended before its task did
    assert killed.begin().pending == 3
    assert len(shelf.collected(job)) == 6
    assert shelf.load(job, max_seconds=2.5, on_invalid_rows="report") == 4
    assert [row["object"] for row in shelf.rows()] == ["a/0.wav", "a/1.wav", "b/0.wav", "b/1.wav"]
    assert failures(shelf.clickhouse, run, job.destination).keys() == {"a/2.wav", "b/2.wav"}
    kept = shelf.clickhouse.query(
        "SELECT object, state, reason FROM storeside.failures FINAL WHERE run_id = {run:String}",
        parameters={"run": run},
    ).result_rows
    reason = "its manifest row is not valid: duration is 0.01 to 2.5 s: duration_seconds"
    assert sorted(kept) == [("a/2.wav", "failed", reason), ("b/2.wav", "failed", reason)]
    assert shelf.load(job) == 4  # the task is cleared
    summary = shelf.probe(new_run())[1]
    assert (summary.skipped, summary.known_bad, summary.done) == (4, 2, 0), summary


@pytest.mark.parametrize("shared", ["facts", "audio"])
def test_one_run_publishes_several_manifests(shelf: Shelf, shared: str) -> None:
    own = Bucket("ais", unique("other"))
    shelves = (shelf, replace(shelf, audio=own) if shared == "facts" else replace(shelf, facts=own))
    run = new_run()
    for n, one in enumerate(shelves):
        one.put({"a.wav": tone(n + 1), f"{n}.wav": tone(n + 3)})
    jobs = [one.probe(run)[0] for one in shelves]
    for one, job in zip(shelves, jobs, strict=True):
        assert len(one.collected(job)) == len(one.found_facts(run))
    for one, job in zip(shelves, jobs, strict=True):
        one.load(job)
    for n, one in enumerate(shelves):
        rows = {row["object"]: round(row["duration_seconds"]) for row in one.rows()}
        together = {"a.wav": 2, "0.wav": 3, "1.wav": 4}
        assert rows == (together if shared == "audio" else {"a.wav": n + 1, f"{n}.wav": n + 3})
        assert one.probe(new_run())[1].skipped == len(rows)


def test_a_probe_of_an_earlier_version_is_published(shelf: Shelf) -> None:
    """Its plan states no selection."""
    shelf.put({"a.wav": tone(1)})
    run = new_run()
    job = shelf.probing(run)
    earlier = BucketJob(
        shelf.aistore, shelf.ledger, shelf.audio, shelf.facts, run_id=run, spec=job.spec, naming=job.naming,
        options=job.options, scope=replace(job.scope, selection=""),
    )  # fmt: skip
    shelf.drive(earlier)
    shelf.clickhouse.command(
        "ALTER TABLE storeside.listings UPDATE object = '' WHERE side = 'planned' AND job = {job:String}",
        parameters={"job": earlier.scope.job}, settings={"mutations_sync": 1},
    )  # fmt: skip
    assert shelf.load(job) == 1
    assert shelf.ledger.planned(earlier.scope) is None


def test_runs_that_overlap_publish_each_row_once(shelf: Shelf) -> None:
    shelf.put({f"{n}.wav": tone(n + 1) for n in range(3)})
    first, second = new_run(), new_run()
    jobs = {run: shelf.probe(run)[0] for run in (first, second)}
    shelf.put({"1.wav": tone(9)})
    third = new_run()
    job, _ = shelf.probe(third)
    assert len(shelf.collected(job)) == 3  # a try that ended before it loaded
    assert [shelf.load(jobs[run]) for run in jobs] == [3, 0]
    assert shelf.load(job) == 1, "of the changed recording"
    assert shelf.load(jobs[second]) == 0
    assert sorted((row["object"], round(row["duration_seconds"]), row["run_id"]) for row in shelf.rows()) == [
        ("0.wav", 1, first), ("1.wav", 2, first), ("1.wav", 9, third), ("2.wav", 3, first),
    ]  # fmt: skip


@pytest.mark.guarantee("manifest-invalid")
def test_invalid_rows_are_left_out_and_recorded_as_failed(shelf: Shelf) -> None:
    shelf.put({"good.wav": tone(2), "odd?name*.wav": tone(3), "broken.wav": b"no audio"})
    run = new_run()
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (2, 1)
    assert shelf.load(job, max_seconds=2.5, min_snr_db=0, channels=1, on_invalid_rows="report") == 1
    assert [row["object"] for row in shelf.rows()] == ["good.wav"]
    failed = failures(shelf.ledger.client, run, job.destination)
    assert set(failed) == {"odd?name*.wav", "broken.wav"}
    assert failed["odd?name*.wav"] == "its manifest row is not valid: duration is 0.01 to 2.5 s: duration_seconds"
    assert shelf.quarantined(run) == {"odd?name*.wav": ["duration is 0.01 to 2.5 s: duration_seconds"]}
    assert "not an audio container" in failed["broken.wav"]
    until(lambda: not shelf.left(run), 20, "end of what the run left")  # AIStore deletes facts in the background
    # both are known to be bad now
    begun = shelf.probe(new_run())[1]
    assert (begun.done, begun.known_bad, begun.skipped) == (0, 2, 1), begun


def test_invalid_rows_fail_the_task_unless_they_are_to_be_reported(shelf: Shelf) -> None:
    """The names of before still work: three tasks that do the same."""
    recordings = Bucket("ais", unique("in"))
    put(shelf.aistore, recordings, {"short.wav": tone(1), "long.wav": tone(3), "longer.wav": tone(5)})
    run = new_run()
    assert shelf.transcode(recordings, run).done == 3
    job, _ = shelf.probe(run)
    with pytest.raises(AirflowFailException, match=r"nothing is published: .*not met in 2 of 3 rows, such as .*long"):
        shelf.load(job, max_seconds=2)
    assert not shelf.rows()
    assert len(shelf.found_facts(run)) == 3  # the cleared task finds its facts

    staged = shelf.former(ClickHouseStageManifestOperator, run, effect=job.scope.effect)
    checked = shelf.former(GXValidateManifestOperator, run, max_seconds=4, on_invalid_rows="report")
    assert len(shelf.rows()) == 2
    published = shelf.former(ClickHousePublishManifestOperator, run, effect=job.scope.effect)
    assert (staged["facts"], staged["rows"]) == (3, 3)
    assert (checked["success"], checked["rows"], checked["invalid"]) == (False, 3, 1)
    assert published == {"rows": 2}
    assert set(failures(shelf.ledger.client, run, job.destination)) == {"longer.wav"}


def test_publishing_alone_loads_what_no_task_has_checked(shelf: Shelf) -> None:
    shelf.put({"a.wav": tone(1)})
    run = new_run()
    job, _ = shelf.probe(run)
    for _ in range(2):  # after tasks of the earlier version; then the task is cleared
        assert shelf.former(ClickHousePublishManifestOperator, run, effect=job.scope.effect) == {"rows": 1}
    assert len(shelf.rows()) == 1


def test_the_end_of_a_load_is_repeated_wherever_it_ended(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put({f"{n}.wav": tone(n + 1) for n in range(3)})
    run = new_run()
    job, _ = shelf.probe(run)
    with monkeypatch.context() as broken:
        broken.setattr("storeside.speech.manifest.islice", lambda *_: 1 / 0)  # as if AIStore did not answer
        with pytest.raises(ZeroDivisionError):
            shelf.load(job)
    assert shelf.left(run)
    for _ in range(2):  # the task is retried, and then cleared
        assert shelf.load(job) == 3
        until(lambda: not shelf.left(run), 20, "end of what the run left")
    assert len(shelf.rows()) == 3
    assert shelf.probe(new_run())[1].skipped == 3


def test_facts_of_earlier_transformers_give_rows_without_the_newer_facts(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["plain.wav", "odd?name.wav"]
    shelf.put({name: tone(1) for name in names})
    run = new_run()
    job, _ = shelf.probe(run)
    for name, content in shelf.found_facts(run).items():
        older = {key: value for key, value in json.loads(content).items() if key not in SIGNAL_COLUMNS}
        put(shelf.aistore, shelf.facts, {facts_prefix(run, shelf.audio) + name: json.dumps(older).encode()})
    with monkeypatch.context() as killed:
        killed.setattr(SpeechManifest, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shelf.load(job)
    assert [[row[column] for column in SIGNAL_COLUMNS] for row in shelf.rows()] == [[None] * 4] * 2

    later = new_run()  # measures the objects again, because no run recorded them as done
    job, _ = shelf.probe(later)
    assert shelf.load(job) == 2
    assert [row["silence_share"] for row in shelf.rows() if row["run_id"] == later] == [0, 0]


def measured(facts: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return the facts without those about the source: a transcode's describe the recording that it read."""
    about_source = {"complete", "declared_seconds", "ignored", *SIGNAL_COLUMNS}
    return {
        name: {key: value for key, value in json.loads(content).items() if key not in about_source}
        for name, content in facts.items()
    }


@pytest.mark.parametrize("over", ["ws", "hpush"])
def test_facts_of_a_transcode_are_those_of_the_probe(
    shelf: Shelf, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, over: str
) -> None:
    names = [name for name in NAMES if over == "ws" or "#" not in name]  # in a push AIStore cuts off the name at "#"
    folder = tmp_path_factory.mktemp("corpus")
    made = speech_corpus.make(demo.RECORDINGS, folder, len(names)).objects
    recordings, plain = Bucket("ais", unique("in")), Bucket("ais", unique("plain"))
    put(shelf.aistore, recordings, dict(zip(names, contents(folder, [o.name for o in made]).values(), strict=True)))
    run, other = new_run(), new_run()
    summary = shelf.transcode(recordings, run, over=over)
    assert (summary.done, summary.failed) == (len(names), 0), summary
    assert shelf.probe(other)[1].done == len(names)
    assert measured(shelf.found_facts(run)) == measured(shelf.found_facts(other))
    assert len(shelf.found_facts(run)) == len(names)

    # a probe of the same run needs no others
    monkeypatch.setattr(etls, "ensure", lambda *_: pytest.fail("an ETL is started"))
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed, summary.job_seconds) == (len(names), 0, 0), summary
    assert summary.bytes_out == sum(len(facts) for facts in shelf.found_facts(run).values())
    assert shelf.load(job) == len(names)
    naming = Naming(AudioFormat().extensions)
    rows = {row["object"]: row for row in shelf.rows()}
    assert {row["source_object"]: name for name, row in rows.items()} == {n: naming.destination(n) for n in names}
    for name, row in rows.items():
        assert row["checksum"] == hashlib.sha256(read(shelf.aistore, shelf.audio, name)).hexdigest(), name
    until(lambda: not shelf.left(run), 20, "end of what the run left")
    monkeypatch.undo()

    # the results are those of a transcode without facts, which is not repeated for the facts
    without = shelf.transcode(recordings, run, facts=False, to=plain)
    assert without.effect == shelf.transcode(recordings, new_run(), to=plain).effect
    assert shelf.transcode(recordings, new_run(), to=plain).skipped == len(names)
    assert sizes(shelf.aistore, plain) == sizes(shelf.aistore, shelf.audio)
    for name in rows:
        assert read(shelf.aistore, plain, name) == read(shelf.aistore, shelf.audio, name), name


def test_recordings_that_differ_in_their_extensions_are_all_published_when_extensions_are_kept(
    shelf: Shelf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    content = next(iter(contents(folder, [speech_corpus.make(demo.RECORDINGS, folder, 1).objects[0].name]).values()))
    recordings = Bucket("ais", unique("in"))
    names = ["own/a.FLAC", "own/a.flac", "own/a.wav", "own/b"]
    put(shelf.aistore, recordings, dict.fromkeys(names, content))

    summary = shelf.transcode(recordings, new_run(), facts=False, to=Bucket("ais", unique("plain")))
    assert (summary.done, summary.failed) == (2, 2), summary
    refused = shelf.clickhouse.query(
        "SELECT object, reason FROM storeside.objects FINAL WHERE source = {source:String} AND status = 'failed'",
        parameters={"source": str(recordings)},
    ).result_rows
    assert {name for name, _ in refused} == {"own/a.flac", "own/a.wav"}
    for _, reason in refused:
        assert reason.startswith("its result would be named own/a.wav, like that of own/a.FLAC: rename one, or give")
        assert "keep_extension of a transcode" in reason

    run = new_run()
    summary = shelf.transcode(recordings, run, audio=AudioFormat(keep_extension=True))
    assert (summary.done, summary.failed, summary.known_bad) == (4, 0, 0), summary
    results = ["own/a.FLAC.wav", "own/a.flac.wav", "own/a.wav", "own/b"]
    assert sorted(shelf.found_facts(run)) == [*(f"{name}.json" for name in results[:3]), "own/b"]
    job, summary = shelf.probe(run)
    assert (summary.done, summary.job_seconds) == (4, 0), "the probe finds the facts of the transcode"
    assert shelf.load(job) == 4
    assert {row["object"]: row["source_object"] for row in shelf.rows()} == dict(zip(results, names, strict=True))


def test_only_facts_of_what_was_delivered_in_this_run_count(shelf: Shelf) -> None:
    old, new, lost = (Bucket("ais", unique(label)) for label in ("old", "new", "lost"))
    put(shelf.aistore, old, {"older.wav": tone(2), "changed.wav": tone(3)})
    assert shelf.transcode(old, new_run()).done == 2  # a run that did not reach publishing
    run = new_run()
    put(shelf.aistore, new, {"made.wav": tone(4), "overwritten.wav": tone(5)})
    assert shelf.transcode(new, run).done == 2
    # results that do not reach their destination, but leave their facts
    put(shelf.aistore, lost, {"changed.wav": tone(6), "lost.wav": tone(7)})
    assert shelf.transcode(lost, run, to=Bucket("ais", unique("elsewhere"))).done == 2
    put(shelf.aistore, shelf.audio, {"foreign.wav": tone(8), "overwritten.wav": tone(9)})
    facts = {"made.wav", "overwritten.wav", "changed.wav", "lost.wav"}
    assert set(shelf.found_facts(run)) == {f"{name}.json" for name in facts}
    before = versions(shelf.aistore, shelf.facts)

    planned = shelf.probing(run).begin()  # by an attempt that was then killed
    assert (planned.phase, planned.pending) == ("objects", 5)
    job, summary = shelf.probe(run)
    assert (summary.listed, summary.done, summary.failed) == (5, 5, 0), summary
    after = versions(shelf.aistore, shelf.facts)
    kept = {name.removeprefix(facts_prefix(run, shelf.audio)) for name in before if after[name] == before[name]}
    assert kept >= {"made.wav.json", "lost.wav.json"}
    assert not kept & {"changed.wav.json", "overwritten.wav.json"}

    assert shelf.load(job, on_invalid_rows="report") == 4
    assert set(shelf.quarantined(run)) == {"foreign.wav"}  # its source is unknown
    rows = {row["object"]: row for row in shelf.rows()}
    assert {name: round(row["duration_seconds"]) for name, row in rows.items()} == {
        "older.wav": 2, "changed.wav": 3, "made.wav": 4, "overwritten.wav": 9,
    }  # fmt: skip
    for name, row in rows.items():
        assert row["checksum"] == hashlib.sha256(read(shelf.aistore, shelf.audio, name)).hexdigest(), name
    until(lambda: not shelf.left(run), 20, "end of what the run left")
    again = shelf.probe(new_run())[1]
    assert (again.skipped, again.known_bad) == (4, 1)


def test_facts_of_any_name_are_loaded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some names are longer than a field of a tar header, or look like patterns or URLs."""
    long = "/".join(["n" * 200] * 4)
    names = [*(name for name in NAMES if len(name) < 250), *(f"{n}/{long}.wav" for n in range(3)), "ü" * 90 + ".wav"]
    shelf.put({name: tone(0.1 + n / 100) for n, name in enumerate(names)})
    job, summary = shelf.probe(new_run())
    assert (summary.done, summary.failed) == (len(names), 0), summary
    monkeypatch.setattr("storeside.aistore.many.BATCH_OBJECTS", 5)
    assert shelf.load(job) == len(names)
    rows = {row["object"]: row["checksum"] for row in shelf.rows()}
    assert rows == {name: hashlib.sha256(tone(0.1 + n / 100)).hexdigest() for n, name in enumerate(names)}

    # the next run reads a changed recording in the same way, and no other
    shelf.put({names[0]: tone(2)})
    job, _ = shelf.probe(new_run())
    assert shelf.load(job) == 1
    newest = "SELECT checksum FROM speech.manifest FINAL WHERE bucket = {bucket:String} AND object = {object:String}"
    asked = {"bucket": str(shelf.audio), "object": names[0]}
    assert shelf.clickhouse.query(newest, parameters=asked).result_rows == [(hashlib.sha256(tone(2)).hexdigest(),)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no JSON", "it is no JSON object"),
        (b"[]", "it is a list or a value"),
        (b'{"samples": 1}\n{"path": "facts/other.json"}', "it is no JSON object"),
        (b'{"samples": 1}{"samples": 1}', "it is no JSON object"),
        (b'{"samples": NaN}', "the value of 'samples' has another type"),
        (b'{"duration_seconds": "long"}', "the value of 'duration_seconds' has another type"),
        (b'{"complete": true}', "the value of 'complete' has another type"),
    ],
)
def test_facts_that_are_not_readable_are_named(shelf: Shelf, content: bytes, reason: str) -> None:
    shelf.put({f"{n}.wav": tone(0.1) for n in range(5)})
    run = new_run()
    job, _ = shelf.probe(run)
    put(shelf.aistore, shelf.facts, {f"{facts_prefix(run, shelf.audio)}3.wav.json": content})
    with pytest.raises(
        UnreadableFactsError, match=rf"{facts_prefix(run, shelf.audio)}3\.wav\.json cannot be read: .*{reason}"
    ):
        shelf.collected(job)


def test_facts_that_are_gone_are_missed(shelf: Shelf) -> None:
    shelf.put({"a.wav": tone(1), "b.wav": tone(2)})
    run = new_run()
    job, _ = shelf.probe(run)
    shelf.facts.handle(shelf.aistore).object(f"{facts_prefix(run, shelf.audio)}b.wav.json").delete()
    with pytest.raises(ManifestError, match=r"has lost 1 facts of this run, .*'b.wav'"):
        shelf.collected(job)
