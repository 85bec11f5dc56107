from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from storeside.transformers import audio_transformers
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import AudioError, probe, transcode
from storeside.transformers.audio_transformers import AudioProbe, AudioTranscode, AudioTranscodeProbe
from storeside.transformers.transformer import LeaveOut, WithSidecar
from tests.unit.test_audio import FORMS, SPEECH, riff, s16, sine, wav

LIMITS = Limits()


@pytest.mark.pairwise("codec")
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("container", "codec"), FORMS)
def test_the_sidecar_is_what_probing_the_result_says(container: str, codec: str, channels: int) -> None:
    target = AudioFormat(container, codec, 48_000, channels)
    for source in (str(SPEECH), SPEECH.read_bytes()):
        result = AudioTranscodeProbe(target, LIMITS).transform(source, "a.flac", "")
        assert bytes(result.data) == bytes(transcode(source, target))
        signal = {name: getattr(probe(source), name) for name in SignalFacts.__dataclass_fields__}
        assert json.loads(result.sidecar) == {**asdict(probe(bytes(result.data))), **signal}
        probed = json.loads(bytes(AudioProbe(LIMITS).transform(bytes(result.data), "a", "")))
        assert result.sidecar == json.dumps({**probed, **signal}).encode() + b"\n"
        assert result.sidecar_name == f"a.{container}.json"


@pytest.mark.parametrize(
    "samples",
    [
        np.random.default_rng(3).integers(-32_768, 32_768, 3_000_001),  # sums of squares beyond 2^53
        np.full(70_001, -32_768),
        np.zeros(5),
        np.array([1]),
        np.random.default_rng(4).integers(-32_768, 32_768, (50_001, 2)),
    ],
    ids=["long", "full scale", "silence", "one", "stereo"],
)
def test_the_sidecar_has_exact_levels(samples: np.ndarray) -> None:
    target = AudioFormat(channels=samples.ndim)
    result = AudioTranscodeProbe(target, LIMITS).transform(wav(samples.astype("<i2")), "a.wav", "")
    facts = json.loads(result.sidecar)
    assert facts == asdict(probe(bytes(result.data)))
    assert facts["samples"] == len(samples)
    mean = (samples.astype(object) ** 2).sum() / samples.size / 2**30
    assert facts["rms_dbfs"] == pytest.approx(10 * np.log10(mean) if mean else -200, abs=1e-9)


def test_names_make_transformers_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIO_SAMPLE_RATE", "8000")
    monkeypatch.setenv("AUDIO_MAX_SECONDS", "3")
    second = wav(s16(sine(1.0)))
    made = audio_transformers.audio_transcode()
    assert made.mime_type == "audio/wav"
    assert made.transform(second, "a", "") == transcode(second, AudioFormat(sample_rate=8_000))
    facts = audio_transformers.audio_probe()
    assert facts.mime_type == "application/json"
    assert json.loads(bytes(facts.transform(second, "a", "")))["samples"] == 16_000  # type: ignore[arg-type]
    both = audio_transformers.audio_transcode_probe()
    assert both.mime_type == "audio/wav"
    result = both.transform(second, "a", "")
    assert isinstance(result, WithSidecar)
    assert json.loads(result.sidecar)["sample_rate"] == 8_000
    for transformer in (made, facts, both):
        with pytest.raises(AudioError, match="AUDIO_MAX_SECONDS"):
            transformer.transform(wav(s16(sine(3.1))), "a", "")


@pytest.mark.parametrize("container", ["wav", "flac"])
def test_short_recordings_are_left_out(monkeypatch: pytest.MonkeyPatch, container: str) -> None:
    monkeypatch.setenv("AUDIO_MIN_SECONDS", "1.5")
    monkeypatch.setenv("AUDIO_CONTAINER", container)
    monkeypatch.setenv("AUDIO_CODEC", {"wav": "pcm_s16le", "flac": "flac"}[container])
    short, long = wav(s16(sine(1.4))), wav(s16(sine(1.5)))
    for name in ("audio_transcode", "audio_probe", "audio_transcode_probe"):
        transformer = getattr(audio_transformers, name)()
        with pytest.raises(LeaveOut, match=r"^shorter than 1\.5 s$"):
            transformer.transform(short, "a", "")
        assert transformer.transform(long, "a", "")


def test_the_address_of_sidecars_asks_for_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(audio_transformers.audio_transcode(), AudioTranscode)
    monkeypatch.setenv("SIDECAR_URL", "http://proxy/")
    assert isinstance(audio_transformers.audio_transcode(), AudioTranscodeProbe)


def test_bad_settings_are_refused_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIO_CONTAINER", "mkv")
    for name in ("audio_transcode", "audio_transcode_probe"):
        with pytest.raises(ValueError, match="'mkv'"):
            getattr(audio_transformers, name)()


def test_facts_of_what_is_no_recording_are_refused() -> None:
    with pytest.raises(AudioError, match="sample rate 1 Hz"):
        AudioTranscodeProbe(AudioFormat(), LIMITS).transform(riff(bytes(2_000), 1, 1, 2), "a", "")


def test_the_names_are_cheap_to_import() -> None:
    script = (
        "import sys, storeside.transformers.audio_transformers\n"
        "print(sorted({'av', 'ffmpeg', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_transcoding_reads_files_by_path(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(SPEECH.read_bytes())
    made = AudioTranscode(AudioFormat(), LIMITS)
    assert made.transform(str(path), "a", "") == made.transform(path.read_bytes(), "a", "")
