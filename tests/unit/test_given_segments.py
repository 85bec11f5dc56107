"""Recordings that are cut into the segments that their job is given, beside AIStore's server and without it."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import webdataset.tariterators as wds

from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError
from storeside.transformers.audio.utterance_options import utterance_format
from storeside.transformers.audio_transformers import AudioSegments
from storeside.transformers.transformer import LeaveOut
from tests.unit.test_audio import wav
from tests.unit.test_utterances import RATE, facts_in, members, samples_of

pytest_plugins = ["storeside.testing"]

NOISE = np.random.default_rng(7).integers(-20_000, 20_000, 4 * RATE, np.int16)
TEXT = 'say "hi"\tto\x07 \u2028 the\nwörld \U0001f600'


def cut(entry: Any, content: bytes = wav(NOISE), target: AudioFormat | None = None) -> bytes:
    transformer = AudioSegments(target or utterance_format({}), Limits())
    return bytes(transformer.transform(content, "in/a.wav", json.dumps(entry)))


def segments(*times: tuple[float, float], **fields: Any) -> dict[str, Any]:
    return {"segments": [{"start": start, "end": end, **fields} for start, end in times]}


def test_segments_have_the_samples_of_their_times_and_their_texts() -> None:
    entry = segments((1.00001, 2.5), (0.25, 1.5))  # they overlap, and are not in order
    entry["segments"][0] |= {"id": "u2", "text": TEXT, "speaker": "ada", "language": "de"}
    shard = cut(entry)
    content = members(shard)
    assert list(content) == [
        "in/a-00001.flac", "in/a-00001.json", "in/a-00002.flac", "in/a-00002.json", "in/a-00002.txt",
    ]  # fmt: skip
    first, second = facts_in(shard)
    assert np.array_equal(samples_of(content["in/a-00001.flac"]), NOISE[4_000:24_000])
    assert np.array_equal(samples_of(content["in/a-00002.flac"]), NOISE[16_000:40_000])
    assert (second["start_seconds"], second["end_seconds"], second["samples"]) == (1.00001, 2.5, 24_000)
    assert second["duration_seconds"] == 24_000 / RATE, "of the samples, not of the times"
    assert "speech_probability" not in first
    assert [first[name] for name in ("segment", "text", "speaker", "language")] == [""] * 4
    assert [second[name] for name in ("segment", "text", "speaker", "language")] == ["u2", TEXT, "ada", "de"]
    assert content["in/a-00002.txt"].decode() == TEXT
    samples = list(wds.group_by_keys(wds.tar_file_expander([{"url": "a.tar", "stream": io.BytesIO(shard)}])))
    assert [sorted(name for name in one if not name.startswith("__")) for one in samples] == [
        ["flac", "json"], ["flac", "json", "txt"],
    ]  # fmt: skip


def test_a_text_without_times_is_that_of_the_whole_recording() -> None:
    shard = cut({"segments": [{"text": "all"}]})
    (facts,) = facts_in(shard)
    assert np.array_equal(samples_of(members(shard)["in/a-00001.flac"]), NOISE)
    assert (facts["start_seconds"], facts["end_seconds"], facts["duration_seconds"]) == (0, 4, 4)


def test_a_segment_without_an_end_ends_with_its_recording() -> None:
    shard = cut({"segments": [{"start": 1.0, "end": 2.0}, {"start": 1.5}, {"start": 3.0, "end": 3.5}]})
    facts = facts_in(shard)
    assert [(one["start_seconds"], one["end_seconds"]) for one in facts] == [(1, 2), (1.5, 4), (3, 3.5)]
    assert np.array_equal(samples_of(members(shard)["in/a-00002.flac"]), NOISE[24_000:])


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_other_rates(rate: int) -> None:
    (facts, last) = facts_in(cut(segments((0.1, 1.3), (3.0, 4.0)), target=utterance_format({"sample_rate": rate})))
    assert facts["samples"] == round(1.3 * rate) - round(0.1 * rate)
    assert last["samples"] == pytest.approx(rate, abs=2)
    assert last["duration_seconds"] == last["samples"] / rate


def test_a_last_segment_that_is_a_little_too_long_ends_with_its_recording() -> None:
    (facts,) = facts_in(cut(segments((3.5, 4.4))))
    assert (facts["end_seconds"], facts["duration_seconds"], facts["samples"]) == (4, 0.5, 8_000)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (segments((3.5, 4.6), id="u1"), "the segment 'u1' from 3.5 to 4.6 s is outside the recording, which has 4 s"),
        (segments((0, 1), (4, 4.3)), "from 4 to 4.3 s is outside"),
        (segments((0, 1), (7, 8), (9, 10)), "from 7 to 8 s is outside"),
        (segments((3.99999, 4.3)), "from 3.99999 to 4.3 s is outside"),
        ({"segments": [{"start": 5.0, "id": "u1"}]}, "the segment 'u1' from 5 to its end is outside"),
        ({"refused": "repeats"}, "repeats"),
    ],
)
def test_segments_outside_the_recording_refuse_it(entry: Any, reason: str) -> None:
    with pytest.raises(AudioError, match=reason):
        cut(entry)


def test_a_segment_that_begins_after_the_last_sample_of_a_slower_recording_is_outside() -> None:
    # at 8 kHz it has no sample, and one at 16 kHz
    content = wav(NOISE[:8_000], rate=8_000)
    with pytest.raises(AudioError, match=r"from 0\.99996 to 1\.2 s is outside the recording"):
        cut(segments((0.99996, 1.2)), content)


def test_a_recording_without_segments_is_left_out() -> None:
    with pytest.raises(LeaveOut, match="no segments are given"):
        cut(None)


def test_a_server_reads_the_segments_of_each_recording(served: Any) -> None:
    long = {"segments": [{"start": 0.0, "end": 1.0, "text": TEXT * 20_000}]}  # more than fits into one message
    running = served(
        "audio_segments", {"AUDIO_CONTAINER": "flac", "AUDIO_CODEC": "flac"},
        given={"in/ä.wav": long, "b.wav": segments((1, 2)), "c.wav": {"refused": "it has two texts"}},
    )  # fmt: skip
    content = wav(NOISE)
    assert members(running.transform(content, "in/ä.wav").data)["in/ä-00001.txt"].decode() == TEXT * 20_000
    assert len(facts_in(running.transform(content, "b.wav").data)) == 1
    failed = running.transform(content, "c.wav")
    assert (failed.failed, failed.final) == ("it has two texts", True)
    assert running.transform(content, "d.wav").left_out == "no segments are given"
