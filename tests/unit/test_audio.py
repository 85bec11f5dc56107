from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import struct
import wave
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeside.stack.speech_corpus import make_bad
from storeside.transformers.audio import libav_engine, native_engine, transcoding
from storeside.transformers.audio.formats import CODECS, AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError, AudioFacts, probe
from storeside.transformers.transformer import ObjectError

SPEECH = Path(__file__).resolve().parents[1] / "data" / "speech" / "sense_and_sensibility_01_austen_64kb-0870.flac"
SPEECH_SECONDS = 7.1
FORMS = [(container, codec) for container, codecs in CODECS.items() for codec in codecs]
PCM_BYTES = {"pcm_s16le": 2, "pcm_s24le": 3, "pcm_f32le": 4, "pcm_u8": 1, "pcm_mulaw": 1, "pcm_alaw": 1}


needs_native = pytest.mark.skipif(
    not native_engine.is_available(), reason="not built: python -m storeside.transformers.native.build"
)


def transcode(source: str | bytes | bytearray, target: AudioFormat) -> bytes:
    return bytes(transcoding.transcode(source, target))


def by_native(source: str | bytes | bytearray) -> bytes:
    return bytes(native_engine.transcode(source, AudioFormat(), Limits()))


def by_pyav(source: str | bytes | bytearray) -> bytes:
    return bytes(libav_engine.transcode(source, AudioFormat(), Limits()))


# Every way of reading an object completely: all refuse the same objects in the same words.
every_reader = pytest.mark.parametrize("read", [probe, by_pyav, pytest.param(by_native, marks=needs_native)])


def sine(seconds: float = 1.0, rate: int = 16_000, amplitude: float = 0.5, hz: float = 440) -> np.ndarray:
    return amplitude * np.sin(np.arange(round(seconds * rate)) * (2 * np.pi * hz / rate))


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    """Return (samples, channels) of any PCM type as WAV after the RIFF specification, without the code under test."""
    channels = samples.shape[1] if samples.ndim > 1 else 1
    return riff(samples.tobytes(), channels, rate, samples.dtype.itemsize, 3 if samples.dtype.kind == "f" else 1)


def riff(data: bytes, channels: int, rate: int, width: int, code: int = 1, declared: int | None = None) -> bytes:
    head = struct.pack(
        "<HHIIHH", code, channels, rate, rate * channels * width & 0xFFFFFFFF, channels * width, 8 * width
    )
    size = len(data) if declared is None else declared
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(len(body), 0xFFFFFFFF)) + body


def s16(samples: np.ndarray) -> np.ndarray:
    return (samples * 32_767).round().astype("<i2")


def decoded(content: bytes) -> tuple[np.ndarray, int]:
    """Decode with only PyAV: shape (samples, channels), full scale 1."""
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.audio[0]
        planes = []
        for frame in container.decode(stream):
            array = frame.to_ndarray()
            array = array.T if frame.format.is_planar else array.reshape(-1, len(frame.layout.channels))
            if array.dtype == np.uint8:
                array = (array ^ 128).view(np.int8)
            planes.append(array / (1.0 if array.dtype.kind == "f" else -float(np.iinfo(array.dtype).min)))
        return np.concatenate(planes), stream.rate


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bad")
    return {Path(name).name: folder / name for name in make_bad(folder)}


# --- transcoding


@pytest.mark.pairwise
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
@pytest.mark.parametrize(("container", "codec"), FORMS)
def test_every_format_has_rate_channels_and_duration(container: str, codec: str, rate: int, channels: int) -> None:
    result = transcode(str(SPEECH), AudioFormat(container, codec, rate, channels))
    audio, found_rate = decoded(result)
    facts = probe(result)
    # Opus is decoded at 48 kHz whatever the source rate (RFC 7845, section 5.1).
    assert found_rate == facts.sample_rate == (48_000 if codec == "opus" else rate)
    assert audio.shape[1] == facts.channels == channels
    # libav returns the padding of the last AAC frame in M4A, too; the boxes state the length without it.
    padding = len(audio) - facts.samples
    assert 0 <= padding < 1024 if container == "m4a" else padding == 0
    assert facts.duration_seconds == pytest.approx(SPEECH_SECONDS, abs=0.25)  # AAC at 8 kHz: 2 frames
    assert facts.duration_seconds == facts.samples / facts.sample_rate
    assert facts.codec.startswith(codec.removesuffix("_s24"))
    assert facts.bytes == len(result)
    assert facts.checksum == hashlib.sha256(result).hexdigest()
    # one channel on two is 3 dB less on each, as the ffmpeg command's -ac does
    assert facts.rms_dbfs == pytest.approx(-24.41 - (3.01 if channels == 2 else 0), abs=0.7)
    with av.open(io.BytesIO(result)) as opened:
        assert container in opened.format.name.split(",")


