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
from storeside.operators.operators.speech_manifest import GXValidateManifestOperator
from storeside.speech.errors import ManifestError, UnreadableFactsError
from storeside.speech.facts import PULLED
from storeside.speech.manifest import SpeechManifest, facts_naming, facts_prefix, facts_url
from storeside.speech.suites import SIGNAL_COLUMNS
from storeside.stack import demo, speech_corpus
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transform.bucket_job import BucketJob, acknowledge
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.transcoding import probe
from tests.support import contents, failures, probe_spec, put, read, sizes, transcode_spec, unique, until, versions

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]
HOSTILE = tuple(n for n in speech_corpus.HOSTILE_NAMES if not n.startswith("../") and "//" not in n)
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
        proxy = self.stack.url("ais_proxy")
        return SpeechManifest(self.clickhouse, self.audio, self.facts, proxy, run, "storeside_aistore")

    def acknowledge(self, job: BucketJob, manifest: SpeechManifest) -> None:
        """Do what the publishing task does after publishing."""
        acknowledge(self.ledger, job.scope, manifest.fail_invalid)
        manifest.clean_up(self.aistore)

    def rows(self) -> list[dict[str, Any]]:
        found = self.clickhouse.query(
            "SELECT * FROM speech.manifest WHERE bucket = {bucket:String} ORDER BY object",
            parameters={"bucket": str(self.audio)},
        )
        return list(found.named_results())

    def left(self, run: str) -> list[str]:
        """Return the staging tables and facts that a run has left."""
        manifest = self.manifest(run)
        tables = self.clickhouse.query(
            "SELECT name FROM system.tables WHERE database = 'storeside_staging' AND name IN {names:Array(String)}",
            parameters={"names": [manifest.facts_table, manifest.invalid_table, manifest.staging_table]},
        ).result_rows
        facts = [name for name in sizes(self.aistore, self.facts) if name.startswith(manifest.prefix)]
        return [*(name for (name,) in tables), *facts]


@pytest.fixture
def shelf(stack: Stack, aistore: Any, clickhouse: Any, drive: Drive) -> Shelf:
    return Shelf(stack, aistore, clickhouse, drive, Bucket("ais", unique("audio")), Bucket("ais", unique("facts")))


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
    run = unique("run")
    naming = Naming(AudioFormat().extensions)
    transcode = BucketJob(
        shelf.aistore, shelf.ledger, recordings, shelf.audio, run_id=run, spec=transcode_spec(), naming=naming,
        options=Options(keep_etl=True),
    )  # fmt: skip
    assert shelf.drive(transcode).done == len(names)
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (len(names), 0), summary

    manifest = shelf.manifest(run)
    staged = manifest.stage(shelf.aistore, job.scope)
    assert (staged.facts, staged.rows) == (len(names), len(names))
    assert manifest.stage(shelf.aistore, job.scope) == staged  # a retry starts from scratch
    assert not shelf.rows()  # nothing is visible yet
    assert manifest.publish(job.scope) == len(names)
    assert manifest.publish(job.scope) == len(names)

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

    shelf.acknowledge(job, manifest)
    until(lambda: not shelf.left(run), 20, "end of what the run left")  # AIStore deletes facts in the background
    later = unique("run")
    job, again = shelf.probe(later)
    assert (again.done, again.skipped) == (0, len(names)), again
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore, job.scope).rows == 0
    assert manifest.publish(job.scope) == 0
    assert len(shelf.rows()) == len(names)


