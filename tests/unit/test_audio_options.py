"""Segments, silence and loudness."""

from __future__ import annotations

import numpy as np
import pytest

from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.measure import measure
from storeside.transformers.audio.transcoding import AudioError, probe, transcode
from tests.unit.test_audio import SPEECH, decoded, s16, sine, wav

LIMITS = Limits()
RAMP = wav(np.arange(32_000, dtype="<i2"))


def values(content: object) -> np.ndarray:
    return (decoded(bytes(content))[0][:, 0] * 32_768).round().astype(int)  # type: ignore[call-overload]


def loudness(content: object) -> float:
    """Integrated loudness of the result at its own rate, as the first pass measures it."""
    data = bytes(content)  # type: ignore[call-overload]
    facts = probe(data)
    form = AudioFormat("wav", "pcm_f32le", facts.sample_rate, facts.channels, loudness_lufs=-70.0)
    return -70.0 - measure(data, form, LIMITS).gain


# --- segments


@pytest.mark.parametrize(
    ("start", "duration", "first", "count"),
    [(0.0, 0.5, 0, 8_000), (0.25, 0.5, 4_000, 8_000), (1.5, None, 24_000, 8_000), (1.5, 100.0, 24_000, 8_000)],
)
def test_segments_are_exact(start: float, duration: float | None, first: int, count: int) -> None:
    made = transcode(RAMP, AudioFormat(start_seconds=start, duration_seconds=duration))
    assert np.array_equal(values(made), np.arange(first, first + count))


def test_segments_of_an_encoded_recording_start_at_0() -> None:
    target = AudioFormat("m4a", "aac", 16_000, 1, start_seconds=2.0, duration_seconds=1.5)
    assert probe(transcode(str(SPEECH), target)).duration_seconds == pytest.approx(1.5, abs=0.13)


def test_a_segment_behind_the_end_is_refused() -> None:
    with pytest.raises(AudioError, match=r"of 2\.000 seconds ends before the segment that starts at 2\.5 seconds"):
        transcode(RAMP, AudioFormat(start_seconds=2.5))


def test_what_is_behind_the_segment_is_not_decoded() -> None:
    cut = SPEECH.read_bytes()[:40_000]
    with pytest.raises(AudioError, match=r"damaged|truncated"):
        transcode(cut, AudioFormat())
    assert probe(transcode(cut, AudioFormat(duration_seconds=1.0))).samples == 16_000
    with pytest.raises(AudioError, match=r"damaged|truncated"):
        transcode(cut, AudioFormat(duration_seconds=6.9))


# --- silence


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_silence_is_cut_off_at_both_ends_only(rate: int, channels: int) -> None:
    quiet = sine(1.0, rate, amplitude=0.0005)
    tone = sine(0.5, rate, amplitude=0.3)
    recording = np.concatenate([quiet, tone, quiet, tone, quiet, quiet])
    target = AudioFormat(sample_rate=rate, channels=channels, trim_silence_dbfs=-50.0)
    made = decoded(bytes(transcode(wav(s16(recording), rate), target)))[0]
    assert len(made) / rate == pytest.approx(2.0 + 0.2, abs=0.021)
    where = np.flatnonzero(np.abs(made[:, 0]) > 0.1) / rate
    assert where[0] == pytest.approx(0.1, abs=0.02)


def test_sound_from_end_to_end_stays_whole() -> None:
    samples = s16(sine(1.003, amplitude=0.3))
    assert np.array_equal(values(transcode(wav(samples), AudioFormat(trim_silence_dbfs=-50.0))), samples)


def test_nothing_but_silence_is_refused() -> None:
    with pytest.raises(AudioError, match=r"no part of the recording is louder than -50\.0 dBFS"):
        transcode(wav(np.zeros(16_000, "<i2")), AudioFormat(trim_silence_dbfs=-50.0))


# --- loudness


def test_a_sine_is_as_loud_as_the_standard_says() -> None:
    # EBU Tech 3341, case 1: a stereo sine of 1000 Hz at -23 dBFS has -23 LUFS
    tone = sine(20.0, 48_000, amplitude=10 ** (-23 / 20), hz=1_000)
    stereo = wav(np.stack([tone, tone], axis=1).astype("<f4"), 48_000)
    assert loudness(stereo) == pytest.approx(-23.0, abs=0.1)