@pytest.mark.parametrize("codec", CODECS["wav"])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_header_has_the_right_sizes(codec: str, channels: int) -> None:
    result = transcode(str(SPEECH), AudioFormat("wav", codec, 16_000, channels))
    assert int.from_bytes(result[4:8], "little") == len(result) - 8
    where = result.index(b"data")
    size = int.from_bytes(result[where + 4 : where + 8], "little")
    assert size == len(result) - where - 8 == 113_600 * channels * PCM_BYTES[codec]
    if codec == "pcm_s16le":  # the wave module reads only integers
        with wave.open(io.BytesIO(result)) as reader:
            assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (channels, 2, 16_000)
            assert reader.getnframes() == 113_600
            assert len(reader.readframes(200_000)) == 113_600 * channels * 2


def test_wav_of_the_target_form_keeps_every_sample() -> None:
    samples = np.random.default_rng(1).integers(-32_768, 32_768, 40_001).astype("<i2")
    samples[:4] = (-32_768, 32_767, 0, -1)
    with wave.open(io.BytesIO(transcode(wav(samples), AudioFormat()))) as reader:
        assert np.array_equal(np.frombuffer(reader.readframes(100_000), "<i2"), samples)


def test_flac_of_the_target_form_keeps_every_sample() -> None:
    samples = s16(sine(2.0))
    audio, _ = decoded(transcode(wav(samples), AudioFormat("flac", "flac")))
    assert np.array_equal((audio[:, 0] * 32_768).astype(np.int16), samples)


def test_bytes_bytearray_and_path_give_the_same(tmp_path: Path) -> None:
    content = SPEECH.read_bytes()
    path = tmp_path / "no extension # ? %20"
    path.write_bytes(content)
    first, *others = (transcode(source, AudioFormat()) for source in (content, bytearray(content), str(path)))
    assert all(other == first for other in others)
    assert probe(content) == probe(bytearray(content)) == probe(str(path))


def test_mono_is_the_mean_of_stereo() -> None:
    left, right = sine(1.0, hz=300, amplitude=0.4), sine(1.0, hz=1_000, amplitude=0.2)
    mixed, _ = decoded(transcode(wav(s16(np.stack([left, right], axis=1))), AudioFormat()))
    assert mixed.shape == (16_000, 1)
    assert np.abs(mixed[:, 0] - (left + right) / 2).max() < 2e-4


def test_resampled_sine_stays_that_sine() -> None:
    audio, rate = decoded(transcode(wav(s16(sine(1.0, rate=44_100)), 44_100), AudioFormat()))
    assert (rate, len(audio)) == (16_000, pytest.approx(16_000, abs=2))
    middle = slice(1_000, 15_000)
    assert np.abs(audio[:, 0][middle] - sine(1.0)[: len(audio)][middle]).max() < 2e-3


# --- probing


@pytest.mark.parametrize("amplitude", [1.0, 0.5, 0.1, 0.001])
def test_levels_of_a_sine(amplitude: float) -> None:
    facts = probe(wav(sine(1.0, amplitude=amplitude, hz=1_000).astype("<f4")))
    assert facts.peak_dbfs == pytest.approx(20 * np.log10(amplitude), abs=0.01)
    assert facts.rms_dbfs == pytest.approx(20 * np.log10(amplitude / np.sqrt(2)), abs=0.01)


