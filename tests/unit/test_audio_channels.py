"""Recordings of every number and layout of channels: with an equal number, channels stay unchanged."""

from __future__ import annotations

import shutil
import subprocess
from types import ModuleType

import numpy as np
import pytest

from storeside.transformers.audio import libav_engine, native_engine
from storeside.transformers.audio.ffmpeg import AudioFfmpeg
from storeside.transformers.audio.ffmpeg_settings import FfmpegSettings
from storeside.transformers.audio.formats import CODECS, AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError
from storeside.transformers.settings import Settings
from tests.fuzz.differential import audio_corpus as corpus
from tests.fuzz.differential.audio_corpus import UNSPECIFIED, Base
from tests.unit.test_audio import Convert, every_transcoder, needs_native, riff

CONTAINERS = [
    ("wav", "pcm_s16le"), ("flac", "flac"), ("w64", "pcm_s16le"), ("caf", "pcm_s16be"), ("mov", "pcm_s16be"),
    ("matroska", "flac"), ("aiff", "pcm_s16be"), ("au", "pcm_s16be"),
]  # fmt: skip
LAYOUTS = [(count, layout) for count, layouts in corpus.LAYOUTS.items() for layout in layouts]


def base(muxer: str, encoder: str, count: int, layout: str) -> Base:
    return Base(muxer, encoder, 16_000, count, layout, (), 0.11)


def samples(made: object) -> bytes:
    content = bytes(made)  # type: ignore[call-overload]
    return content[content.index(b"data") + 8 :]  # type: ignore[no-any-return]


def source(count: int) -> bytes:
    """Return the samples of a recording of `count` channels, from a file that nothing has decoded."""
    return samples(corpus.encoded(base("wav", "pcm_s16le", count, UNSPECIFIED)))


@pytest.mark.pairwise("convert", "muxer", "count")
@every_transcoder
@pytest.mark.parametrize(("count", "layout"), [*LAYOUTS, *((count, UNSPECIFIED) for count in range(1, 9))])
@pytest.mark.parametrize(("muxer", "encoder"), CONTAINERS)
def test_as_many_channels_keep_every_sample(
    convert: Convert, muxer: str, encoder: str, count: int, layout: str
) -> None:
    content = corpus.encoded(base(muxer, encoder, count, layout))
    assert samples(convert(content, AudioFormat(channels=count), Limits())) == source(count)


@needs_native
@pytest.mark.parametrize(("count", "layout"), [*LAYOUTS, *((count, UNSPECIFIED) for count in range(1, 9))])
def test_both_engines_write_the_same_header(count: int, layout: str) -> None:
    content = corpus.encoded(base("wav", "pcm_s16le", count, layout))
    target = AudioFormat(channels=count)
    native, pyav = (bytes(engine.transcode(content, target, Limits())) for engine in (native_engine, libav_engine))
    assert native == pyav


@pytest.fixture(scope="module", params=["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"])
def mixable(request: pytest.FixtureRequest) -> dict[tuple[int, int], tuple[bytes, np.ndarray]]:
    """Recordings in one sample format, and their 16-bit samples from the ffmpeg command, by numbers of channels."""
    made = {}
    for count, layout in ((1, "mono"), (2, "stereo"), (6, "5.1")):
        tones = "|".join(f"{0.9 - 0.1 * n}*sin(2*PI*{300 + 100 * n}*t)" for n in range(count))
        content = ffmpeg(
            "-f", "lavfi", "-i", f"aevalsrc={tones}:s=16000:c={layout}:d=0.5",
            "-c:a", request.param, "-f", "wav", "-",
        )  # fmt: skip
        for wanted in (1, 2):
            mixed = ffmpeg("-i", "-", "-ac", str(wanted), "-c:a", "pcm_s16le", "-f", "s16le", "-", content=content)
            made[count, wanted] = content, np.frombuffer(mixed, "<i2").astype(float)
    return made


def ffmpeg(*arguments: str, content: bytes = b"") -> bytes:
    command = ["ffmpeg", "-v", "error", *arguments]
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout


@pytest.mark.pairwise("form")
@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg command")
@pytest.mark.parametrize("form", [(c, codec) for c, codecs in CODECS.items() for codec in codecs], ids="-".join)
def test_every_format_is_mixed_at_the_level_of_the_ffmpeg_command(
    mixable: dict[tuple[int, int], tuple[bytes, np.ndarray]], form: tuple[str, str]
) -> None:
    """Without a limit, a mix to floating point is 3 dB louder from stereo, and 11 dB from 5.1."""
    for (count, wanted), (content, expected) in mixable.items():
        results = [libav_engine.transcode(content, AudioFormat(*form, channels=wanted), Limits())]
        if form == ("wav", "pcm_s16le") and native_engine.is_available():
            results.append(native_engine.transcode(content, AudioFormat(*form, channels=wanted), Limits()))
        for result in results:
            decoded = libav_engine.transcode(bytes(result), AudioFormat(channels=wanted), Limits())
            found = np.frombuffer(samples(decoded), "<i2").astype(float)
            if form[1] in ("pcm_s16le", "pcm_s24le", "pcm_f32le", "flac", "flac_s24"):
                assert np.abs(found - expected).max() <= 2, (count, wanted)
            part = slice(2_000 * wanted, 6_000 * wanted)  # whole periods, without what lossy codecs add at the ends
            level = 20 * np.log10(found[part].std() / expected[part].std())
            assert abs(level) < 1, (count, wanted, level)  # LAME lowers the level by half a decibel


