"""The native library compared with the ffmpeg command of the same libraries, its memory, and when it is not built."""

from __future__ import annotations

import ctypes
import gc
import io
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from storeside.transformers.audio import libav_engine, native_engine, transcoding
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError, transcode
from storeside.transformers.native import build, converter
from tests.unit.test_audio import SPEECH, WAV, every_transcoder, needs_native, s16, sine, wav

LIMITS = Limits()
# extension, encoder and its options, rate, channels
SOURCES = [
    ("flac", ["flac", "-sample_fmt", "s16"], 44_100, 2),
    ("flac", ["flac", "-sample_fmt", "s32"], 96_000, 6),
    ("wav", ["pcm_s16le"], 48_000, 2),
    ("wav", ["pcm_s24le"], 48_000, 6),
    ("wav", ["pcm_f32le"], 22_050, 1),
    ("wav", ["pcm_u8"], 8_000, 1),
    ("wav", ["adpcm_ms"], 16_000, 1),
    ("mp3", ["libmp3lame"], 44_100, 2),
    ("mp3", ["libmp3lame"], 16_000, 1),
    ("ogg", ["libvorbis"], 44_100, 2),
    ("ogg", ["libopus"], 48_000, 1),
    ("m4a", ["aac"], 48_000, 6),
    ("m4a", ["aac"], 16_000, 1),
    ("m4a", ["alac"], 44_100, 2),
    ("aac", ["aac"], 44_100, 2),
    ("aiff", ["pcm_s16be"], 44_100, 1),
    ("caf", ["pcm_s16be"], 96_000, 2),
    ("mkv", ["flac"], 48_000, 2),
]


def ffmpeg(*arguments: str) -> bytes:
    return subprocess.run(["ffmpeg", "-v", "error", "-nostdin", *arguments], capture_output=True, check=True).stdout


def loaded() -> ctypes.CDLL:
    library = converter.load()
    assert library is not None
    return library


def is_of_the_same_libraries() -> bool:
    library = converter.load()
    if library is None or not shutil.which("ffmpeg"):
        return False
    found = (ctypes.c_uint * 8)()
    library.storeside_versions(found)
    said = subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"libavcodec +(\d+)\. *(\d+)\.(\d+)", said)
    return version is not None and tuple(map(int, version.groups())) == (
        found[3] >> 16,
        found[3] >> 8 & 0xFF,
        found[3] & 0xFF,
    )


@pytest.fixture(scope="module")
def command() -> None:
    if not is_of_the_same_libraries():
        pytest.skip("no native library, or no ffmpeg command of the same libraries")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, command: None) -> Path:
    """1.37 seconds of six different channels at 96 kHz."""
    noise = np.random.default_rng(5).uniform(-0.2, 0.2, (round(1.37 * 96_000), 6))
    tones = np.stack([sine(1.37, 96_000, 0.4, 200 + 97 * i) for i in range(6)], axis=1)
    path = tmp_path_factory.mktemp("noisy") / "noisy.wav"
    path.write_bytes(wav(s16(noise + tones), 96_000))
    return path


@needs_native
@pytest.mark.parametrize(("extension", "encoder", "rate", "channels"), SOURCES)
def test_samples_are_those_of_the_ffmpeg_command(
    noisy: Path, tmp_path: Path, extension: str, encoder: list[str], rate: int, channels: int
) -> None:
    path = tmp_path / f"source.{extension}"
    ffmpeg("-i", str(noisy), "-ar", str(rate), "-ac", str(channels), "-c:a", *encoder, str(path))
    for target in (AudioFormat(), AudioFormat(sample_rate=44_100, channels=2)):
        form = ["-ar", str(target.sample_rate), "-ac", str(target.channels)]
        wanted = ffmpeg("-i", str(path), *form, "-bitexact", "-c:a", "pcm_s16le", "-f", "s16le", "-")
        for source in (str(path), path.read_bytes()):
            found = bytes(native_engine.transcode(source, target, LIMITS))[44:]
            if extension == "m4a" and len(found) != len(wanted):  # the command keeps the padding of AAC
                assert len(found) == round(1.37 * target.sample_rate) * 2 * target.channels < len(wanted)
                same = len(found) - 200 * target.channels  # resampled without what follows
                assert found[:same] == wanted[:same]
            else:
                assert found == wanted


@needs_native
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 96_000])
def test_both_engines_write_the_same_file(rate: int, channels: int) -> None:
    target = AudioFormat(sample_rate=rate, channels=channels)
    native, pyav = (bytes(engine.transcode(str(SPEECH), target, LIMITS)) for engine in (native_engine, libav_engine))
    assert len(native) == len(pyav)
    header = native.index(b"data") + 8
    assert native[:header] == pyav[:header]
    ours, theirs = (np.frombuffer(file, "<i2", offset=header).astype(int) for file in (native, pyav))
    assert np.abs(ours - theirs).max() <= 2