@pytest.mark.parametrize(
    ("content", "codec"),
    [
        (riff((sine(hz=1_000) * 127 + 128).round().astype(np.uint8).tobytes(), 1, 16_000, 1), "pcm_u8"),
        (wav(s16(sine(hz=1_000))), "pcm_s16le"),
        (
            riff(
                (sine(hz=1_000) * (2**23 - 1)).round().astype("<i4")[:, None].view(np.uint8)[:, :3].tobytes(),
                1, 16_000, 3,
            ),
            "pcm_s24le",
        ),
        (wav((sine(hz=1_000) * (2**31 - 1)).round().astype("<i4")), "pcm_s32le"),
        (wav(sine(hz=1_000).astype("<f4")), "pcm_f32le"),
        (wav(sine(hz=1_000).astype("<f8")), "pcm_f64le"),
    ],
    ids=["8", "16", "24", "32", "float", "double"],
)  # fmt: skip
def test_sample_types_have_the_same_levels(content: bytes, codec: str) -> None:
    for facts in (probe(content), probe(transcode(content, AudioFormat()))):
        assert (facts.samples, facts.sample_rate, facts.channels) == (16_000, 16_000, 1)
        assert facts.peak_dbfs == pytest.approx(-6.02, abs=0.07)
        assert facts.rms_dbfs == pytest.approx(-9.03, abs=0.07)
    assert probe(content).codec == codec


@pytest.mark.parametrize("silence", [np.zeros(800, "<i2"), np.zeros(800, "<f4"), np.full(800, 128, np.uint8)])
def test_silence_is_200_below(silence: np.ndarray) -> None:
    facts = probe(wav(silence))
    assert (facts.peak_dbfs, facts.rms_dbfs, facts.samples) == (-200.0, -200.0, 800)


def test_peak_is_the_loudest_of_all_channels() -> None:
    quiet, loud = sine(amplitude=0.1, hz=1_000), sine(amplitude=0.8, hz=1_000)
    facts = probe(wav(np.stack([quiet, loud], axis=1).astype("<f4")))
    assert facts.peak_dbfs == pytest.approx(20 * np.log10(0.8), abs=0.01)
    assert facts.rms_dbfs == pytest.approx(10 * np.log10((0.1**2 + 0.8**2) / 4), abs=0.01)
    assert (facts.channels, facts.samples, facts.duration_seconds) == (2, 16_000, 1.0)


def test_full_scale_minus_is_0_dbfs() -> None:
    assert probe(wav(np.full(100, -32_768, "<i2"))).peak_dbfs == 0.0


def test_facts_are_json() -> None:
    facts = probe(str(SPEECH))
    assert AudioFacts(**json.loads(json.dumps(asdict(facts), allow_nan=False))) == facts


# --- objects that must be refused


@every_reader
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("corrupt-frames.flac", "flac stream holds no audio samples"),
        # Newer FLAC parsers of libav omit damaged frames, older ones pass them to the decoder.
        (
            "damaged-middle.flac",
            r"truncated: 1\d{5} of 128000 declared samples|damaged flac data after 6\d{4} samples",
        ),
        ("truncated.flac", r"damaged flac data after \d+ samples"),
        ("text.flac", "not an audio container"),
        ("empty.flac", "object is empty"),
        ("no-samples.flac", "flac stream holds no audio samples"),
        ("no-frames.wav", "pcm_s16le stream holds no audio samples"),
    ],
)
def test_bad_objects_say_why(bad: dict[str, Path], read: Callable[[Any], Any], name: str, why: str) -> None:
    for source in (str(bad[name]), bad[name].read_bytes()):
        with pytest.raises(AudioError, match=why) as caught:
            read(source)
        assert "\n" not in str(caught.value)


def test_every_bad_object_is_among_them(bad: dict[str, Path]) -> None:
    assert len(bad) == 7


