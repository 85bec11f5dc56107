"""Recordings cut into utterances: the shard's layout, samples and facts of utterances, and recordings that fail."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds

from storeside.stack import demo
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import AudioError, probe, transcode
from storeside.transformers.audio.utterance_options import (
    UtteranceOptions,
    sample_name,
    shard_extensions,
    shard_name,
    utterance_format,
)
from storeside.transformers.audio_transformers import AudioUtterances, audio_utterances
from tests.unit.test_audio import wav

RATE = 16_000
SPEECH = sorted(demo.RECORDINGS.glob("*.flac"))


def samples_of(content: bytes) -> np.ndarray:
    return np.frombuffer(bytes(transcode(content, AudioFormat()))[44:], "<i2")


@pytest.fixture(scope="module")
def joined() -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Three recordings with silence around them, and their starts and ends in seconds."""
    parts, places, at = [np.zeros(RATE, "<i2")], [], 1.0
    for path in SPEECH[:3]:
        one = samples_of(path.read_bytes())
        places.append((at, at + len(one) / RATE))
        parts += [one, np.zeros(round(1.5 * RATE), "<i2")]
        at = places[-1][1] + 1.5
    return np.concatenate(parts), places


@pytest.fixture(scope="module")
def cut() -> Any:
    def made(content: bytes, name: str = "talk.wav", limits: Limits | None = None, **fields: Any) -> bytes:
        names = ("container", "sample_rate", "channels", "keep_extension")
        form = {name: fields.pop(name) for name in names if name in fields}
        transformer = AudioUtterances(utterance_format(form), UtteranceOptions(**fields), limits or Limits())
        return bytes(transformer.transform(content, name, ""))

    return made


def members(shard: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}


def facts_in(shard: bytes) -> list[dict[str, Any]]:
    return [json.loads(content) for name, content in members(shard).items() if name.endswith(".json")]


def test_each_recording_in_a_join_is_an_utterance(joined: Any, cut: Any) -> None:
    samples, places = joined
    content = wav(samples)
    shard = cut(content, "talks/talk.wav", padding_seconds=0.2)
    found = facts_in(shard)
    assert len(found) == 3
    for facts, (start, end) in zip(found, places, strict=True):
        # the recordings begin and end with up to 0.3 s of silence
        assert facts["start_seconds"] == pytest.approx(start, abs=0.35)
        assert facts["end_seconds"] == pytest.approx(end, abs=0.35)
        assert facts["duration_seconds"] == pytest.approx(facts["end_seconds"] - facts["start_seconds"])
        assert facts["speech_probability"] > 0.8
        assert (facts["shard"], facts["recording"]) == ("talks/talk.tar", "talks/talk.wav")
    assert list(members(shard)) == [
        f"talks/talk-0000{n}.{extension}" for n in (1, 2, 3) for extension in ("flac", "json")
    ]
    assert [facts["member"] for facts in found] == [name for name in members(shard) if name.endswith(".flac")]
    assert cut(content, "talks/talk.wav", padding_seconds=0.2) == shard, "the same bytes each time"


@pytest.mark.parametrize("container", ["flac", "wav"])
def test_an_utterance_has_the_samples_and_the_facts_of_its_part(joined: Any, cut: Any, container: str) -> None:
    samples, _ = joined
    shard = cut(wav(samples), container=container)
    content = members(shard)
    for facts in facts_in(shard):
        start, end = (round(facts[name] * RATE) for name in ("start_seconds", "end_seconds"))
        audio = content[facts["member"]]
        assert np.array_equal(samples_of(audio), samples[start:end])
        known = probe(audio)
        for name in ("duration_seconds", "samples", "sample_rate", "channels", "bytes", "checksum"):
            assert facts[name] == getattr(known, name), name
        for name in ("peak_dbfs", "rms_dbfs"):
            assert facts[name] == pytest.approx(getattr(known, name)), name
        for name in SignalFacts.__dataclass_fields__:
            assert facts[name] == getattr(known, name), name


def test_facts_of_the_signal_describe_the_source_not_the_result(joined: Any, cut: Any) -> None:
    samples, _ = joined
    stereo = np.stack([np.repeat(samples, 2), np.repeat(samples, 2)], axis=1)
    (first, *_) = facts_in(cut(wav(stereo, rate=2 * RATE), channels=2, sample_rate=8_000))
    assert (first["sample_rate"], first["channels"]) == (8_000, 2)
    assert first["bandwidth_hz"] > 4_000


def test_webdataset_groups_audio_and_facts_of_an_utterance(joined: Any, cut: Any) -> None:
    shard = io.BytesIO(cut(wav(joined[0]), "2026/talk.final.wav"))
    found = list(wds.group_by_keys(wds.tar_file_expander([{"url": "talk.tar", "stream": shard}])))
    assert [one["__key__"] for one in found] == [f"2026/talk_final-0000{n}" for n in (1, 2, 3)]
    assert [json.loads(one["json"])["utterance"] for one in found] == [1, 2, 3]
    assert all(one["flac"].startswith(b"fLaC") for one in found)


@pytest.mark.parametrize("sound", ["silence", "noise"])
def test_a_recording_without_speech_is_a_shard_without_members(cut: Any, sound: str) -> None:
    samples = np.zeros(3 * RATE) if sound == "silence" else np.random.default_rng(1).normal(0, 2_000, 3 * RATE)
    shard = cut(wav(samples.astype("<i2")))
    assert members(shard) == {}
    assert shard == bytes(1024)


