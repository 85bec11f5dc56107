"""Recordings become shards of given segments on a real cluster, and their texts reach tables and manifests."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds

from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.speech.columns import SEGMENT_COLUMNS
from storeside.speech.export import export
from storeside.speech.segments.entries import SegmentsError
from storeside.speech.segments.files import segments_at
from storeside.speech.segments.names import pattern_of
from storeside.stack.airflow import airflow
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.request.source import Source
from storeside.transform import given
from storeside.transform.bucket_job import BucketJob
from storeside.transform.given import Given
from storeside.transform.naming import Naming
from storeside.transform.state import Options, Summary
from storeside.transformers.audio.utterance_options import shard_extensions
from tests.support import IMAGE, INIT_SECONDS, failures, put, read, sizes, task_context, unique
from tests.transfers import FromAIStore
from tests.unit.test_audio import wav
from tests.unit.test_utterances import RATE, samples_of

pytestmark = pytest.mark.usefixtures("no_etl_is_left")

Drive = Callable[[BucketJob], Summary]
TEXT = 'say "hi"\tto\x07 \u2028 the wörld \U0001f600'


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9_000, 9_000, 3 * RATE, np.int16)


class Cutting(FromAIStore):
    """One test's bucket of recordings and their texts, its shards and facts, and its table."""

    def __init__(self, stack: Stack, clickhouse: Any, aistore: Any, s3: Any, drive: Drive) -> None:
        super().__init__(stack, clickhouse, aistore)
        self.s3, self.stack = s3, stack
        self.corpus, self.shards = Bucket("ais", unique("corpus")), Bucket("ais", unique("segments"))
        self._drive = drive

    def job(self, run: str, segments: str = "", communication: str = "ws") -> BucketJob:
        spec = EtlSpec(
            "segments", IMAGE, transformer_command("audio_segments"), communication=communication,
            environment={"AUDIO_CONTAINER": "flac", "AUDIO_CODEC": "flac"}, tuning={"NUM_WORKERS": "1"},
            init_timeout=INIT_SECONDS,
        )  # fmt: skip
        uri = f"{self.corpus}/{segments}"
        return BucketJob(
            self.aistore, Ledger(self.clickhouse), self.corpus, self.shards, run_id=run, spec=spec,
            naming=Naming(shard_extensions(False), ignores=pattern_of), options=Options(),
            given=Given(lambda: segments_at(self.aistore, uri), self.stack.url("ais_proxy")),
        )  # fmt: skip

    def cut(self, run: str = "", communication: str = "ws") -> Summary:
        return self._drive(self.job(run or unique("run"), communication=communication))

    def load_all(self) -> None:
        extensions = {"tar": "jsonl"}
        spec = EtlSpec("text-json", IMAGE, transformer_command("text_json"), init_timeout=INIT_SECONDS)
        job = BucketJob(
            self.aistore, Ledger(self.clickhouse), self.shards, self.place, run_id=unique("run"),
            spec=spec.of_members("*.json", extensions), naming=Naming(extensions),
        )  # fmt: skip
        assert self._drive(job).failed == 0
        assert self.load(on_overwrite="replace", columns=SEGMENT_COLUMNS).failed == 0

    def samples(self) -> dict[str, dict[str, Any]]:
        """Return what WebDataset reads from all shards, by the path of the audio."""
        found = {}
        for name in sorted(sizes(self.aistore, self.shards)):
            stream = {"url": name, "stream": io.BytesIO(read(self.aistore, self.shards, name))}
            for one in wds.group_by_keys(wds.tar_file_expander([stream])):
                found[f"{self.shards}/{name}/{one['__key__']}.flac"] = one
        return found

    def manifest(self, form: str) -> list[dict[str, Any]]:
        target = Source(unique("manifests"), f"{form}.jsonl", "storeside_s3")
        self.s3.create_bucket(Bucket=target.bucket)
        export(self.clickhouse, target, form, str(self.shards), table=self.table)
        content = self.s3.get_object(Bucket=target.bucket, Key=target.keys)["Body"].read()
        return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def cutting(stack: Stack, clickhouse: Any, aistore: Any, s3_client: Any, drive: Drive) -> Cutting:
    return Cutting(stack, clickhouse, aistore, s3_client, drive)


def line(recording: str, start: float, end: float, **told: str) -> str:
    return json.dumps({"recording": recording, "start": start, "end": end, **told}) + "\n"