@needs_native
def test_one_converter_after_another_form_gives_the_same() -> None:
    forms = [AudioFormat(sample_rate=rate, channels=channels) for rate in (8_000, 44_100) for channels in (1, 2)]
    sources = [SPEECH.read_bytes(), wav(s16(sine(0.5, 22_050)), 22_050), WAV, WAV[:1_000]]

    def one(source: bytes, form: AudioFormat) -> bytes | str:
        try:
            return bytes(native_engine.transcode(source, form, LIMITS))
        except AudioError as e:
            return str(e)

    def alone(source: bytes, form: AudioFormat) -> bytes | str:
        results: list[bytes | str] = []
        thread = threading.Thread(target=lambda: results.append(one(source, form)))  # its own converter
        thread.start()
        thread.join()
        return results[0]

    for source in sources * 2:
        for form in forms:
            assert one(source, form) == alone(source, form)


@needs_native
def test_a_result_stays_while_it_is_used_and_its_memory_is_used_again() -> None:
    first = native_engine.transcode(WAV, AudioFormat(), LIMITS)
    kept, part = bytes(first), first[44:100]
    second = native_engine.transcode(str(SPEECH), AudioFormat(), LIMITS)
    assert first == kept
    del first
    gc.collect()
    third = native_engine.transcode(str(SPEECH), AudioFormat(), LIMITS)
    assert part == kept[44:100], "a slice keeps the memory of all"
    assert second == third
    address = np.frombuffer(third, np.uint8).ctypes.data
    del third
    assert np.frombuffer(native_engine.transcode(WAV, AudioFormat(), LIMITS), np.uint8).ctypes.data == address


@needs_native
def test_memory_does_not_grow_with_the_number_of_objects() -> None:
    script = f"""
import resource
from storeside.transformers.audio.transcoding import AudioError
from storeside.transformers.audio import native_engine
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.formats import AudioFormat
good = open({str(SPEECH)!r}, 'rb').read()
def work(times):
    for i in range(times):
        for content in (good, good[:5000], b'text', good[:60]):
            try:
                native_engine.transcode(content, AudioFormat(sample_rate=(8_000, 16_000)[i % 2]), Limits())
            except AudioError:
                pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = work(20)
print(work(150) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2_048, "kilobytes after 600 objects more"


@needs_native
def test_pyav_is_not_even_imported_for_16_bit_wav() -> None:
    script = f"""
import sys
from storeside.transformers.audio.transcoding import transcode
from storeside.transformers.audio.formats import AudioFormat
transcode({str(SPEECH)!r}, AudioFormat())
assert 'av' not in sys.modules
transcode({str(SPEECH)!r}, AudioFormat('flac', 'flac'))
assert 'av' in sys.modules
print(len(transcode({str(SPEECH)!r}, AudioFormat())))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 113_600 * 2 + 44


@every_transcoder
def test_a_reading_error_is_not_the_objects_fault(convert: object, tmp_path: Path) -> None:
    assert callable(convert)
    with pytest.raises(IsADirectoryError):
        convert(str(tmp_path), AudioFormat(), LIMITS)


# --- building and loading


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STORESIDE_NATIVE_DIR", str(tmp_path / "native"))
    converter.load.cache_clear()
    yield tmp_path / "native"
    converter.load.cache_clear()


def test_without_the_library_pyav_does_it(elsewhere: Path) -> None:
    assert not native_engine.is_available()
    assert transcode(WAV, AudioFormat()) == libav_engine.transcode(WAV, AudioFormat(), LIMITS)