@pytest.mark.guarantee("manifest-once")
def test_a_crash_between_publishing_and_acknowledging_doubles_no_row(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(n + 1) for n in range(4)})
    killed = unique("run")
    job, _ = shelf.probe(killed)
    manifest = shelf.manifest(killed)
    assert manifest.stage(shelf.aistore, job.scope).rows == 4
    assert manifest.publish(job.scope) == 4
    # the same task again, from its start or from its publishing
    assert manifest.stage(shelf.aistore, job.scope).rows == 0
    assert manifest.publish(job.scope) == 4

    later = unique("run")  # this run does not know that the other one published
    put(shelf.aistore, shelf.audio, {"0.wav": tone(9), "new.wav": tone(5)})
    job, summary = shelf.probe(later)
    assert summary.done == 5
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore, job.scope).rows == 2
    assert manifest.publish(job.scope) == 2
    shelf.acknowledge(job, manifest)
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
    prefixes = {unique("run"): prefix for prefix in ("a/", "b/")}
    names = [f"{prefix}{n}.wav" for prefix in prefixes.values() for n in range(3)]
    put(shelf.aistore, recordings, {name: tone(n + 1) for n, name in enumerate(names)})

    def whole(run: str) -> int:
        own = replace(shelf, clickhouse=demo.clickhouse_client(shelf.stack))
        summary = own.transcode(recordings, run, prefix=prefixes[run])
        assert (summary.listed, summary.done, summary.failed) == (3, 3, 0), summary
        job, summary = own.probe(run, prefixes[run])
        assert (summary.done, summary.failed, summary.job_seconds) == (3, 0, 0), summary
        manifest = own.manifest(run)
        assert manifest.stage(own.aistore, job.scope).rows == 3
        published = manifest.publish(job.scope)
        own.acknowledge(job, manifest)
        return published

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(whole, prefixes)) == [3, 3]
    rows = {row["object"]: row["run_id"] for row in shelf.rows()}
    assert rows == {f"{prefix}{n}.wav": run for run, prefix in prefixes.items() for n in range(3)}
    assert len(shelf.rows()) == 6
    for run, prefix in prefixes.items():  # neither has changed what the ledger says about the other's objects
        assert shelf.transcode(recordings, unique("run"), prefix=prefix).skipped == 3, run
        assert shelf.probe(unique("run"), prefix)[1].skipped == 3


def test_tasks_of_one_run_probe_parts_of_a_bucket(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {f"{prefix}/{n}.wav": tone(n + 1) for prefix in "ab" for n in range(3)})
    run = unique("run")
    for prefix in ("a/", "b/"):
        job, summary = shelf.probe(run, prefix)
        assert (summary.listed, summary.done, summary.failed) == (3, 3, 0), summary
    shelf.probe(run, "b/0")  # parts may overlap
    killed = shelf.probing(run, "b/")  # a try that ended before its task did
    assert killed.begin().pending == 3
    manifest = shelf.manifest(run)
    for pulled in (PULLED, 0):
        assert manifest.stage(shelf.aistore, job.scope, pulled).rows == 6
    manifest.mark_invalid(["b/1.wav"], "duration_seconds is at most 1")
    manifest.leave_out_invalid()
    assert manifest.publish(job.scope) == 5
    shelf.acknowledge(job, manifest)
    assert [row["object"] for row in shelf.rows()] == ["a/0.wav", "a/1.wav", "a/2.wav", "b/0.wav", "b/2.wav"]
    assert failures(shelf.clickhouse, run, job.destination).keys() == {"b/1.wav"}
    kept = shelf.clickhouse.query(
        "SELECT object, state, reason FROM storeside.failures FINAL WHERE run_id = {run:String}",
        parameters={"run": run},
    ).result_rows
    assert kept == [("b/1.wav", "failed", "its manifest row is not valid: duration_seconds is at most 1")]
    assert manifest.publish(job.scope) == 5
    summary = shelf.probe(unique("run"))[1]
    assert (summary.skipped, summary.known_bad, summary.done) == (5, 1, 0), summary


@pytest.mark.parametrize("shared", ["facts", "audio"])
def test_one_run_publishes_several_manifests(shelf: Shelf, shared: str) -> None:
    own = Bucket("ais", unique("other"))
    shelves = (shelf, replace(shelf, audio=own) if shared == "facts" else replace(shelf, facts=own))
    run = unique("run")
    for n, one in enumerate(shelves):
        put(one.aistore, one.audio, {"a.wav": tone(n + 1), f"{n}.wav": tone(n + 3)})
    jobs = [one.probe(run)[0] for one in shelves]
    for one, job in zip(shelves, jobs, strict=True):
        assert one.manifest(run).stage(one.aistore, job.scope).rows == len(one.found_facts(run))
    for one, job in zip(shelves, jobs, strict=True):
        manifest = one.manifest(run)
        manifest.publish(job.scope)
        one.acknowledge(job, manifest)
    for n, one in enumerate(shelves):
        rows = {row["object"]: round(row["duration_seconds"]) for row in one.rows()}
        together = {"a.wav": 2, "0.wav": 3, "1.wav": 4}
        assert rows == (together if shared == "audio" else {"a.wav": n + 1, f"{n}.wav": n + 3})
        assert one.probe(unique("run"))[1].skipped == len(rows)


