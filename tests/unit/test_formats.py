from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transformers.audio.formats import CODECS, EXTENSIONS, LAYOUTS, SAMPLE_RATES, AudioFormat
from storeside.transformers.audio.transcoding import probe, transcode
from tests.unit.test_audio import FORMS, SPEECH, WAV

LISTED_RATES = [
    (container, name, rate)
    for container, codecs in CODECS.items()
    for name, codec in codecs.items()
    if codec.rates is not SAMPLE_RATES
    for rate in codec.rates
]
MIXES = [
    (c, k, channels) for c, codecs in CODECS.items() for k, codec in codecs.items() for channels in codec.channels
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mkv",), r"container 'mkv' is not one of wav, flac, mp3, ogg, m4a"),
        (
            ("wav", "opus"),
            r"container wav cannot contain codec 'opus': use one of pcm_s16le, pcm_s24le, pcm_f32le, pcm_u8",
        ),
        (("flac", "pcm_s16le"), r"container flac cannot contain codec .pcm_s16le.: use one of flac, flac_s24"),
        (("wav", "pcm_s16le", 3_999), "3999 Hz is outside 4000 to 192000"),
        (("wav", "pcm_s16le", 192_001), "192001 Hz is outside 4000 to 192000"),
        (("ogg", "opus", 44_100), "opus does not support 44100 Hz: use one of 8000, 12000, 16000, 24000, 48000"),
        (("mp3", "mp3", 96_000), "mp3 does not support 96000 Hz: use one of 8000, 11025"),
        (("wav", "pcm_s16le", 16_000, 9), "9 channels: use one of 1, 2, 3, 4, 5, 6, 7, 8"),
        (("wav", "pcm_s16le", 16_000, 0), "0 channels: use one of 1, 2"),
        (("mp3", "mp3", 16_000, 3), "mp3 does not support 3 channels: use one of 1, 2"),
        (("ogg", "opus", 16_000, 4), "opus does not support 4 channels: use one of 1, 2, 5, 6, 7, 8"),
        (("flac", "flac", 16_000, 1, 64_000), "flac is lossless or has a fixed bit rate: omit bit_rate"),
        (("ogg", "opus", 16_000, 1, 5_999), "bit rate 5999 of opus is outside 6000 to 256000"),
        (("wav", "pcm_s16le", 16_000, 1, None, -1.0), "start_seconds -1.0 is outside 0.0 to inf"),
        (("wav", "pcm_s16le", 16_000, 1, None, float("nan")), "start_seconds nan"),
        (("wav", "pcm_s16le", 16_000, 1, None, 0.0, 0.0), "duration_seconds 0.0 is outside 0.001 to inf"),
        (("wav", "pcm_s16le", 16_000, 1, None, 0.0, float("inf")), "duration_seconds inf"),
        (("wav", "pcm_s16le", 16_000, 1, None, 0.0, None, 0.0), "trim_silence_dbfs 0.0 is outside -120.0 to -1.0"),
        (("wav", "pcm_s16le", 16_000, 1, None, 0.0, None, None, 0.0), "loudness_lufs 0.0 is outside -70.0 to -5.0"),
    ],
)
def test_formats_that_do_not_exist_name_the_remedy(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AudioFormat(*arguments)


@pytest.mark.parametrize("channel", ["middle", "0", "65", "1.5", "-1", "²"])
def test_channels_that_cannot_be_chosen_name_the_choice(channel: str) -> None:
    with pytest.raises(ValueError, match=f"channel '{channel}': use left, right, or a number from 1 to 64"):
        AudioFormat(channel=channel)


def test_one_channel_makes_mono() -> None:
    with pytest.raises(ValueError, match="channel left is one channel: set channels to 1"):
        AudioFormat(channels=2, channel="left")
    assert AudioFormat.from_values({"channel": 2}) == AudioFormat(channel="2")
    assert [AudioFormat(channel=name).channel_index for name in ("left", "right", "3")] == [0, 1, 2]


@pytest.mark.parametrize(("container", "codec", "rate"), LISTED_RATES)
def test_listed_rates_of_encoders_work(container: str, codec: str, rate: int) -> None:
    facts = probe(transcode(WAV, AudioFormat(container, codec, rate)))
    assert facts.duration_seconds == pytest.approx(0.25, abs=0.3 if codec == "aac" else 0.1)
    assert facts.sample_rate == (48_000 if codec == "opus" else rate)


@pytest.mark.parametrize("rate", [4_000, 192_000])
@pytest.mark.parametrize("form", [f for f in FORMS if CODECS[f[0]][f[1]].rates is SAMPLE_RATES])
def test_extreme_rates_work(form: tuple[str, str], rate: int) -> None:
    assert probe(transcode(WAV, AudioFormat(*form, rate))).sample_rate == rate


@pytest.mark.parametrize(("container", "codec", "channels"), MIXES)
def test_listed_channels_of_encoders_work(container: str, codec: str, channels: int) -> None:
    facts = probe(transcode(WAV, AudioFormat(container, codec, 48_000, channels)))
    assert facts.channels == channels


@pytest.mark.parametrize(("container", "codec"), [("mp3", "mp3"), ("ogg", "opus"), ("m4a", "aac")])
def test_bit_rates_are_kept(container: str, codec: str) -> None:
    low, high = (transcode(str(SPEECH), AudioFormat(container, codec, 48_000, 1, rate)) for rate in (32_000, 128_000))
    assert len(low) * 8 / 7.1 == pytest.approx(32_000, rel=0.35)
    assert len(high) > 2.5 * len(low)


def options(codec: Any) -> st.SearchStrategy[dict[str, Any]]:
    number = st.floats(allow_nan=False, allow_infinity=False)
    bits = codec.bit_rates
    return st.fixed_dictionaries(
        {"sample_rate": st.sampled_from(list(codec.rates)), "channels": st.sampled_from(list(codec.channels))},
        optional={
            **({"bit_rate": st.integers(bits[0], bits[-1])} if bits else {}),
            "start_seconds": number.map(abs),
            "duration_seconds": number.map(abs).filter(lambda seconds: seconds >= 0.001),
            "trim_silence_dbfs": st.floats(-120, -1),
            "loudness_lufs": st.floats(-70, -5),
            "keep_extension": st.booleans(),
            # Only formats of one channel have it.
            "channel": st.sampled_from(["left", "right", "1", "64"]),
        },
    )


@given(st.sampled_from(FORMS).flatmap(lambda form: st.tuples(st.just(form), options(CODECS[form[0]][form[1]]))))
def test_environment_round_trip(given_form: tuple[tuple[str, str], dict[str, Any]]) -> None:
    form, chosen = given_form
    if "channel" in chosen:
        chosen = {**chosen, "channels": 1}
    audio = AudioFormat(*form, **chosen)
    environment = audio.environment()
    assert all(name.startswith("AUDIO_") and isinstance(value, str) for name, value in environment.items())
    assert AudioFormat.from_environment(environment) == audio


def test_only_options_in_use_are_handed_over() -> None:
    assert set(AudioFormat().environment()) == {
        "AUDIO_CONTAINER",
        "AUDIO_CODEC",
        "AUDIO_SAMPLE_RATE",
        "AUDIO_CHANNELS",
    }
    assert replace(AudioFormat(), loudness_lufs=-23.0).environment()["AUDIO_LOUDNESS_LUFS"] == "-23.0"


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AudioFormat().environment():
        monkeypatch.delenv(name, raising=False)
    assert AudioFormat.from_environment() == AudioFormat()
    monkeypatch.setenv("AUDIO_SAMPLE_RATE", "8000")
    assert AudioFormat.from_environment() == AudioFormat(sample_rate=8_000)
    assert AudioFormat.from_environment({}) == AudioFormat()


@pytest.mark.parametrize("variable", ["AUDIO_SAMPLE_RATE", "AUDIO_LOUDNESS_LUFS"])
def test_environment_with_a_bad_number_is_refused(variable: str) -> None:
    with pytest.raises(ValueError, match=f"{variable}='fast' is not a number"):
        AudioFormat.from_environment({variable: "fast"})


@pytest.mark.parametrize(("text", "value"), [("True", True), ("false", False), (True, True), ("", False)])
def test_a_flag_may_be_a_text(text: Any, value: bool) -> None:
    assert AudioFormat.from_values({"keep_extension": text}).keep_extension is value


def test_a_flag_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_extension='maybe' is neither true nor false"):
        AudioFormat.from_values({"keep_extension": "maybe"})


@pytest.mark.parametrize(("container", "codec"), FORMS)
def test_extensions_become_the_container(container: str, codec: str) -> None:
    extensions = AudioFormat(container, codec, 16_000).extensions
    assert set(extensions.values()) == {container}
    assert container not in extensions
    wanted = {spelled for e in EXTENSIONS for spelled in (e, e.upper())} - {container}
    assert set(extensions) == wanted


def test_layouts_are_those_of_minus_ac() -> None:
    assert list(LAYOUTS) == list(range(1, 9))