@pytest.mark.parametrize("wanted", [-16.0, -23.0, -30.0])
@pytest.mark.parametrize("form", [("wav", "pcm_s16le"), ("flac", "flac_s24"), ("ogg", "opus")])
def test_results_have_the_loudness_that_is_wanted(form: tuple[str, str], wanted: float) -> None:
    steady = s16(sine(3.0, amplitude=0.02, hz=400))
    made = transcode(wav(steady), AudioFormat(*form, loudness_lufs=wanted))
    assert loudness(made) == pytest.approx(wanted, abs=0.3)


def test_one_gain_for_all_of_it() -> None:
    samples = s16(np.concatenate([sine(1.0, amplitude=0.01), sine(1.0, amplitude=0.1)]))
    before = values(wav(samples))
    made = values(transcode(wav(samples), AudioFormat(loudness_lufs=-20.0)))
    loud = np.abs(before) > 1_000
    assert (made[loud] / before[loud]).std() < 0.001
    quiet = ~loud & (np.abs(before) > 200)
    assert (made[quiet] / before[quiet]).mean() == pytest.approx((made[loud] / before[loud]).mean(), rel=0.01)


def test_peaks_stay_below_minus_1_dbtp() -> None:
    # Samples of this sine never meet its peaks, which are 3 dB higher: a quarter of the rate, an eighth in phase
    n = np.arange(32_000)
    between = 0.1 * np.sin(np.pi / 2 * n + np.pi / 4)
    between[16_000] = 0.5  # a click
    made = transcode(wav(s16(between)), AudioFormat(loudness_lufs=-5.0))
    assert probe(bytes(made)).peak_dbfs < -0.99  # less half a step of 16 bits
    pure = 0.1 * np.sin(np.pi / 2 * n + np.pi / 4)
    facts = probe(bytes(transcode(wav(s16(pure)), AudioFormat(loudness_lufs=-5.0))))
    # a sine of 0.89 peak (-1 dBTP) at least, whose samples are at 0.63
    assert facts.peak_dbfs <= -1.0 - 3.01 + 0.3


@pytest.mark.parametrize(
    "samples", [np.zeros(16_000, "<i2"), s16(sine(0.2, amplitude=0.1))], ids=["silence", "short"]
)
def test_what_cannot_be_measured_stays_as_it_is(samples: np.ndarray) -> None:
    made = transcode(wav(samples), AudioFormat(loudness_lufs=-16.0))
    assert np.array_equal(values(made), samples)


def test_all_at_once() -> None:
    target = AudioFormat(
        "m4a", "aac", 44_100, 2, bit_rate=96_000, start_seconds=0.5, duration_seconds=5.0, trim_silence_dbfs=-40.0,
        loudness_lufs=-18.0,
    )  # fmt: skip
    made = bytes(transcode(SPEECH.read_bytes(), target))
    facts = probe(made)
    assert (facts.codec, facts.sample_rate, facts.channels) == ("aac", 44_100, 2)
    assert 3.0 < facts.duration_seconds <= 5.1
    assert facts.peak_dbfs < -0.5


@pytest.mark.parametrize("form", [("wav", "pcm_s16le"), ("wav", "pcm_f32le"), ("flac", "flac"), ("wav", "pcm_mulaw")])
@pytest.mark.parametrize("channels", [2, 6])
def test_trimmed_recordings_are_mixed_as_loud_as_others(form: tuple[str, str], channels: int) -> None:
    content = wav(s16(np.stack([sine(1.0, amplitude=0.9)] * channels, axis=1)))
    whole, trimmed = (
        probe(transcode(content, AudioFormat(*form, 16_000, 1, trim_silence_dbfs=trim))) for trim in (None, -60.0)
    )
    assert trimmed.rms_dbfs == pytest.approx(whole.rms_dbfs, abs=0.05)
    assert trimmed.peak_dbfs == pytest.approx(whole.peak_dbfs, abs=0.05)


@pytest.mark.parametrize("place", [1, 3, 8, 20])
def test_a_peak_in_the_last_samples_is_limited_too(place: int) -> None:
    samples = sine(3.0, amplitude=0.05)
    samples[-place] = 0.9
    result = probe(transcode(wav(s16(samples)), AudioFormat(loudness_lufs=-14.0)))
    assert result.peak_dbfs <= -0.99


def test_a_segment_behind_the_end_has_the_same_reason_with_trimming() -> None:
    with pytest.raises(AudioError, match="ends before the segment that starts at 10 seconds"):
        transcode(wav(s16(sine(3.0))), AudioFormat(start_seconds=10.0, trim_silence_dbfs=-50.0))
