"""Recordings become shards of utterances on a real cluster, and the facts in the shards become rows."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds
from aistore.sdk.utils import parse_url

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.speech.columns import UTTERANCE_COLUMNS
from storeside.speech.export import ExportError, export
from storeside.stack import demo
from storeside.stack.settings import Stack
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.source import Source
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.utterance_options import shard_extensions
from tests.support import IMAGE, INIT_SECONDS, failures, put, read, sizes, unique
from tests.transfers import FromAIStore
from tests.unit.test_audio import wav
from tests.unit.test_utterances import RATE, samples_of

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]
SPEECH = [samples_of(path.read_bytes()) for path in sorted(demo.RECORDINGS.glob("*.flac"))]


def talk(*numbers: int) -> bytes:
    """Return a recording of speech with a second of silence around each part."""
    pause = np.zeros(RATE, "<i2")
    return wav(np.concatenate([pause, *(part for n in numbers for part in (SPEECH[n], pause))]))


class Cutting(FromAIStore):
    """One test's buckets of recordings, shards and facts, and its table."""

    def __init__(self, stack: Stack, clickhouse: Any, aistore: Any, s3: Any, drive: Drive) -> None:
        super().__init__(stack, clickhouse, aistore)
        self.s3 = s3
        self.recordings, self.shards = Bucket("ais", unique("talks")), Bucket("ais", unique("utterances"))
        put(aistore, self.recordings, {})
        self._drive = drive

    def cut(self, communication: str = "ws", run: str = "") -> Summary:
        spec = self._spec("audio_utterances", communication)
        return self._job(self.recordings, self.shards, spec, Naming(shard_extensions(False)), run)

    def describe(self) -> Summary:
        extensions = {"tar": "jsonl"}
        spec = self._spec("text_json").of_members("*.json", extensions)
        return self._job(self.shards, self.place, spec, Naming(extensions))

    def _spec(self, transform: str, communication: str = "ws") -> EtlSpec:
        return EtlSpec(
            transform.replace("_", "-"), IMAGE, transformer_command(transform), communication=communication,
            tuning={"NUM_WORKERS": "1"}, init_timeout=INIT_SECONDS,
        )  # fmt: skip

    def _job(self, source: Bucket, destination: Bucket, spec: EtlSpec, naming: Naming, run: str = "") -> Summary:
        return self._drive(
            BucketJob(
                self.aistore, Ledger(self.clickhouse), source, destination,
                run_id=run or unique("run"), spec=spec, naming=naming, options=Options(keep_etl=True),
            )
        )  # fmt: skip

    def export(self, form: str) -> list[dict[str, Any]]:
        """Return the lines of a manifest of the table's utterances."""
        target = Source(unique("manifests"), f"{form}.jsonl", "storeside_s3")
        self.s3.create_bucket(Bucket=target.bucket)
        rows = export(self.clickhouse, target, form, str(self.shards), table=self.table)
        content = self.s3.get_object(Bucket=target.bucket, Key=target.keys)["Body"].read()
        lines = [json.loads(line) for line in content.splitlines()]
        assert len(lines) == rows
        return lines

    def samples(self, *shards: str) -> list[dict[str, Any]]:
        """Return what WebDataset reads from the shards."""
        streams = ({"url": name, "stream": io.BytesIO(read(self.aistore, self.shards, name))} for name in shards)
        return list(wds.group_by_keys(wds.tar_file_expander(streams)))


@pytest.fixture
def cutting(stack: Stack, clickhouse: Any, aistore: Any, s3_client: Any, drive: Drive) -> Cutting:
    return Cutting(stack, clickhouse, aistore, s3_client, drive)


@pytest.mark.parametrize("communication", ["ws", "hpush"])
def test_a_recording_becomes_a_shard_and_a_broken_one_fails_alone(cutting: Cutting, communication: str) -> None:
    put(cutting.aistore, cutting.recordings, {
        "2026/a.b.wav": talk(0, 1), "silence.wav": wav(np.zeros(RATE, "<i2")), "cut.wav": talk(2)[:-40_000],
    })  # fmt: skip
    run = unique("run")
    summary = cutting.cut(communication, run)
    assert (summary.done, summary.failed) == (2, 1)
    assert "truncated" in failures(cutting.clickhouse, run, cutting.shards)["cut.wav"]
    assert sizes(cutting.aistore, cutting.shards).keys() == {"2026/a.b.tar", "silence.tar"}
    assert cutting.samples("silence.tar") == []
    first, second = cutting.samples("2026/a.b.tar")
    assert (first["__key__"], second["__key__"]) == ("2026/a_b-00001", "2026/a_b-00002")
    facts = json.loads(first["json"])
    assert facts["start_seconds"] == pytest.approx(1, abs=0.35)
    assert len(samples_of(first["flac"])) == facts["samples"]