def test_a_probe_of_an_earlier_version_is_published(shelf: Shelf) -> None:
    """Its plan states no selection."""
    put(shelf.aistore, shelf.audio, {"a.wav": tone(1)})
    run = unique("run")
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
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 1
    assert manifest.publish(job.scope) == 1
    shelf.acknowledge(job, manifest)
    assert shelf.ledger.planned(earlier.scope) is None


def test_runs_that_overlap_publish_each_row_once(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(n + 1) for n in range(3)})
    first, second = unique("run"), unique("run")
    jobs = {run: shelf.probe(run)[0] for run in (first, second)}
    staged = {run: shelf.manifest(run).stage(shelf.aistore, jobs[run].scope).rows for run in jobs}
    assert staged == {first: 3, second: 3}, "neither knows the other's rows"
    put(shelf.aistore, shelf.audio, {"1.wav": tone(9)})
    third = unique("run")
    job, _ = shelf.probe(third)
    assert shelf.manifest(third).stage(shelf.aistore, job.scope).rows == 3
    assert [shelf.manifest(run).publish(jobs[run].scope) for run in jobs] == [3, 0]
    assert shelf.manifest(third).publish(job.scope) == 1, "of the changed recording"
    assert shelf.manifest(second).publish(jobs[second].scope) == 0
    assert sorted((row["object"], round(row["duration_seconds"]), row["run_id"]) for row in shelf.rows()) == [
        ("0.wav", 1, first), ("1.wav", 2, first), ("1.wav", 9, third), ("2.wav", 3, first),
    ]  # fmt: skip


@pytest.mark.guarantee("manifest-invalid")
def test_invalid_rows_are_left_out_and_recorded_as_failed(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {"good.wav": tone(2), "odd?name*.wav": tone(3), "broken.wav": b"no audio"})
    run = unique("run")
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (2, 1)
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 2
    manifest.mark_invalid(["odd?name*.wav"], "duration_seconds is at most 2")
    manifest.mark_invalid(["odd?name*.wav"], "peak_dbfs is below 0")
    assert manifest.invalid() == 1
    manifest.leave_out_invalid()
    assert manifest.publish(job.scope) == 1
    shelf.acknowledge(job, manifest)

    assert [row["object"] for row in shelf.rows()] == ["good.wav"]
    failed = failures(shelf.ledger.client, run, job.destination)
    assert set(failed) == {"odd?name*.wav", "broken.wav"}
    assert failed["odd?name*.wav"].endswith("duration_seconds is at most 2; peak_dbfs is below 0")
    assert "not an audio container" in failed["broken.wav"]
    until(lambda: not shelf.left(run), 20, "end of what the run left")  # AIStore deletes facts in the background
    # both are known to be bad now
    begun = shelf.probe(unique("run"))[1]
    assert (begun.done, begun.known_bad, begun.skipped) == (0, 2, 1), begun


