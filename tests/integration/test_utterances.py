"""Recordings become shards of utterances on a real cluster, and the facts in the shards become rows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.operators.aistore import transformer_command
from storeside.speech.columns import UTTERANCE_COLUMNS
from storeside.stack import demo
from storeside.stack.settings import Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.utterance_options import shard_extensions
from tests.integration.test_transfer_aistore import FromAIStore
from tests.support import IMAGE, INIT_SECONDS, failures, put, read, sizes, unique
from tests.unit.test_audio import wav
from tests.unit.test_utterances import RATE, samples_of

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("no_etl_is_left")]

Drive = Callable[[BucketJob], Summary]
SPEECH = [samples_of(path.read_bytes()) for path in sorted(demo.RECORDINGS.glob("*.flac"))]


def talk(*numbers: int) -> bytes:
    """Return a recording of speech with a second of silence around each part."""
    pause = np.zeros(RATE, "<i2")
    return wav(np.concatenate([pause, *(part for n in numbers for part in (SPEECH[n], pause))]))


class Cutting(FromAIStore):
    """One test's buckets of recordings, shards and facts, and its table."""

    def __init__(self, stack: Stack, clickhouse: Any, aistore: Any, drive: Drive) -> None:
        super().__init__(stack, clickhouse, aistore)
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

    def samples(self, *shards: str) -> list[dict[str, Any]]:
        """Return what WebDataset reads from the shards."""
        streams = ({"url": name, "stream": io.BytesIO(read(self.aistore, self.shards, name))} for name in shards)
        return list(wds.group_by_keys(wds.tar_file_expander(streams)))


@pytest.fixture
def cutting(stack: Stack, clickhouse: Any, aistore: Any, drive: Drive) -> Cutting:
    return Cutting(stack, clickhouse, aistore, drive)


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
