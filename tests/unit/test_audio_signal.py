"""Facts of the signal: engines and probe compared with an independent computation, and with known signals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import scipy.fft  # type: ignore[import-untyped]
import scipy.signal  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeside.transformers.audio import libav_engine, native_engine, transcoding
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import AudioError, probe
from storeside.transformers.audio_transformers import AudioTranscodeProbe
from tests.unit.test_audio import needs_native, s16, sine, transcode, wav

LIMITS = Limits()
RATE = 16_000
Reader = Callable[[bytes], SignalFacts]


def by_pyav(content: bytes, rate: int = RATE) -> SignalFacts:
    return libav_engine.transcode_and_measure(content, AudioFormat(sample_rate=rate), LIMITS)[1]


def by_native(content: bytes, rate: int = RATE) -> SignalFacts:
    return native_engine.transcode_and_measure(content, AudioFormat(sample_rate=rate), LIMITS)[1]


def by_probe(content: bytes) -> SignalFacts:
    facts = probe(content)
    return SignalFacts(*(getattr(facts, name) for name in SignalFacts.__dataclass_fields__))


READERS: list[Any] = [by_pyav, by_probe, pytest.param(by_native, marks=needs_native)]
every_reader = pytest.mark.parametrize("read", READERS)


def noise(seconds: float, level: float = 0.1, rate: int = RATE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, level, round(seconds * rate))


def facts_with(content: bytes, **options: Any) -> dict[str, Any]:
    result = AudioTranscodeProbe(AudioFormat(**options), LIMITS).transform(content, "a.wav", "")
    found: dict[str, Any] = json.loads(result.sidecar)
    return found


# --- known signals


@every_reader
def test_silence_is_a_share_of_frames(read: Reader) -> None:
    sound = sine(3)
    sound[RATE : 2 * RATE] *= 0.002  # -54 - 3 dBFS
    assert read(wav(s16(sound))).silence_share == pytest.approx(1 / 3, abs=0.01)
    louder = sine(1, amplitude=0.0064)  # -43.9 - 3 dBFS
    assert read(wav(s16(louder))).silence_share == 0


@every_reader
def test_digital_silence_has_no_bandwidth_and_no_ratio(read: Reader) -> None:
    assert read(wav(np.zeros(RATE, "<i2"))) == SignalFacts(1, 0, None, None)


@every_reader
def test_clipping_is_a_share_of_samples(read: Reader) -> None:
    clipped = (2 * sine(2, amplitude=1, hz=100)).clip(-1, 1)
    assert read(wav(s16(clipped))).clipped_share == pytest.approx(2 / 3, abs=0.02)
    assert read(wav(clipped.astype("<f4"))).clipped_share == pytest.approx(2 / 3, abs=0.02)
    assert read(wav(s16(clipped * 0.99))).clipped_share == 0
    assert read(wav(np.array([0, 32767, 32767, 0] * 4_000, "<i2"))).clipped_share == 0  # runs of two
    assert read(wav(np.array([0, 32767, -32768, 32766] * 4_000, "<i2"))).clipped_share == 0.75


@every_reader
def test_a_run_of_clipped_samples_ends_with_the_first_other_sample(read: Reader) -> None:
    sound = np.zeros(RATE, "<i2")
    sound[[318, 319, 640]] = 32_767  # the last two of a frame, and the first of the frame after the next
    assert read(wav(sound)).clipped_share == 0
    sound[[1_278, 1_279, 1_280]] = 32_767  # across two frames
    assert read(wav(sound)).clipped_share == 3 / RATE


@every_reader
def test_each_channel_clips_on_its_own(read: Reader) -> None:
    left = (2 * sine(2, amplitude=1, hz=100)).clip(-1, 1)
    assert read(wav(s16(np.stack([left, left * 0.5], axis=1)))).clipped_share == pytest.approx(1 / 3, abs=0.01)


@every_reader
@pytest.mark.parametrize("codec", ["pcm_mulaw", "pcm_alaw", "pcm_u8", "pcm_s24le", "pcm_f32le"])
def test_the_sample_format_determines_full_scale(read: Reader, codec: str) -> None:
    clipped = wav(s16((2 * sine(2, amplitude=1, hz=100)).clip(-1, 1)))
    stored = transcode(clipped, AudioFormat("wav", codec, RATE, 1))
    assert read(stored).clipped_share == pytest.approx(2 / 3, abs=0.03)
    loud = transcode(wav(s16(sine(2, amplitude=0.9, hz=100))), AudioFormat("wav", codec, RATE, 1))
    assert read(loud).clipped_share == 0


@every_reader
def test_resampled_telephone_speech_keeps_its_bandwidth(read: Reader) -> None:
    band = scipy.signal.butter(8, 3_400, fs=8_000, output="sos")
    speech = scipy.signal.sosfilt(band, noise(3, rate=8_000)).clip(-1, 1)
    telephone = transcode(wav(s16(speech), 8_000), AudioFormat(sample_rate=RATE))
    assert read(telephone).bandwidth_hz == pytest.approx(3_700, abs=300)
    assert read(wav(s16(noise(3).clip(-1, 1)))).bandwidth_hz == pytest.approx(8_000, abs=100)
    assert read(wav(s16(noise(3, rate=44_100).clip(-1, 1)), 44_100)).bandwidth_hz == pytest.approx(22_050, abs=100)


@every_reader
def test_an_offset_has_no_bandwidth_of_its_own(read: Reader) -> None:
    assert read(wav(s16(sine(2, amplitude=0.01, hz=1_000) + 0.5))).bandwidth_hz == pytest.approx(1_000, abs=150)


@every_reader
@pytest.mark.parametrize("ratio", [5, 20, 40])
def test_the_ratio_of_tones_in_noise_is_known(read: Reader, ratio: int) -> None:
    level = 0.3 / np.sqrt(2) * 10 ** (-ratio / 20)
    sound = noise(6, level) + np.where(np.arange(6 * RATE) % RATE < RATE // 2, sine(6, amplitude=0.3), 0)
    known = 10 * np.log10(1 + 10 ** (ratio / 10))  # speech frames contain the noise as well
    assert read(wav(sound.astype("<f4"))).snr_db == pytest.approx(known, abs=0.8)


@every_reader
def test_what_is_too_short_has_no_estimate(read: Reader) -> None:
    assert read(wav(np.array([20_000], "<i2"))) == SignalFacts(0, 0, None, None)
    assert read(wav(s16(sine(0.03)))).bandwidth_hz is None  # a spectrum has 512 samples
    assert read(wav(s16(sine(0.033)))).bandwidth_hz is not None
    assert read(wav(s16(sine(0.48)))).snr_db is None
    assert read(wav(s16(sine(0.5)))).snr_db == pytest.approx(0, abs=0.2)


@every_reader
def test_no_samples_are_an_error(read: Reader) -> None:
    with pytest.raises(AudioError):
        read(wav(np.zeros(0, "<i2")))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -3])
@pytest.mark.parametrize("kind", ["<f4", "<f8"])
def test_values_beyond_full_scale_count_as_full_scale_and_nan_as_zero(value: float, kind: str) -> None:
    sound = sine(1).astype(kind)
    sound[1_000:2_000] = value
    readers = [by_pyav, by_native] if native_engine.is_available() else [by_pyav]
    for read in readers:
        facts = read(wav(sound))
        assert facts.clipped_share == (0 if np.isnan(value) else 1_000 / RATE)
        counted = sound.clip(-1, 1)
        counted[1_000:2_000] = 0 if np.isnan(value) else np.sign(value)
        assert_equals(facts, reference(counted.reshape(-1, 1), RATE))
    assert json.dumps(facts_with(wav(sound)), allow_nan=False)


# --- what the facts describe


def test_the_facts_of_a_transcode_describe_the_source() -> None:
    clipped = (2 * sine(2, 44_100, 1, 100)).clip(-1, 1)
    source = wav(s16(np.stack([clipped + 0, noise(2, rate=44_100).clip(-1, 1)], axis=1)), 44_100)
    known = by_probe(source)
    assert known.clipped_share > 0.3
    assert known.bandwidth_hz == pytest.approx(22_050, abs=100)
    for options in ({}, {"loudness_lufs": -30}, {"container": "flac", "codec": "flac", "trim_silence_dbfs": -60}):
        facts = facts_with(source, **options)
        assert SignalFacts(*(facts[name] for name in SignalFacts.__dataclass_fields__)) == known
        assert facts["sample_rate"] == RATE


@pytest.mark.parametrize("options", [{}, {"container": "flac", "codec": "flac"}, {"loudness_lufs": -23}])
def test_the_facts_of_a_segment_describe_this_segment(options: dict[str, Any]) -> None:
    sound = np.concatenate([np.ones(44_100), np.zeros(44_100), sine(1, 44_100), np.ones(44_100)])
    source = wav(s16(sound), 44_100)
    facts = facts_with(source, start_seconds=1, duration_seconds=2, **options)
    assert facts["duration_seconds"] == 2
    assert (facts["silence_share"], facts["clipped_share"]) == (0.5, 0)
    facts = facts_with(source, start_seconds=2.5, **options)
    assert facts["clipped_share"] == pytest.approx(2 / 3)


@needs_native
def test_the_native_engine_measures_only_on_request() -> None:
    content = wav(s16(sine(1)))
    assert transcoding.measuring_engine(AudioFormat()) == transcoding._native_measuring
    data, pcm = native_engine._converted(content, AudioFormat(), LIMITS, measures=False)
    assert data[44:] == transcode(content, AudioFormat())[44:]
    assert pcm.signal == (0, 0, 0, 0)


# --- generated signals


def reference(values: np.ndarray, rate: int, limit: float = 32_766 / 32_768) -> dict[str, Any]:
    """Return the facts with the ranges that rounding allows, computed from the whole recording at once."""
    length = rate // 50
    powers = np.array([(values[at : at + length] ** 2).mean() for at in range(0, len(values), length)])
    levels = np.round(10 * np.log10(np.maximum(powers, 1e-10)), 1)
    low, high = (np.percentile(levels, percent, method="inverted_cdf") for percent in (15, 95))
    runs = [(hot, len(list(run))) for column in values.T for hot, run in groupby(np.abs(column) >= limit)]
    size = 2 ** int(np.ceil(np.log2(rate / 32)))
    window = scipy.signal.get_window("hann", size)
    starts = range(0, len(values) - size + 1, 4 * size)
    spectra = [np.abs(scipy.fft.rfft(values[at : at + size] * window[:, None], axis=0)) ** 2 for at in starts]
    band = np.sum(spectra, axis=(0, 2))[2:] if spectra else np.zeros(1)
    floor = 1e-13 * (size / 4) ** 2 * len(spectra) * values.shape[1]
    edges = [np.flatnonzero(band >= band.max() * 1e-5 * factor)[-1] + 2 for factor in (1.01, 0.99)]
    return {
        "silence_share": [np.mean(powers < 1e-5 * factor) for factor in (0.9999, 1.0001)],
        "clipped_share": [sum(many for hot, many in runs if hot and many >= 3) / values.size] * 2,
        "bandwidth_hz": [edge * rate / size for edge in edges] if spectra and band.max() >= floor else None,
        "snr_db": [high - low - 0.21, high - low + 0.21] if len(powers) >= 25 and high > -100 else None,
    }


def assert_equals(found: SignalFacts, known: dict[str, Any]) -> None:
    for name, value in zip(SignalFacts.__dataclass_fields__, astuple(found), strict=True):
        if known[name] is None:
            assert value is None, name
        else:
            assert known[name][0] - 1e-9 <= value <= known[name][1] + 1e-9, (name, known[name])


@st.composite
def recordings(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rate = draw(st.sampled_from([4_000, 8_000, 11_025, 16_000, 22_050, 44_100, 48_000]))
    channels = draw(st.integers(1, 3))
    samples = draw(st.one_of(st.integers(1, 40), st.integers(41, 3 * rate)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sound = rng.normal(0, 1, (samples, channels)) * 10 ** (-draw(st.floats(0, 90)) / 20)
    if draw(st.booleans()):  # limit the band
        edge = draw(st.floats(0.02, 0.9))
        sound = scipy.signal.sosfilt(scipy.signal.butter(6, edge, output="sos"), sound, axis=0)
    if draw(st.booleans()):
        time = np.arange(samples)[:, None] / rate
        sound += draw(st.floats(0, 3)) * np.sin(2 * np.pi * draw(st.floats(10, 0.49 * rate)) * time)
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, samples - 1))
        sound[first : first + draw(st.integers(1, rate))] *= draw(st.sampled_from([0, 1e-3, 10]))
    return sound.clip(-1, 1), rate


KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "u8": lambda x: (x * 127 + 128).round().astype("u1"),
    "s16": s16,
    "s32": lambda x: (x * (2**31 - 1)).round().astype("<i4"),
    "f32": lambda x: x.astype("<f4"),
    "f64": lambda x: x.astype("<f8"),
}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recordings(), st.sampled_from(list(KINDS)), st.booleans())
def test_all_engines_compute_what_the_reference_computes(
    recording: tuple[np.ndarray, int], kind: str, is_flac: bool
) -> None:
    sound, rate = recording
    stored = KINDS[kind](sound)
    if kind == "u8":
        values, limit = (stored.astype(float) - 128) / 128, 126 / 128
    else:
        scale = 1 if kind[0] == "f" else 2.0 ** (8 * stored.dtype.itemsize - 1)
        values, limit = (stored.astype("f4") / scale).astype(float), 32_766 / 32_768
    content = wav(stored, rate)
    if is_flac and kind == "s16":  # frames of another length
        content = transcode(content, AudioFormat("flac", "flac", rate, sound.shape[1]))
    known = reference(values, rate, limit)
    assert_equals(by_probe(content), known)
    assert_equals(by_pyav(content, rate), known)
    if native_engine.is_available():
        assert_equals(by_native(content, rate), known)