def test_a_validation_that_is_cleared_judges_anew_what_is_still_staged(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in airflow.environment(shelf.stack).items():
        if name.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(name, value)
    recordings = Bucket("ais", unique("in"))
    put(shelf.aistore, recordings, {"short.wav": tone(1), "long.wav": tone(3), "longer.wav": tone(5)})
    dag_run = SimpleNamespace(dag_id="speech", run_id=unique("run"))
    run = f"speech/{dag_run.run_id}"
    assert shelf.transcode(recordings, run).done == 3
    job, _ = shelf.probe(run)
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 3
    context: Any = {"dag_run": dag_run, "ti": SimpleNamespace(dag_id="speech", task_id="validate", map_index=-1)}

    def invalid(max_seconds: float, on_invalid_rows: str = "report") -> int:
        task = GXValidateManifestOperator(
            task_id="validate", bucket=str(shelf.audio), facts=str(shelf.facts), max_seconds=max_seconds,
            on_invalid_rows=on_invalid_rows,
        )  # fmt: skip
        return int(task.execute(context)["invalid"])

    with pytest.raises(AirflowFailException, match="nothing was published"):
        invalid(2, "fail")
    assert manifest.invalid() == 2
    assert invalid(4) == 1
    assert manifest.staged() == 2
    assert invalid(4) == 1, "what was left out is not there to be judged again, and stays invalid"
    assert manifest.publish(job.scope) == 2
    shelf.acknowledge(job, manifest)
    assert set(failures(shelf.ledger.client, run, job.destination)) == {"longer.wav"}


def test_publishing_is_repeated_wherever_its_clean_up_ended(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(n + 1) for n in range(3)})
    run = unique("run")
    job, _ = shelf.probe(run)
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 3
    command = shelf.clickhouse.command

    def publish(away: str = "") -> None:
        """Do what the task does; ClickHouse does not answer a statement that contains these words."""

        def answer(text: str, *arguments: Any, **named: Any) -> Any:
            if away and away in text:
                raise ConnectionError(away)
            return command(text, *arguments, **named)

        monkeypatch.setattr(shelf.clickhouse, "command", answer)
        assert manifest.publish(job.scope) == 3
        shelf.acknowledge(job, manifest)

    with monkeypatch.context() as broken:
        broken.setattr("storeside.speech.manifest.list_aistore", lambda *_: iter([object()]))
        with pytest.raises(AttributeError):  # as if AIStore did not answer
            publish()
    for table in (manifest.facts_table, manifest.invalid_table, manifest.staging_table):
        with pytest.raises(ConnectionError):
            publish(away=f"DROP TABLE IF EXISTS storeside_staging.`{table}`")
    publish()
    until(lambda: not shelf.left(run), 20, "end of what the run left")
    publish()  # the task is cleared
    assert len(shelf.rows()) == 3
    assert shelf.probe(unique("run"))[1].skipped == 3


def test_facts_of_earlier_transformers_give_rows_without_the_newer_facts(shelf: Shelf) -> None:
    names = ["plain.wav", "odd?name.wav"]  # the worker reads the second one
    put(shelf.aistore, shelf.audio, {name: tone(1) for name in names})
    run = unique("run")
    job, _ = shelf.probe(run)
    for name, content in shelf.found_facts(run).items():
        older = {key: value for key, value in json.loads(content).items() if key not in SIGNAL_COLUMNS}
        put(shelf.aistore, shelf.facts, {facts_prefix(run, shelf.audio) + name: json.dumps(older).encode()})
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 2
    assert manifest.publish(job.scope) == 2
    assert [[row[column] for column in SIGNAL_COLUMNS] for row in shelf.rows()] == [[None] * 4] * 2
    assert manifest.stage(shelf.aistore, job.scope).rows == 0

    later = unique("run")  # measures the objects again, because no run recorded them as done
    job, _ = shelf.probe(later)
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore, job.scope).rows == 2
    assert manifest.publish(job.scope) == 2
    assert [row["silence_share"] for row in shelf.rows() if row["run_id"] == later] == [0, 0]
    assert manifest.stage(shelf.aistore, job.scope).rows == 0
    shelf.acknowledge(job, manifest)