@pytest.mark.pairwise("count", "wanted")
@needs_native
@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize(("count", "layout"), LAYOUTS)
def test_both_engines_mix_other_numbers_alike(count: int, layout: str, wanted: int) -> None:
    content = corpus.encoded(base("flac", "flac", count, layout))
    target = AudioFormat(channels=wanted)
    native, pyav = (
        np.frombuffer(samples(engine.transcode(content, target, Limits())), "<i2").astype(int)
        for engine in (native_engine, libav_engine)
    )
    assert len(native) == len(pyav)
    assert np.abs(native - pyav).max() <= 2


@pytest.mark.pairwise("count")
@every_transcoder
@pytest.mark.parametrize("count", range(9, 17))
def test_more_than_eight_channels_without_names_are_not_mixed(convert: Convert, count: int) -> None:
    content = corpus.encoded(base("wav", "pcm_s16le", count, UNSPECIFIED))
    for wanted in (1, 8):
        with pytest.raises(AudioError, match=f"pcm_s16le of {count} channels at 16000 Hz cannot be transcoded"):
            convert(content, AudioFormat(channels=wanted), Limits())


@pytest.mark.parametrize("container", [("flac", "flac"), ("flac", "flac_s24"), ("wav", "pcm_s24le"), ("m4a", "aac")])
@pytest.mark.parametrize("layout", ["quad", "4.0", UNSPECIFIED])
def test_other_formats_keep_them_too(container: tuple[str, str], layout: str) -> None:
    content = corpus.encoded(base("wav", "pcm_s16le", 4, layout))
    made = bytes(libav_engine.transcode(content, AudioFormat(*container, channels=4), Limits()))
    decoded = samples(libav_engine.transcode(made, AudioFormat(channels=4), Limits()))
    if container[0] != "m4a":
        assert decoded == source(4)
        return
    wanted, got = (np.frombuffer(one, "<i2").reshape(-1, 4).astype(float) for one in (source(4), decoded))
    for channel in range(4):  # each is still the same channel
        found = [abs(np.correlate(got[1_024 : 1_024 + 600, channel], wanted[:600, k])[0]) for k in range(4)]
        assert max(found) > 0


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg command")
@pytest.mark.parametrize(("count", "layout"), [(3, "3.0"), (4, "quad"), (4, UNSPECIFIED), (7, "7.0"), (2, "stereo")])
def test_the_ffmpeg_command_keeps_them_too(count: int, layout: str) -> None:
    transformer = AudioFfmpeg(
        FfmpegSettings(output={"format": "wav", "acodec": "pcm_s16le", "ac": count, "ar": 16_000}),
        Limits(),
        Settings(),
    )
    content = corpus.encoded(base("wav", "pcm_s16le", count, layout))
    assert samples(transformer.transform(content, "", "")) == source(count)


# --- one channel


@pytest.mark.pairwise("convert", "muxer", "channel")
@every_transcoder
@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("channel", ["left", "right", "1", "6"])
@pytest.mark.parametrize(("muxer", "encoder"), [*CONTAINERS, ("wav", "pcm_s24le"), ("ipod", "alac")])
def test_one_channel_is_transcoded_alone(
    convert: Convert, muxer: str, encoder: str, channel: str, count: int
) -> None:
    target = AudioFormat(channel=channel)
    content = corpus.encoded(base(muxer, encoder, count, corpus.LAYOUTS[count][0]))
    number = target.channel_index
    assert number is not None
    if number < count:
        every = np.frombuffer(source(count), "<i2").reshape(-1, count)
        assert samples(convert(content, target, Limits())) == every[:, number].tobytes()
    else:
        with pytest.raises(AudioError, match=f"the recording has no channel {number + 1}: it has {count}"):
            convert(content, target, Limits())


@pytest.mark.parametrize("codec", ["flac", "opus", "aac"])
def test_one_channel_is_resampled_trimmed_and_encoded_as_mono_is(codec: str) -> None:
    both = np.frombuffer(source(2), "<i2").reshape(-1, 2)
    content, alone = (riff(part.tobytes(), part.shape[1], 16_000, 2) for part in (both, both[:, 1:]))
    for options in ({}, {"loudness_lufs": -20.0}, {"trim_silence_dbfs": -40.0}, {"start_seconds": 0.05}):
        values = {"codec": codec, "sample_rate": 8_000, **options}
        made = bytes(
            libav_engine.transcode(content, AudioFormat.from_values({**values, "channel": "right"}), Limits())
        )
        assert made == bytes(libav_engine.transcode(alone, AudioFormat.from_values(values), Limits()))


@pytest.mark.parametrize("engine", [libav_engine, pytest.param(native_engine, marks=needs_native)])
def test_facts_describe_the_channel_that_is_transcoded(engine: ModuleType) -> None:
    speech = np.frombuffer(source(1), "<i2")
    both = np.stack([speech, np.zeros_like(speech)], axis=1)
    content = riff(both.tobytes(), 2, 16_000, 2)
    shares = []
    for channel in ("left", "right"):
        _, facts, seconds = engine.transcode_and_measure(content, AudioFormat(channel=channel), Limits())
        assert seconds == len(speech) / 16_000
        shares.append(facts.silence_share)
    assert shares == [0.0, 1.0]
