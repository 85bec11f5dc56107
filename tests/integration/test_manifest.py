"""From audio in AIStore to rows in ClickHouse: the facts are the real ones, and each is loaded once."""

from __future__ import annotations

import hashlib
import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from include.stack import demo, speech_corpus
from include.stack.settings import Stack
from include.storage.buckets import Bucket
from include.transfer.manifest import SpeechManifest, run_prefix
from include.transform.bucket_job import BucketJob, Options, Summary, acknowledge
from include.transform.ledger import Ledger
from include.transform.naming import Naming
from include.transformers.formats import CODECS, AudioFormat
from tests.support import contents, probe_spec, put, read, sizes, transcode_spec, unique

pytestmark = pytest.mark.timeout(120)

Drive = Callable[[BucketJob], Summary]
HOSTILE = tuple(n for n in speech_corpus.HOSTILE_NAMES if not n.startswith("../") and "//" not in n)
# of 16-bit WAV samples, whose levels are compared with those of the probe
DECIBELS = 0.01


@dataclass
class Shelf:
    """A bucket of audio and its way into the manifest."""

    stack: Stack
    aistore: Any
    clickhouse: Any
    drive: Drive
    audio: Bucket
    facts: Bucket

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.clickhouse)

    def probe(self, run: str) -> tuple[BucketJob, Summary]:
        naming = Naming({c: f"{c}.json" for c in CODECS}, run_prefix(run))
        job = BucketJob(
            self.aistore, self.ledger, self.audio, self.facts,
            run_id=run, spec=probe_spec(), naming=naming, options=Options(keeps_result=False),
        )  # fmt: skip
        return job, self.drive(job)

    def manifest(self, run: str) -> SpeechManifest:
        return SpeechManifest(self.clickhouse, self.audio, self.facts, self.stack.url("ais_proxy"), run)

    def acknowledge(self, job: BucketJob, manifest: SpeechManifest) -> None:
        """Do what the publishing task does after publishing."""
        acknowledge(self.ledger, job.scope, lambda: manifest.fail_invalid(job.scope))
        manifest.clean_up(self.aistore)

    def rows(self) -> list[dict[str, Any]]:
        found = self.clickhouse.query(
            "SELECT * FROM storeside.speech WHERE bucket = {bucket:String} ORDER BY object",
            parameters={"bucket": str(self.audio)},
        )
        return list(found.named_results())

    def left(self, run: str) -> list[str]:
        """Return what a run has left: staging tables and facts."""
        key = run_prefix(run).rstrip("/")
        tables = self.clickhouse.query(
            "SELECT name FROM system.tables WHERE database = 'storeside_staging' AND endsWith(name, {key:String})",
            parameters={"key": key},
        ).result_rows
        facts = [name for name in sizes(self.aistore, self.facts) if name.startswith(run_prefix(run))]
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
        shelf.aistore, shelf.ledger, recordings, shelf.audio, run_id=run, spec=transcode_spec(), naming=naming
    )
    assert shelf.drive(transcode).done == len(names)
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (len(names), 0), summary

    manifest = shelf.manifest(run)
    staged = manifest.stage(shelf.aistore)
    assert (staged.facts, staged.rows) == (len(names), len(names))
    assert manifest.stage(shelf.aistore) == staged  # a retry starts afresh
    assert not shelf.rows()  # nothing is visible yet
    assert manifest.publish() == len(names)
    assert manifest.publish() == len(names)

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
        assert row["run_id"] == run

    shelf.acknowledge(job, manifest)
    assert not shelf.left(run)
    later = unique("run")
    _, again = shelf.probe(later)
    assert (again.done, again.skipped) == (0, len(names)), again
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore).rows == 0
    assert manifest.publish() == 0
    assert len(shelf.rows()) == len(names)


def test_a_crash_between_publishing_and_acknowledging_doubles_no_row(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {f"{n}.wav": tone(n + 1) for n in range(4)})
    killed = unique("run")
    shelf.probe(killed)
    manifest = shelf.manifest(killed)
    assert manifest.stage(shelf.aistore).rows == 4
    assert manifest.publish() == 4
    # the same task again, from its start or from its publishing
    assert manifest.stage(shelf.aistore).rows == 0
    assert manifest.publish() == 4

    later = unique("run")  # which does not know that the other published
    put(shelf.aistore, shelf.audio, {"0.wav": tone(9), "new.wav": tone(5)})
    job, summary = shelf.probe(later)
    assert summary.done == 5
    manifest = shelf.manifest(later)
    assert manifest.stage(shelf.aistore).rows == 2
    assert manifest.publish() == 2
    shelf.acknowledge(job, manifest)
    rows = shelf.rows()
    assert sorted((row["object"], round(row["duration_seconds"])) for row in rows) == [
        ("0.wav", 1), ("0.wav", 9), ("1.wav", 2), ("2.wav", 3), ("3.wav", 4), ("new.wav", 5),
    ]  # fmt: skip
    versions = {(row["object"], row["checksum"]) for row in rows}
    assert len(versions) == len(rows)
    newest = shelf.clickhouse.query(
        "SELECT count(), uniqExact(object) FROM storeside.speech FINAL WHERE bucket = {bucket:String}",
        parameters={"bucket": str(shelf.audio)},
    ).first_row
    assert newest == (5, 5)


def test_invalid_rows_are_left_out_and_recorded_as_failed(shelf: Shelf) -> None:
    put(shelf.aistore, shelf.audio, {"good.wav": tone(2), "odd?name*.wav": tone(3), "broken.wav": b"no audio"})
    run = unique("run")
    job, summary = shelf.probe(run)
    assert (summary.done, summary.failed) == (2, 1)
    manifest = shelf.manifest(run)
    assert manifest.stage(shelf.aistore).rows == 2
    manifest.mark_invalid(["odd?name*.wav"], "duration_seconds is at most 2")
    manifest.mark_invalid(["odd?name*.wav"], "peak_dbfs is below 0")
    assert manifest.invalid() == 1
    manifest.leave_out_invalid()
    assert manifest.publish() == 1
    shelf.acknowledge(job, manifest)

    assert [row["object"] for row in shelf.rows()] == ["good.wav"]
    failed = dict(shelf.ledger.failures(job.scope, 10))
    assert set(failed) == {"odd?name*.wav", "broken.wav"}
    assert failed["odd?name*.wav"].endswith("duration_seconds is at most 2; peak_dbfs is below 0")
    assert "not an audio container" in failed["broken.wav"]
    assert not shelf.left(run)
    # both are known to be bad now
    begun = shelf.probe(unique("run"))[1]
    assert (begun.done, begun.known_bad, begun.skipped) == (0, 2, 1), begun