@pytest.mark.guarantee("utterances")
def test_each_utterance_is_a_row_and_those_of_an_overwritten_recording_replace_the_old_ones(cutting: Cutting) -> None:
    silence = wav(np.zeros(RATE, "<i2"))
    put(cutting.aistore, cutting.recordings, {"a.wav": talk(0, 1), "b.wav": talk(2), "c.wav": silence})

    def run() -> list[tuple[Any, ...]]:
        cutting.cut()
        assert cutting.describe().failed == 0
        report = cutting.load(on_overwrite="replace", columns=UTTERANCE_COLUMNS)
        assert report.failed == 0
        return cutting.rows("shard, member, recording, start_seconds")

    def expected() -> list[tuple[Any, ...]]:
        shards = sizes(cutting.aistore, cutting.shards)
        facts = [json.loads(sample["json"]) for sample in cutting.samples(*shards)]
        return sorted(tuple(f[name] for name in ("shard", "member", "recording", "start_seconds")) for f in facts)

    first = run()
    assert [row[1] for row in first] == ["a-00001.flac", "a-00002.flac", "b-00001.flac"]
    assert first == expected()
    assert run() == first, "a second run loads nothing"
    put(cutting.aistore, cutting.recordings, {"a.wav": talk(3), "b.wav": silence})
    changed = run()
    assert [row[:3] for row in changed] == [("a.tar", "a-00001.flac", "a.wav")]
    assert changed == expected()


@pytest.fixture
def exported(cutting: Cutting) -> Cutting:
    """A table of the utterances of three recordings, one of them without speech."""
    silence = wav(np.zeros(RATE, "<i2"))
    put(cutting.aistore, cutting.recordings, {"in/a.b.wav": talk(0, 1), "silence.wav": silence, "z.wav": talk(2)})
    cutting.cut()
    cutting.describe()
    assert cutting.load(columns=UTTERANCE_COLUMNS).rows == 3
    return cutting


def test_sources_in_manifests_are_what_aistore_returns_to_the_loader_of_lhotse(exported: Cutting) -> None:
    """Lhotse's `AISBatchLoader` divides a source so, and NeMo gives it the paths of its manifest as sources."""
    recordings = exported.export("lhotse_recordings")
    sources = [source["source"] for recording in recordings for source in recording["sources"]]
    names = ("in/a.b.tar/in/a_b-00001", "in/a.b.tar/in/a_b-00002", "z.tar/z-00001")
    assert sources == [f"{exported.shards}/{name}.flac" for name in names]
    cuts, nemo = exported.export("lhotse_cuts"), exported.export("nemo")
    assert [cut["recording"] for cut in cuts] == recordings
    assert [(line["audio_filepath"], line["duration"]) for line in nemo] == [
        (source, cut["duration"]) for source, cut in zip(sources, cuts, strict=True)
    ]
    batch = exported.aistore.batch()
    for source in sources:
        provider, bucket, name = parse_url(source)
        shard, _, member = name.partition(".tar/")
        batch.add(exported.aistore.bucket(bucket, provider).object(f"{shard}.tar"), archpath=member)
    found = [content for _, content in batch.get()]
    checksums = exported.query(f"SELECT checksum FROM {exported.table} ORDER BY shard, member")
    assert [(hashlib.sha256(content).hexdigest(),) for content in found] == checksums
    for content, cut in zip(found, cuts, strict=True):
        assert len(samples_of(content)) == cut["recording"]["num_samples"]
        assert (cut["type"], cut["channel"], cut["recording"]["sampling_rate"]) == ("MonoCut", 0, RATE)
    assert [(cut["custom"]["recording"], cut["custom"]["utterance"]) for cut in cuts] == [
        ("in/a.b.wav", 1), ("in/a.b.wav", 2), ("z.wav", 1),
    ]  # fmt: skip


def test_lines_of_nemos_tarred_manifest_name_members_of_numbered_shards(exported: Cutting) -> None:
    lines = exported.export("nemo_tarred")
    assert {(line["shard_id"], line["shard_path"]) for line in lines} == {
        (0, f"{exported.shards}/in/a.b.tar"), (1, f"{exported.shards}/z.tar"),
    }  # fmt: skip
    for number, name in enumerate(("in/a.b.tar", "z.tar")):
        wanted = {line["audio_filepath"]: line["duration"] for line in lines if line["shard_id"] == number}
        with tarfile.open(fileobj=io.BytesIO(read(exported.aistore, exported.shards, name)), mode="r|*") as shard:
            # as `LazyNeMoTarredIterator` reads it, which leaves the facts out
            found = {m.name: shard.extractfile(m).read() for m in shard if m.name in wanted}
        assert {name: len(samples_of(audio)) / RATE for name, audio in found.items()} == wanted


def test_exports_of_utterances_that_make_no_sense(cutting: Cutting) -> None:
    target = Source("datasets", "m.jsonl", "storeside_s3")
    with pytest.raises(ExportError, match="name the table of their utterances"):
        export(cutting.clickhouse, target, "nemo_tarred", "ais://utterances")
    with pytest.raises(ExportError, match="name no run"):
        export(cutting.clickhouse, target, "nemo", "ais://utterances", "dag/1", "data.u")
    with pytest.raises(TransferInputError, match=r"write database\.table"):
        export(cutting.clickhouse, target, "nemo", "ais://utterances", table="u")