@pytest.mark.guarantee("given-segments")
def test_a_corpus_keeps_its_texts_and_only_recordings_with_changed_texts_are_cut_again(cutting: Cutting) -> None:
    first = line("in/ä.wav", 0.5, 1.75, id="u1", text=TEXT, speaker="ada", language="de") + line("in/ä.wav", 2, 3)
    bad = line("bad.wav", 0, 9, text="x")
    stray = line("lost.wav", 0, 1)
    put(cutting.aistore, cutting.corpus, {
        **{name: wav(noise(n)) for n, name in enumerate(("in/ä.wav", "b.wav", "bad.wav", "none.wav"))},
        "all.jsonl": (first + bad + stray).encode(), "b.txt": b"whole text\n",
    })  # fmt: skip
    run = unique("run")
    summary = cutting.cut(run)
    assert (summary.listed, summary.done, summary.failed) == (4, 2, 1)
    assert dict(summary.left_out_reasons) == {"no segments are given": 1}
    assert (summary.strays, summary.stray_examples) == (1, ("lost.wav",))
    assert dict(summary.ignored) == {"*.jsonl": 1, "*.txt": 1}
    assert "outside the recording, which has 3 s" in failures(cutting.clickhouse, run, cutting.shards)["bad.wav"]
    assert not sizes(cutting.aistore, given.BUCKET), "the job has deleted its index"

    cutting.load_all()
    samples, nemo = cutting.samples(), cutting.manifest("nemo")
    assert [one["audio_filepath"] for one in nemo] == list(samples)
    assert [one["text"] for one in nemo] == ["whole text", TEXT, ""]
    for told, cut, sample in zip(nemo, cutting.manifest("lhotse_cuts"), samples.values(), strict=True):
        audio = samples_of(sample["flac"])
        assert told["duration"] == cut["duration"] == len(audio) / RATE == cut["recording"]["num_samples"] / RATE
        assert told["text"] == sample.get("txt", b"").decode() == cut["supervisions"][0]["text"]
    assert (nemo[1]["speaker"], nemo[1]["lang"]) == ("ada", "de")
    assert np.array_equal(samples_of(samples[nemo[1]["audio_filepath"]]["flac"]), noise(0)[8_000:28_000])
    names = [one["file_name"] for one in cutting.manifest("huggingface")]
    assert names == ["b/b-00001.flac", "in/ä/in/ä-00001.flac", "in/ä/in/ä-00002.flac"]

    again = cutting.cut()
    assert (again.done, again.failed, again.known_bad, again.skipped) == (0, 0, 1, 2)
    put(cutting.aistore, cutting.corpus, {"b.txt": b"other text\n"})
    changed = cutting.cut(communication="hpush")
    assert (changed.done, changed.skipped) == (1, 1)
    put(cutting.aistore, cutting.corpus, {"all.jsonl": (first + bad.replace("9", "2") + stray).encode()})
    corrected = cutting.cut()
    assert (corrected.done, corrected.known_bad) == (1, 0)
    cutting.load_all()
    assert [one["text"] for one in cutting.manifest("nemo")] == ["other text", "x", TEXT, ""]


def test_a_retry_of_a_killed_task_continues_with_the_segments_of_its_plan(cutting: Cutting, drive: Drive) -> None:
    put(cutting.aistore, cutting.corpus, {
        "a.wav": wav(noise(1)), "b.wav": wav(noise(2)),
        "s.jsonl": (line("a", 0, 1, text="one") + line("b", 0, 1, text="two")).encode(),
    })  # fmt: skip
    run = unique("run")
    cutting.job(run).begin()  # the plan is complete, and then the task is killed
    put(cutting.aistore, cutting.corpus, {"s.jsonl": line("a", 0, 2, text="other").encode()})
    assert cutting.cut(run).done == 2
    assert [sample["txt"] for sample in cutting.samples().values()] == [b"one", b"two"]
    changed = cutting.cut()
    assert (changed.done, dict(changed.left_out_reasons)) == (1, {"no segments are given": 1})
    assert [sample["txt"] for sample in cutting.samples().values()] == [b"other"], "b has no segments any more"


def test_files_that_cannot_be_read_change_nothing(cutting: Cutting) -> None:
    put(cutting.aistore, cutting.corpus, {"a.wav": wav(noise(1)), "s.jsonl": b"{"})
    with pytest.raises(SegmentsError, match=r"s\.jsonl:1: this is no JSON object"):
        cutting.cut()
    with pytest.raises(SegmentsError, match="there is no file of segments or texts"):
        cutting.job(unique("run"), "missing.rttm").begin()
    assert not sizes(cutting.aistore, cutting.shards)


def test_the_documented_job_writes_a_manifest_for_nemo(
    stack: Stack, clickhouse: Any, aistore: Any, s3_client: Any, connections: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (CHECKOUT / "docs" / "audio.md").read_text()
    job, rttm = re.search(r"```python\n(# dags/corpus.py\n.*?)```.*?```text\n(.*?)```", page, re.DOTALL).groups()
    own = unique("x")
    for name in ("ais://talks", "ais://talk-segments", "ais://talk-facts", "s3://datasets"):
        job = job.replace(name, f"{name}-{own}")
    job = job.replace("data.talks", f"data.talks_{own.replace('-', '_')}")
    put(aistore, Bucket("ais", f"talks-{own}"), {"2026/talk.wav": wav(noise(5)), "segments.rttm": rttm.encode()})
    s3_client.create_bucket(Bucket=f"datasets-{own}")
    exports = {**airflow.connections(stack)["CLICKHOUSE_DEFAULT"], "login": "storeside"}
    exports["password"] = stack.secrets["clickhouse"]
    monkeypatch.setenv("AIRFLOW_CONN_CLICKHOUSE_EXPORTS", json.dumps(exports))
    made: dict[str, Any] = {}
    exec(job, made)  # noqa: S102 - our own page
    tasks = [made[name] for name in ("cut", "facts", "load", "export")]
    first = task_context("cut")
    for task in tasks:
        task.deferrable, task.outlets = False, []
        if hasattr(task, "image"):
            task.image = IMAGE
        done = task.execute(task_context(task.task_id, first["dag_run"]))
    assert done["utterances"] == 2
    content = s3_client.get_object(Bucket=f"datasets-{own}", Key="talks.json")["Body"].read()
    told = [json.loads(line) for line in content.splitlines()]
    assert [(one["speaker"], one["duration"], one["text"]) for one in told] == [("ada", 1.25, ""), ("bob", 0.75, "")]
    assert told[0]["audio_filepath"] == f"ais://talk-segments-{own}/2026/talk.tar/2026/talk-00001.flac"