def test_a_file_that_is_no_library_is_left_alone(elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere.mkdir()
    build.library_path().write_bytes(b"not a library")
    assert converter.load() is None
    assert "rebuild the library: python -m storeside.transformers.native.build" in caplog.text


@needs_native
def test_it_is_built_once_and_again_when_the_source_changes(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not shutil.which("pkg-config") or not shutil.which("cc"):
        pytest.skip("no compiler")
    assert build.build()
    assert converter.load() is not None
    assert not build.build()
    changed = tmp_path / "pcm.c"
    changed.write_text(build.SOURCE.read_text() + "/* changed */\n")
    monkeypatch.setattr(build, "SOURCE", changed)
    build.source_digest.cache_clear()
    converter.load.cache_clear()
    try:
        assert converter.load() is None
        assert "was built from another version of pcm.c" in caplog.text
        assert build.build()
        assert [path.name for path in elsewhere.iterdir()] == ["libstoreside_pcm.so"]
    finally:
        build.source_digest.cache_clear()


def test_what_is_missing_is_named(elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no cc: apt-get install gcc libc6-dev pkg-config libavformat-dev"):
        build.build()
    for name, status in (("cc", 0), ("pkg-config", 1)):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\nexit {status}\n")
        tool.chmod(0o755)
    with pytest.raises(build.BuildError, match=r"headers are missing for libavformat, .*libavutil: apt-get install"):
        build.build()


@needs_native
def test_it_warns_of_nothing(tmp_path: Path) -> None:
    if not shutil.which("pkg-config") or not shutil.which("cc"):
        pytest.skip("no compiler")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", *build.LIBRARIES], capture_output=True, text=True, check=True
    ).stdout.split()
    command = [
        "cc",
        *build.FLAGS,
        "-Werror",
        '-DBUILT_FROM=""',
        str(build.SOURCE),
        "-o",
        str(tmp_path / "x.so"),
        *flags,
    ]
    subprocess.run(command, check=True)


@needs_native
def test_other_versions_of_libav_are_refused() -> None:
    class Library:
        def storeside_built_from(self) -> bytes:
            return loaded().storeside_built_from()

        def storeside_versions(self, into: ctypes.Array[ctypes.c_uint]) -> None:
            loaded().storeside_versions(into)
            into[2] += 1 << 16

    with pytest.raises(RuntimeError, match=r"built for libavcodec \d+\.\d+\.\d+, and \d+\.\d+\.\d+ is installed"):
        converter._check(Library(), Path(os.devnull))  # type: ignore[arg-type]


def opus(seconds: float, hz: float, rate: int = 48_000) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="ogg") as target:
        stream: Any = target.add_stream("libopus", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(s16(sine(seconds, rate, hz=hz)).reshape(1, -1), "s16", "mono")
        frame.sample_rate, frame.pts = rate, 0
        stream.codec_context.open()
        resampler = av.AudioResampler(stream.codec_context.format.name, "mono", rate, stream.codec_context.frame_size)
        for made in (*resampler.resample(frame), *resampler.resample(None)):
            target.mux(stream.encode(made))
        target.mux(stream.encode(None))
    return out.getvalue()


def test_a_chain_of_opus_is_transcoded_as_the_other_engines_read_it() -> None:
    chain = opus(1.0, 440) + opus(2.0, 880)
    samples = transcoding.probe(chain).samples
    assert samples == pytest.approx(3 * 48_000, abs=1_000)
    result = transcoding.transcode(chain, AudioFormat())
    assert len(result) == pytest.approx(44 + 2 * samples / 3, abs=8)


def test_mp3_at_24_khz_is_not_distorted() -> None:
    """libav before FFmpeg 8 makes errors of up to 2,000 steps in it."""
    out = io.BytesIO()
    noise = np.random.default_rng(1).normal(0, 0.1, 48_000)
    with av.open(out, "w", format="mp3") as target:
        stream: Any = target.add_stream("libmp3lame", rate=24_000, layout="mono", options={"b": "160000"})
        frame = av.AudioFrame.from_ndarray(s16(noise).reshape(1, -1), "s16", "mono")
        frame.sample_rate, frame.pts = 24_000, 0
        resampler = av.AudioResampler("s16p", "mono", 24_000, 576)
        for made in (*resampler.resample(frame), *resampler.resample(None)):
            target.mux(stream.encode(made))
        target.mux(stream.encode(None))
    form = AudioFormat(sample_rate=24_000)
    ours, theirs = (
        np.frombuffer(bytes(read(out.getvalue(), form, Limits())), "<i2", offset=44).astype(int)
        for read in (transcoding.engine(form), libav_engine.transcode)
    )
    assert np.abs(ours - theirs).max() <= 2


def vorbis(quality: int, hz: float, seconds: float) -> bytes:
    source = ["-f", "lavfi", "-i", f"sine={hz}:sample_rate=44100:duration={seconds}"]
    command = ["ffmpeg", "-v", "error", *source, "-c:a", "libvorbis", "-q:a", str(quality), "-f", "ogg", "-"]
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.parametrize("engine", [transcoding.transcode, libav_engine.transcode])
def test_links_of_a_vorbis_chain_with_other_headers_are_no_noise(engine: Any) -> None:
    result = engine(vorbis(3, 440, 1.0) + vorbis(9, 880, 2.0), AudioFormat(), LIMITS)
    samples = np.frombuffer(bytes(result), "<i2", offset=44)
    assert len(samples) == pytest.approx(3 * 16_000, abs=500)
    second = samples[24_000:40_000].astype(float)
    power = np.abs(np.fft.rfft(second * np.hanning(len(second)))) ** 2
    assert power.argmax() == 880
    assert power[870:890].sum() / power.sum() > 0.999