@every_reader
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (wav(s16(sine()))[:-16_000], "truncated: 16000 of 32000 declared bytes"),
        (wav(s16(sine()))[:-1_000], "truncated: 31000 of 32000 declared bytes"),
        (riff(bytes(2_000), 1, 1, 2), "sample rate 1 Hz is outside the range of recordings"),
        (riff(bytes(2_000), 1, 2_000_000_000, 2), "sample rate 2000000000 Hz"),
        (riff(bytes(2_000), 1, 16_000, 2, code=0x4242), "codec in the wav container is not supported"),
        (b"RIFF", "not an audio container"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "not an audio container"),
        (b"fLaC", "not an audio container|no audio samples"),
        (b"\x00" * 5_000, "not an audio container|no audio"),
    ],
)
def test_damaged_headers_say_why(read: Callable[[Any], Any], content: bytes, why: str) -> None:
    with pytest.raises(AudioError, match=why):
        read(content)


@every_reader
def test_amr_with_pauses_is_not_called_damaged(read: Callable[[Any], Any]) -> None:
    speech, pause = bytes([7 << 3 | 4]) + bytes(31), bytes([8 << 3 | 4]) + bytes(5)
    why = r"libav cannot decode amr_?nb data after 320 samples, .*\(DTX\) of AMR: convert the object to WAV or FLAC"
    with pytest.raises(AudioError, match=why):
        read(b"#!AMR\n" + 2 * speech + pause + 2 * speech)


@every_reader
@pytest.mark.parametrize(
    ("magic", "speech", "gap", "kind"),
    [
        (b"#!AMR\n", 7 << 3 | 4, 15 << 3 | 4, "NO_DATA"),
        (b"#!AMR-WB\n", 8 << 3 | 4, 15 << 3 | 4, "NO_DATA"),
        (b"#!AMR-WB\n", 8 << 3 | 4, 14 << 3, "SPEECH_LOST"),
    ],
)
def test_amr_frames_without_data_have_their_own_reason(
    read: Callable[[Any], Any], magic: bytes, speech: int, gap: int, kind: str
) -> None:
    frame = bytes([speech]) + bytes(31 if magic == b"#!AMR\n" else 60)
    with pytest.raises(AudioError, match=rf"a frame without data \({kind}\) after 2 frames is not supported"):
        read(magic + 2 * frame + bytes([gap]) + frame)
    if read is probe:
        assert probe(magic + 3 * frame).samples == 3 * (160 if magic == b"#!AMR\n" else 320)


@pytest.mark.parametrize("declared", [0, 0x7FFFFFFF - 36, 0xFFFFFFFF])
def test_wav_from_a_pipe_is_read_to_its_end(declared: int) -> None:
    content = riff(s16(sine()).tobytes(), 1, 16_000, 2, declared=declared)
    assert probe(content).samples == 16_000
    assert probe(transcode(content, AudioFormat())).samples == 16_000


def test_wav_with_more_chunks_is_read() -> None:
    plain = wav(s16(sine()))
    extra = b"JUNK" + struct.pack("<I", 5) + b"odd!!\x00"
    content = plain[:12] + extra + plain[12:] + b"note" + struct.pack("<I", 4) + b"tail"
    assert probe(content).samples == 16_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers_are_refused(value: float) -> None:
    samples = sine().astype("<f4")
    samples[500] = value
    with pytest.raises(AudioError, match="samples contain values that are not finite"):
        probe(wav(samples))


every_transcoder = pytest.mark.parametrize(
    "convert",
    [libav_engine.transcode, pytest.param(native_engine.transcode, marks=needs_native)],
    ids=["pyav", "native"],
)
Convert = Callable[[Any, AudioFormat, Limits], Any]


@every_transcoder
def test_channels_that_cannot_be_mixed_say_so(convert: Convert) -> None:
    with pytest.raises(AudioError, match="pcm_s16le of 200 channels at 16000 Hz cannot be transcoded"):
        convert(wav(np.zeros((100, 200), "<i2")), AudioFormat(), Limits())


@every_transcoder
def test_a_recording_that_becomes_nothing_is_refused(convert: Convert) -> None:
    with pytest.raises(AudioError, match="too short: resampling 1 samples to 4000 Hz leaves none"):
        convert(wav(np.zeros(1, "<i2"), 192_000), AudioFormat(sample_rate=4_000), Limits())