def test_staged_rows_that_are_gone_are_missed(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {"a.wav": tone(1)})
    run = unique("run")
    job, _ = shelf.probe(run)
    manifest = shelf.manifest(run)
    manifest.stage(shelf.aistore, job.scope)
    manifest.clean_up(shelf.aistore)
    with pytest.raises(ManifestError, match=f"{run} does not exist, and the rows are not published: clear the task"):
        manifest.publish(job.scope)


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
    run, other = unique("run"), unique("run")
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
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == len(names)
    assert manifest.publish(job.scope) == len(names)
    naming = Naming(AudioFormat().extensions)
    rows = {row["object"]: row for row in shelf.rows()}
    assert {row["source_object"]: name for name, row in rows.items()} == {n: naming.destination(n) for n in names}
    for name, row in rows.items():
        assert row["checksum"] == hashlib.sha256(read(shelf.aistore, shelf.audio, name)).hexdigest(), name
    shelf.acknowledge(job, manifest)
    until(lambda: not shelf.left(run), 20, "end of what the run left")
    monkeypatch.undo()

    # the results are those of a transcode without facts, which is not repeated for the facts
    without = shelf.transcode(recordings, run, facts=False, to=plain)
    assert without.effect == shelf.transcode(recordings, unique("run"), to=plain).effect
    assert shelf.transcode(recordings, unique("run"), to=plain).skipped == len(names)
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

    summary = shelf.transcode(recordings, unique("run"), facts=False, to=Bucket("ais", unique("plain")))
    assert (summary.done, summary.failed) == (2, 2), summary
    refused = shelf.clickhouse.query(
        "SELECT object, reason FROM storeside.objects FINAL WHERE source = {source:String} AND status = 'failed'",
        parameters={"source": str(recordings)},
    ).result_rows
    assert {name for name, _ in refused} == {"own/a.flac", "own/a.wav"}
    for _, reason in refused:
        assert reason.startswith("its result would be named own/a.wav, like that of own/a.FLAC: rename one, or give")
        assert "keep_extension of a transcode" in reason

    run = unique("run")
    summary = shelf.transcode(recordings, run, audio=AudioFormat(keep_extension=True))
    assert (summary.done, summary.failed, summary.known_bad) == (4, 0, 0), summary
    results = ["own/a.FLAC.wav", "own/a.flac.wav", "own/a.wav", "own/b"]
    assert sorted(shelf.found_facts(run)) == [*(f"{name}.json" for name in results[:3]), "own/b"]
    job, summary = shelf.probe(run)
    assert (summary.done, summary.job_seconds) == (4, 0), "the probe finds the facts of the transcode"
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 4
    assert manifest.publish(job.scope) == 4
    assert {row["object"]: row["source_object"] for row in shelf.rows()} == dict(zip(results, names, strict=True))


def test_only_facts_of_what_was_delivered_in_this_run_count(shelf: Shelf) -> None:
    old, new, lost = (Bucket("ais", unique(label)) for label in ("old", "new", "lost"))
    put(shelf.aistore, old, {"older.wav": tone(2), "changed.wav": tone(3)})
    assert shelf.transcode(old, unique("run")).done == 2  # a run that did not reach publishing
    run = unique("run")
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

    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore, job.scope).rows == 5
    manifest.publish(job.scope)
    rows = {row["object"]: row for row in shelf.rows()}
    assert {name: round(row["duration_seconds"]) for name, row in rows.items()} == {
        "older.wav": 2, "changed.wav": 3, "made.wav": 4, "foreign.wav": 8, "overwritten.wav": 9,
    }  # fmt: skip
    for name, row in rows.items():
        assert row["checksum"] == hashlib.sha256(read(shelf.aistore, shelf.audio, name)).hexdigest(), name
    shelf.acknowledge(job, manifest)
    until(lambda: not shelf.left(run), 20, "end of what the run left")
    assert shelf.probe(unique("run"))[1].skipped == 5


def test_facts_of_any_name_are_staged_in_batches_and_by_pull(shelf: Shelf) -> None:
    """Some names are longer than a field of a tar header, or look like patterns or URLs."""
    long = "/".join(["n" * 200] * 4)
    names = [*(name for name in NAMES if len(name) < 250), *(f"{n}/{long}.wav" for n in range(3)), "ü" * 90 + ".wav"]
    put(shelf.aistore, shelf.audio, {name: tone(0.1 + n / 100) for n, name in enumerate(names)})
    run = unique("run")
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (len(names), 0), summary
    manifest = shelf.manifest(run)
    tables = []
    for pulled in (PULLED, 0, 0):
        staged = manifest.stage(shelf.aistore, job.scope, pulled)
        assert (staged.facts, staged.rows) == (len(names), len(names))
        assert staged.facts_bytes == sum(map(len, shelf.found_facts(run).values()))
        table = f"SELECT * FROM storeside_staging.`{manifest.facts_table}` ORDER BY path"
        tables.append(shelf.clickhouse.query(table).result_rows)
    assert tables[0] == tables[1] == tables[2]
    assert manifest.publish(job.scope) == len(names)
    rows = {row["object"]: row["checksum"] for row in shelf.rows()}
    assert rows == {name: hashlib.sha256(tone(0.1 + n / 100)).hexdigest() for n, name in enumerate(names)}
    shelf.acknowledge(job, manifest)

    # the next run reads a changed recording in the same way, and no other
    put(shelf.aistore, shelf.audio, {names[0]: tone(2)})
    later = unique("run")
    job, _ = shelf.probe(later)
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore, job.scope, 0).rows == 1
    assert manifest.publish(job.scope) == 1
    newest = "SELECT checksum FROM speech.manifest FINAL WHERE bucket = {bucket:String} AND object = {object:String}"
    asked = {"bucket": str(shelf.audio), "object": names[0]}
    assert shelf.clickhouse.query(newest, parameters=asked).result_rows == [(hashlib.sha256(tone(2)).hexdigest(),)]
    shelf.acknowledge(job, manifest)