def test_options_decide_how_many_utterances_there_are(joined: Any, cut: Any) -> None:
    content = wav(joined[0])
    assert len(facts_in(cut(content, merge_gap_seconds=5))) == 1
    short = facts_in(cut(content, max_seconds=2))
    assert len(short) > 6
    assert max(facts["duration_seconds"] for facts in short) <= 2
    assert facts_in(cut(content, min_seconds=15, max_seconds=60)) == []


def test_a_recording_that_cannot_be_decoded_fails_with_its_reason(joined: Any, cut: Any) -> None:
    content = wav(joined[0])
    with pytest.raises(AudioError, match="truncated"):
        cut(content[:-20_000])
    with pytest.raises(AudioError, match="not an audio container"):
        cut(b"text" * 100)
    with pytest.raises(AudioError, match="raise AUDIO_MAX_SECONDS"):
        cut(content, limits=Limits(seconds=5))
    with pytest.raises(AudioError, match="raise AUDIO_MAX_RESULT_BYTES"):
        cut(content, limits=Limits(result_bytes=50_000))


def test_samples_that_are_no_numbers_do_not_disturb_the_next_recording(joined: Any, cut: Any) -> None:
    samples, _ = joined
    broken = samples.astype("<f4") / 32_768
    broken[:100] = np.nan
    broken[100:200] = np.inf
    assert len(facts_in(cut(wav(broken)))) == 3
    assert len(facts_in(cut(wav(samples)))) == 3


def test_the_memory_depends_on_the_utterances_not_on_the_recording(cut: Any) -> None:
    """A minute of silence, which is 1.9 MB of samples, and 3.8 MB for the detector."""
    content = wav(np.zeros(60 * RATE, "<i2"))
    tracemalloc.start()
    try:
        assert members(cut(content)) == {}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(content) / 3


def hostile_names() -> Iterator[Any]:
    yield "a.flac", False, "a.tar", "a"
    yield "x/a.b.MP3", False, "x/a.b.tar", "x/a_b"
    yield "x/a.mp3", True, "x/a.mp3.tar", "x/a_mp3"
    yield "noextension", False, "noextension", "noextension"
    yield "a.b/c.wav", False, "a.b/c.tar", "a.b/c"
    yield "../../etc/a.wav", False, "../../etc/a.tar", "etc/a"
    yield ".flac", False, ".tar", "_flac"


@pytest.mark.parametrize(("name", "keep", "shard", "sample"), hostile_names())
def test_names(name: str, keep: bool, shard: str, sample: str) -> None:
    assert shard_name(name, keep) == shard
    assert sample_name(name, keep) == sample
    assert shard_extensions(keep)["flac"] == ("flac.tar" if keep else "tar")


@pytest.mark.parametrize(
    ("name", "keep", "extensions", "reason"),
    [
        ("x/talk.wav", False, None, ""),
        ("x/talk.target.WAV", True, None, ""),
        ("x/__unknown__/talk.wav", False, None, ""),
        ("talk", False, None, "without .tar"),
        ("talk.m4b", True, None, "without .tar"),
        ("talk.Wav", False, None, "without .tar"),
        ("__unknown__/talk.wav", False, None, "WebDataset takes it for metadata"),
        ("backup.tar.gz.wav", False, None, "in another object than 'backup.tar.gz.tar'"),
        ("x.tar/talk.wav", False, None, "in another object"),
        ("talk.m4b", False, {"m4b": "tar"}, "the facts have 'talk.m4b'"),
    ],
)
def test_recordings_whose_utterances_loaders_could_not_read_are_refused(
    name: str, keep: bool, extensions: dict[str, str] | None, reason: str
) -> None:
    from storeside.operators import AISCutUtterancesOperator

    operator = AISCutUtterancesOperator(
        task_id="cut",
        source="ais://talks",
        destination="ais://utterances",
        keep_extension=keep,
        extensions=extensions,
    )
    naming = operator.naming({})
    refused = naming.refusal(name)
    assert bool(refused) == bool(reason)
    assert reason in (refused or "")
    assert "lambda" not in repr(naming)


def test_the_transform_reads_its_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audio_utterances()._target.container == "flac"  # type: ignore[attr-defined]
    monkeypatch.setenv("AUDIO_CONTAINER", "wav")
    monkeypatch.setenv("AUDIO_UTTERANCE_THRESHOLD", "0.7")
    built = audio_utterances()
    assert (built._target.codec, built._options.threshold) == ("pcm_s16le", 0.7)  # type: ignore[attr-defined]
    monkeypatch.setenv("AUDIO_CODEC", "pcm_u8")
    with pytest.raises(ValueError, match="utterances are written as flac or pcm_s16le"):
        audio_utterances()
    monkeypatch.setenv("AUDIO_CODEC", "pcm_s16le")
    monkeypatch.setenv("AUDIO_LOUDNESS_LUFS", "-23")
    with pytest.raises(ValueError, match="utterances cannot have these options"):
        audio_utterances()


def test_the_operator_passes_the_texts_of_a_form_to_the_transformer() -> None:
    from storeside.operators import AISCutUtterancesOperator

    operator = AISCutUtterancesOperator(
        task_id="cut", source="ais://talks", destination="ais://utterances", container="wav", sample_rate="8000",
        threshold="0.7", max_seconds="20", keep_extension="True",
    )  # fmt: skip
    spec = operator.spec({})
    assert UtteranceOptions.from_environment(spec.environment) == UtteranceOptions(threshold=0.7, max_seconds=20)
    target = utterance_format(AudioFormat.variables(spec.environment))
    assert (target.container, target.sample_rate, target.keep_extension) == ("wav", 8_000, True)
    assert operator.naming({}).destination("x/a.b.mp3") == shard_name("x/a.b.mp3", True) == "x/a.b.mp3.tar"
    assert "audio_utterances" in spec.command