FLAC = SPEECH.read_bytes()


@every_transcoder
def test_recordings_beyond_the_limits_name_the_variable_to_raise(convert: Convert) -> None:
    second = wav(s16(sine(1.0)))
    declared = FLAC[:18] + bytes([*FLAC[18:21], FLAC[21] | 15]) + b"\xff" * 4 + FLAC[26:]  # 2^36 - 1 samples
    assert convert(second, AudioFormat(), Limits(seconds=1, result_bytes=32_044))
    for content in (wav(s16(sine(2.1))), declared, riff(s16(sine(2.0)).tobytes(), 1, 16_000, 2, declared=0xFFFFFFFF)):
        with pytest.raises(AudioError, match="longer than 1 seconds: raise AUDIO_MAX_SECONDS"):
            convert(content, AudioFormat(), Limits(seconds=1))
    with pytest.raises(AudioError, match="more than 32043 bytes: raise AUDIO_MAX_RESULT_BYTES"):
        convert(second, AudioFormat(), Limits(result_bytes=32_043))


def mp3_frames(rate: int, layout: str) -> bytes:
    """Encode a second of MP3 without tags, so that such pieces can be concatenated."""
    written = io.BytesIO()
    with av.open(written, "w", format="mp3", options={"write_xing": "0", "id3v2_version": "0"}) as out:
        stream: Any = out.add_stream("libmp3lame", rate=rate, layout=layout)
        planes = np.tile(sine(1.0, rate).astype("<f4"), (1 if layout == "mono" else 2, 1))
        frame = av.AudioFrame.from_ndarray(planes[:, :rate], format="fltp", layout=layout)
        frame.sample_rate = rate
        for resampled in av.AudioResampler("fltp", layout, rate, frame_size=1_152).resample(frame):
            out.mux(stream.encode(resampled))
        out.mux(stream.encode(None))
    return written.getvalue()


@every_transcoder
@pytest.mark.parametrize("other", [(48_000, "mono"), (44_100, "stereo")])
def test_a_change_of_form_is_refused(convert: Convert, other: tuple[int, str]) -> None:
    first = mp3_frames(44_100, "mono")
    assert convert(first + first, AudioFormat(), Limits())
    with pytest.raises(AudioError, match=r"changes its rate, channels or sample format after \d+ samples"):
        convert(first + mp3_frames(*other), AudioFormat(), Limits())


def test_video_without_audio_is_refused() -> None:
    written = io.BytesIO()
    with av.open(written, "w", format="matroska") as out:
        stream: Any = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    with pytest.raises(AudioError, match=r"matroska.* container holds no audio stream"):
        probe(written.getvalue())


@every_reader
def test_files_that_cannot_be_read_are_no_audio_error(read: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "absent.flac"))
    with pytest.raises(IsADirectoryError):
        read(str(tmp_path))


def test_audio_errors_are_the_objects_fault() -> None:
    assert issubclass(AudioError, ObjectError)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"AUDIO_MAX_SECONDS": "0"}, "AUDIO_MAX_SECONDS is 0"),
        ({"AUDIO_MIN_SECONDS": "nan"}, "AUDIO_MIN_SECONDS is nan"),
        ({"AUDIO_MAX_RESULT_BYTES": "0"}, "AUDIO_MAX_RESULT_BYTES is 0"),
        ({"AUDIO_MAX_RESULT_BYTES": str(1 << 32)}, "use 1 to 4294967295"),
    ],
)
def test_limits_that_make_no_sense_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits.from_environment(environment)
    assert Limits.from_environment({"AUDIO_MAX_SECONDS": "7"}) == Limits(seconds=7)


# --- playlists in disguise

IN_OPEN = 0x20