def test_a_task_that_is_killed_between_batches_starts_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(0.1) for n in range(9)})
    run = unique("run")
    job, _ = shelf.probe(run)
    manifest = shelf.manifest(run)
    insert = shelf.clickhouse.raw_insert
    answers = iter([True, True, False])

    def answer(*arguments: Any, **named: Any) -> Any:
        insert(*arguments, **named)
        if not next(answers, True):
            raise ConnectionError("the answer is lost")

    with monkeypatch.context() as broken:
        broken.setattr("storeside.aistore.many.BATCH_OBJECTS", 2)
        broken.setattr(shelf.clickhouse, "raw_insert", answer)
        with pytest.raises(ConnectionError):
            manifest.stage(shelf.aistore, job.scope, 0)
        assert manifest.staged() == 0
        assert manifest.stage(shelf.aistore, job.scope, 0).rows == 9
    assert manifest.publish(job.scope) == 9

    # the client repeats an INSERT whose answer was lost
    def repeated(*arguments: Any, **named: Any) -> None:
        insert(*arguments, **named)
        insert(*arguments, **named)

    monkeypatch.setattr(shelf.clickhouse, "raw_insert", repeated)
    with pytest.raises(ManifestError, match="stored 9 facts twice"):
        manifest.stage(shelf.aistore, job.scope, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no JSON", "it is no JSON object"),
        (b"[]", "it is a list or a value"),
        (b'{"samples": 1}\n{"path": "facts/other.json"}', "it is no JSON object"),
        (b'{"samples": 1}{"samples": 1}', "it is no JSON object"),
        (b'{"duration_seconds": "long"}', "duration_seconds"),
        (b'{"path": "another"}', "path"),
    ],
)
def test_facts_that_are_not_readable_are_named(shelf: Shelf, content: bytes, reason: str) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(0.1) for n in range(5)})
    run = unique("run")
    job, _ = shelf.probe(run)
    put(shelf.aistore, shelf.facts, {f"{facts_prefix(run, shelf.audio)}3.wav.json": content})
    with pytest.raises(
        UnreadableFactsError, match=rf"{facts_prefix(run, shelf.audio)}3\.wav\.json cannot be read: .*{reason}"
    ):
        shelf.manifest(run).stage(shelf.aistore, job.scope, 0)


def test_facts_with_two_rows_are_named_when_clickhouse_pulls_them(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(0.1) for n in range(3)})
    run = unique("run")
    job, _ = shelf.probe(run)
    name = f"{facts_prefix(run, shelf.audio)}1.wav.json"
    put(shelf.aistore, shelf.facts, {name: 2 * read(shelf.aistore, shelf.facts, name)})
    with pytest.raises(UnreadableFactsError, match=rf"{facts_prefix(run, shelf.audio)}1\.wav\.json cannot be read"):
        shelf.manifest(run).stage(shelf.aistore, job.scope)


def test_facts_that_are_gone_are_missed(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {"a.wav": tone(1), "b.wav": tone(2)})
    run = unique("run")
    job, _ = shelf.probe(run)
    shelf.facts.handle(shelf.aistore).object(f"{facts_prefix(run, shelf.audio)}b.wav.json").delete()
    with pytest.raises(ManifestError, match=r"has lost 1 facts of this run, .*'b.wav'"):
        shelf.manifest(run).stage(shelf.aistore, job.scope)