class Watch:
    """Detects whether any code, including libav's C code, opens a file (Linux, inotify, of which a user has 128)."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert descriptor >= 0, "all inotify instances of this user are taken"
        self.events = open(descriptor, "rb", buffering=0)  # noqa: SIM115 - `opened` closes it
        assert libc.inotify_add_watch(descriptor, os.fsencode(path), IN_OPEN) >= 0

    def opened(self) -> bool:
        """Return whether the file was opened, and end the watch."""
        with self.events:
            return bool(self.events.read(4_096))  # None if there was no event


def playlists(secret: Path) -> dict[str, str]:
    segment = f"#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    return {
        "hls": f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n{segment}",
        "hls-url": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n",
        "hls-key": f'#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-KEY:METHOD=AES-128,URI="{secret}"\n{segment}',
        "concat": f"ffconcat version 1.0\nfile '{secret}'\n",
        "concat-relative": f"ffconcat version 1.0\nfile {secret.name}\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        "dash": (
            '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
            f'<Representation id="1" mimeType="audio/wav"><BaseURL>{secret}</BaseURL></Representation>'
            "</AdaptationSet></Period></MPD>"
        ),
    }


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.wav"
    path.write_bytes(wav(s16(sine())))
    return path


def test_control_libav_alone_follows_a_playlist(secret: Path) -> None:
    watch = Watch(secret)
    playlist = secret.with_name("list.ffconcat")
    playlist.write_text(playlists(secret)["concat"])
    with av.open(str(playlist), options={"safe": "0"}) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == 16_000
    assert watch.opened(), "the watch sees nothing, so the tests below prove nothing"


@pytest.mark.pairwise
@every_reader
@pytest.mark.parametrize("kind", playlists(Path("/x")))
@pytest.mark.parametrize("name", ["take.flac", "take.m3u8", "take.ffconcat", "take.sdp", "take.mpd"])
def test_playlists_open_no_other_file(read: Callable[[Any], Any], secret: Path, kind: str, name: str) -> None:
    disguised = secret.with_name(name)
    disguised.write_text(playlists(secret)[kind])
    watch = Watch(secret)
    for source in (str(disguised), disguised.read_bytes()):
        with pytest.raises(AudioError, match="not an audio container"):
            read(source)
    assert not watch.opened()


@every_reader
def test_a_chunk_that_leads_beyond_every_file_is_damage(
    read: Callable[[Any], Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desc = struct.pack(">d4sIIIII", 16_000.0, b"lpcm", 0, 2, 1, 1, 16)
    content = b"caff\0\x01\0\0desc" + struct.pack(">q", len(desc)) + desc + b"free" + struct.pack(">q", 1 << 60)
    content += b"data" + struct.pack(">q", -1) + bytes(4_000)
    path = tmp_path / "take.caf"
    path.write_bytes(content)
    for source in (content, str(path)):
        with pytest.raises(AudioError, match=r"not an audio container|holds no audio"):
            read(source)
    assert "exception" not in capfd.readouterr().err


# --- fuzzing

WAV = wav(s16(sine(0.25)))
SEEDS = {
    "wav": WAV,
    "float wav": wav(sine(0.25).astype("<f4")),
    "flac": transcode(WAV, AudioFormat("flac", "flac", 16_000, 2)),
    "mp3": transcode(WAV, AudioFormat("mp3", "mp3")),
    "ogg": transcode(WAV, AudioFormat("ogg", "opus")),
}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = bytearray(SEEDS[draw(st.sampled_from(sorted(SEEDS)))])
    reach = draw(st.sampled_from([64, 256, len(content)]))  # damage in headers is the most effective
    for _ in range(draw(st.integers(0, 8))):
        content[draw(st.integers(0, min(reach, len(content)) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(damaged())
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_damage_gives_audio_or_an_audio_error(content: bytes) -> None:
    try:
        facts = probe(content)
    except AudioError:
        pass
    else:
        assert facts.samples > 0
        assert facts.sample_rate > 0
        assert json.dumps(asdict(facts), allow_nan=False)
    for convert in (by_native, by_pyav) if native_engine.is_available() else (by_pyav,):
        try:
            result = convert(content)
        except AudioError:
            continue
        with wave.open(io.BytesIO(result)) as reader:
            assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (16_000, 1, 2)


def test_the_seeds_of_the_fuzzing_are_good() -> None:
    assert all(probe(content).duration_seconds == pytest.approx(0.25, abs=0.1) for content in SEEDS.values())
