"""Audio from other programs: a tone of changing pitch, in every container and codec that they write.

The programs are FFmpeg of the system, libav of PyAV, SoX, flac, lame, opusenc, oggenc, WavPack and libsndfile.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np

Samples: TypeAlias = "np.ndarray[Any, np.dtype[np.int16]]"
Make = Callable[[Samples, int], bytes]

PROGRAMS = {
    "ffmpeg": "ffmpeg", "sox": "sox", "flac": "flac", "lame": "lame", "opusenc": "opus-tools",
    "oggenc": "vorbis-tools", "wavpack": "wavpack", "sndfile-convert": "sndfile-programs",
}  # fmt: skip
_MUSIC, _ALL = (44_100, 48_000), (8_000, 16_000, 44_100)
_LAYOUTS = ("mono", "stereo")


@dataclass(frozen=True)
class Form:
    """The files that one program writes: `container` and `codec` are those of the table of engines.

    `rates` are in Hz. `frame` is the number of samples in a block of the codec. `is_exact` is whether the file states
    its length to a sample, and `is_placed` whether it states where its first sample is; otherwise the delay of the
    encoder stays. A lossless form keeps all samples.
    """

    program: str
    container: str
    codec: str
    make: Make = field(repr=False)
    rates: tuple[int, ...] = _ALL
    channels: tuple[int, ...] = (1, 2)
    frame: int = 1_024
    is_exact: bool = True
    is_placed: bool = True
    is_lossless: bool = False
    note: str = ""

    @property
    def demuxer(self) -> str:
        """The first word of libav's name of the container; WAV replaces headers that libav does not know."""
        return {"mp4": "mov", "sphere": "wav", "aiff-c": "wav"}.get(self.container, self.container)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.program, self.container, self.codec, self.note)))


def missing() -> list[str]:
    """Return Debian's names of the packages whose programs are not installed."""
    return [package for program, package in PROGRAMS.items() if not shutil.which(program)]


def sweep(count: int, rate: int, channels: int) -> Samples:
    """Return a tone whose pitch rises within every second, another one on each channel: no part is like another."""
    at = np.arange(count) / rate
    tones = [(200 + 60 * number) * at + 250 * (at % 1.0) ** 2 for number in range(channels)]
    return np.stack([12_000 * np.sin(2 * np.pi * tone) for tone in tones], axis=1).round().astype("<i2")


# --- the programs


def _run(command: list[str], given: bytes | None = None) -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


def _ffmpeg(muxer: str, encoder: str, *options: str) -> Make:
    def make(samples: Samples, rate: int) -> bytes:
        form = ["-f", "s16le", "-ar", str(rate), "-ac", str(samples.shape[1]), "-i", "-"]
        with tempfile.NamedTemporaryFile() as file:  # the muxer of MP4 goes back to its start
            made = ["-c:a", encoder, "-strict", "-2", *options, "-bitexact", "-f", muxer, "-y", file.name]
            _run(["ffmpeg", "-v", "error", *form, *made], samples.tobytes())
            return file.read()

    return make


def _pyav(muxer: str, encoder: str, **options: str) -> Make:
    def make(samples: Samples, rate: int) -> bytes:
        layout = _LAYOUTS[samples.shape[1] - 1]
        with tempfile.NamedTemporaryFile() as file:
            with av.open(file.name, "w", format=muxer, options={"fflags": "+bitexact", **options}) as target:
                stream: Any = target.add_stream(encoder, rate=rate, layout=layout)
                stream.codec_context.options = {"strict": "-2"}
                stream.codec_context.bit_rate = 64_000  # WMA and AMR have no default
                if encoder == "wavpack":
                    stream.codec_context.format = "s16p"  # else 8 bits
                stream.codec_context.open()
                _encode(target, stream, samples, rate, layout)
            return file.read()

    return make


def _encode(target: Any, stream: Any, samples: Samples, rate: int, layout: str) -> None:
    if len(samples):
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "s16", layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        form = stream.codec_context.format.name
        resampler = av.AudioResampler(form, layout, rate, stream.codec_context.frame_size or None)
        for made in (*resampler.resample(frame), *resampler.resample(None)):
            target.mux(stream.encode(made))
    target.mux(stream.encode(None))


def _from_wav(name: str, *command: str) -> Make:
    """Run a program on a WAV file; IN and OUT in its command become the files' names, and OUT is named `name`."""

    def make(samples: Samples, rate: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder, "in.wav"), Path(folder, name)
            with wave.open(str(given), "wb") as file:
                file.setnchannels(samples.shape[1])
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(samples.tobytes())
            _run([{"IN": str(given), "OUT": str(made)}.get(word, word) for word in command])
            return made.read_bytes()

    return make


def _sox(name: str, *options: str) -> Make:
    return _from_wav(name, "sox", "-D", "IN", *options, "OUT")


def _sndfile(name: str, *options: str) -> Make:
    return _from_wav(name, "sndfile-convert", *options, "IN", "OUT")


def _joined(make: Make) -> Make:
    """Return a chain of two recordings; their halves are made apart."""

    def both(samples: Samples, rate: int) -> bytes:
        half = len(samples) // 2
        return make(samples[:half], rate) + make(samples[half:], rate)

    return both


# --- what they write

_PCM = ("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le")
_PCM_BIG = ("pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be")
_FRAGMENTS = ("-movflags", "frag_keyframe+empty_moov+delay_moov", "-frag_duration", "200000")


def _libav() -> list[Form]:
    """Return what FFmpeg of the system and libav of PyAV write alike."""
    lossless = {"is_lossless": True}
    coarse = {"frame": 8}
    plain: list[tuple[str, str, str, dict[str, Any]]] = [
        *(("wav", codec, "wav", lossless) for codec in (*_PCM, "pcm_s64le")),
        *(("wav", codec, "wav", coarse) for codec in ("pcm_u8", "pcm_mulaw", "pcm_alaw")),
        ("wav", "adpcm_ms", "wav", {"frame": 1_012, "is_exact": False}),
        ("wav", "adpcm_ima_wav", "wav", {"frame": 2_041, "is_exact": False}),
        ("wav", "adpcm_yamaha", "wav", {"frame": 2_048, "is_exact": False}),
        ("wav", "adpcm_swf", "wav", {"frame": 4_096, "is_exact": False, "rates": (11_025, 22_050, 44_100)}),
        (
            "wav",
            "g722",
            "wav",
            {"frame": 320, "rates": (16_000,), "channels": (1,), "is_exact": False, "is_placed": False},
        ),
        ("wav", "g726", "wav", {"frame": 8, "rates": (8_000,), "channels": (1,), "is_exact": False}),
        *(("w64", codec, "w64", {**lossless, "is_exact": False}) for codec in _PCM),
        *(("w64", codec, "w64", {**coarse, "is_exact": False}) for codec in ("pcm_u8", "pcm_mulaw", "pcm_alaw")),
        ("w64", "adpcm_ms", "w64", {"frame": 1_012, "is_exact": False}),
        ("w64", "adpcm_ima_wav", "w64", {"frame": 2_041, "is_exact": False}),
        *(("aiff", codec, "aiff", lossless) for codec in (*_PCM_BIG, "pcm_s16le")),
        *(("aiff", codec, "aiff", coarse) for codec in ("pcm_s8", "pcm_mulaw", "pcm_alaw")),
        ("aiff", "adpcm_ima_qt", "aiff", {"frame": 64, "is_exact": False}),
        *(("caf", codec, "caf", lossless) for codec in (*_PCM, *_PCM_BIG)),
        *(("caf", codec, "caf", coarse) for codec in ("pcm_s8", "pcm_mulaw", "pcm_alaw")),
        ("caf", "alac", "caf", {"frame": 4_096, **lossless}),
        ("caf", "adpcm_ima_qt", "caf", {"frame": 64, "is_exact": False}),
        *(("au", codec, "au", lossless) for codec in _PCM_BIG),
        *(("au", codec, "au", coarse) for codec in ("pcm_s8", "pcm_mulaw", "pcm_alaw")),
        ("flac", "flac", "flac", {"frame": 4_608, **lossless}),
        ("ogg", "flac", "ogg", {"frame": 4_608, **lossless}),
        ("ogg", "opus", "ogg", {"frame": 960, "rates": (48_000,)}),
        ("mp3", "mp3", "mp3", {"frame": 1_152, "rates": (8_000, 16_000, 44_100, 48_000), "is_exact": False}),
        (
            "mp3",
            "mp2",
            "mp2",
            {"frame": 1_152, "rates": (16_000, 44_100, 48_000), "is_exact": False, "is_placed": False},
        ),
        ("aac", "aac", "adts", {"is_exact": False, "is_placed": False}),
        *((box, "aac", muxer, {}) for box, muxer in (("mp4", "ipod"), ("mp4", "mp4"), ("mp4", "mov"))),
        *(("mp4", "alac", muxer, {"frame": 4_096, **lossless}) for muxer in ("ipod", "mp4", "mov")),
        ("mp4", "flac", "mp4", {"frame": 4_608, **lossless}),
        ("mp4", "opus", "mp4", {"frame": 960, "rates": (48_000,)}),
        ("mp4", "mp3", "mp4", {"frame": 1_152, "rates": (16_000, 44_100), "is_exact": False, "is_placed": False}),
        ("mp4", "ac3", "mp4", {"frame": 1_536, "rates": (44_100, 48_000), "is_exact": False, "is_placed": False}),
        *(("mp4", codec, "mov", lossless) for codec in (*_PCM_BIG, *_PCM)),
        *(("mp4", codec, "mov", coarse) for codec in ("pcm_s8", "pcm_u8", "pcm_mulaw", "pcm_alaw")),
        ("mp4", "adpcm_ima_qt", "mov", {"frame": 64, "is_exact": False}),
        *(
            ("matroska", codec, "matroska", {"is_lossless": True, "is_exact": False})
            for codec in ("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_s16be", "pcm_s24be")
        ),
        ("matroska", "pcm_u8", "matroska", {**coarse, "is_exact": False}),
        *(
            ("matroska", codec, "matroska", {"frame": 4_608, "is_lossless": True, "is_exact": False})
            for codec in ("flac", "alac", "wavpack")
        ),
        ("matroska", "aac", "matroska", {"is_exact": False, "is_placed": False}),
        (
            "matroska",
            "mp3",
            "matroska",
            {"frame": 1_152, "rates": (16_000, 44_100, 48_000), "is_exact": False, "is_placed": False},
        ),
        (
            "matroska",
            "mp2",
            "matroska",
            {"frame": 1_152, "rates": (16_000, 44_100, 48_000), "is_exact": False, "is_placed": False},
        ),
        (
            "matroska",
            "ac3",
            "matroska",
            {"frame": 1_536, "rates": (44_100, 48_000), "is_exact": False, "is_placed": False},
        ),
        ("matroska", "opus", "matroska", {"frame": 960, "rates": (48_000,), "is_exact": False}),
        ("matroska", "opus", "webm", {"frame": 960, "rates": (48_000,), "is_exact": False}),
        ("asf", "wmav1", "asf", {"rates": _MUSIC, "frame": 2_048, "is_exact": False, "is_placed": False}),
        ("asf", "wmav2", "asf", {"rates": (16_000, *_MUSIC), "frame": 2_048, "is_exact": False, "is_placed": False}),
        ("wv", "wavpack", "wv", {"frame": 4_410, **lossless}),
        ("ac3", "ac3", "ac3", {"frame": 1_536, "rates": (44_100, 48_000), "is_exact": False, "is_placed": False}),
        ("eac3", "eac3", "eac3", {"frame": 1_536, "rates": (44_100, 48_000), "is_exact": False, "is_placed": False}),
    ]
    encoders = {"opus": "libopus", "mp3": "libmp3lame"}
    return [
        Form(program, container, codec, by(muxer, encoders.get(codec, codec)), **options, note=note)
        for container, codec, muxer, options in plain
        for program, by in (("ffmpeg", _ffmpeg), ("libav of PyAV", _pyav))
        for note in ["" if muxer in (container, codec) else muxer]
    ]


def _of_ffmpeg() -> list[Form]:
    vorbis = _ffmpeg("ogg", "libvorbis")
    flac = _ffmpeg("ogg", "flac")
    return [
        Form(
            "ffmpeg",
            "wav",
            "pcm_s16le",
            _ffmpeg("wav", "pcm_s16le", "-rf64", "always"),
            is_lossless=True,
            note="RF64",
        ),
        Form("ffmpeg", "tta", "tta", _ffmpeg("tta", "tta"), (16_000, 44_100), frame=16_718, is_lossless=True),
        Form("ffmpeg", "ogg", "vorbis", vorbis, (16_000, 44_100)),
        Form("ffmpeg", "ogg", "vorbis", _joined(vorbis), (16_000, 44_100), note="chain"),
        Form("ffmpeg", "ogg", "flac", _joined(flac), frame=4_608, is_lossless=True, note="chain"),
        Form(
            "ffmpeg",
            "ogg",
            "speex",
            _ffmpeg("ogg", "libspeex"),
            (8_000, 16_000),
            frame=320,
            is_exact=False,
            is_placed=False,
        ),
        Form("ffmpeg", "matroska", "vorbis", _ffmpeg("matroska", "libvorbis"), (16_000, 44_100), is_exact=False),
        Form("ffmpeg", "mp4", "aac", _ffmpeg("mp4", "aac", *_FRAGMENTS), note="fragments"),
        Form(
            "ffmpeg",
            "mp4",
            "alac",
            _ffmpeg("mp4", "alac", *_FRAGMENTS),
            frame=4_096,
            is_lossless=True,
            note="fragments",
        ),
        Form(
            "ffmpeg",
            "mp4",
            "flac",
            _ffmpeg("mp4", "flac", *_FRAGMENTS),
            frame=4_608,
            is_lossless=True,
            note="fragments",
        ),
        Form(
            "ffmpeg", "caf", "opus", _ffmpeg("caf", "libopus"), (48_000,), frame=960, is_exact=False, is_placed=False
        ),
        Form(
            "ffmpeg",
            "wav",
            "mp3",
            _ffmpeg("wav", "libmp3lame"),
            (16_000, 44_100),
            frame=1_152,
            is_exact=False,
            is_placed=False,
        ),
        Form("ffmpeg", "wav", "gsm_ms", _ffmpeg("wav", "libgsm_ms"), (8_000,), (1,), frame=320, is_exact=False),
        Form(
            "libav of PyAV",
            "amr",
            "amrnb",
            _pyav("amr", "libopencore_amrnb"),
            (8_000,),
            (1,),
            frame=160,
            is_exact=False,
            is_placed=False,
        ),
        Form(
            "libav of PyAV",
            "mp4",
            "amrnb",
            _pyav("3gp", "libopencore_amrnb"),
            (8_000,),
            (1,),
            frame=160,
            is_exact=False,
            is_placed=False,
        ),
        Form("libav of PyAV", "mp4", "pcm_s24be", _pyav("mp4", "pcm_s24be"), is_lossless=True, note="ipcm"),
        Form("libav of PyAV", "mp4", "pcm_s16le", _pyav("mp4", "pcm_s16le"), is_lossless=True, note="ipcm"),
        Form("libav of PyAV", "mp4", "pcm_f32le", _pyav("mp4", "pcm_f32le"), is_lossless=True, note="fpcm"),
        Form(
            "ffmpeg", "mp3", "mp3", _ffmpeg("mp3", "libmp3lame"), (24_000,), frame=576, is_exact=False, note="24 kHz"
        ),
    ]


def _of_others() -> list[Form]:
    lossless: dict[str, Any] = {"is_lossless": True}
    open_: dict[str, Any] = {"is_exact": False, "is_placed": False}
    made = [
        *(Form("sox", "wav", f"pcm_s{bits}le", _sox("o.wav", "-b", str(bits)), **lossless) for bits in (16, 24, 32)),
        Form("sox", "wav", "pcm_f32le", _sox("o.wav", "-e", "float", "-b", "32"), **lossless),
        Form("sox", "wav", "pcm_u8", _sox("o.wav", "-b", "8"), frame=8),
        Form("sox", "wav", "pcm_mulaw", _sox("o.wav", "-e", "mu-law"), frame=8),
        Form("sox", "wav", "pcm_alaw", _sox("o.wav", "-e", "a-law"), frame=8),
        Form("sox", "wav", "adpcm_ima_wav", _sox("o.wav", "-e", "ima-adpcm"), frame=505),
        Form("sox", "wav", "adpcm_ms", _sox("o.wav", "-e", "ms-adpcm"), frame=500),
        Form("sox", "wav", "gsm_ms", _sox("o.wav", "-e", "gsm"), (8_000,), (1,), frame=320),
        *(
            Form("sox", "aiff", f"pcm_s{bits}be", _sox("o.aiff", "-b", str(bits)), **lossless)
            for bits in (16, 24, 32)
        ),
        *(
            Form("sox", "aiff", f"pcm_s{bits}be", _sox("o.aifc", "-b", str(bits)), **lossless, note="aifc")
            for bits in (16, 24)
        ),
        *(Form("sox", "au", f"pcm_s{bits}be", _sox("o.au", "-b", str(bits)), **lossless) for bits in (16, 24, 32)),
        Form("sox", "au", "pcm_mulaw", _sox("o.au", "-e", "mu-law"), frame=8),
        Form("sox", "flac", "flac", _sox("o.flac"), frame=4_096, **lossless),
        Form("sox", "flac", "flac", _sox("o.flac", "-b", "24"), frame=4_096, **lossless, note="24 bits"),
        Form("sox", "ogg", "vorbis", _sox("o.ogg"), (16_000, 44_100)),
        Form("sox", "sphere", "pcm_s16le", _sox("o.sph", "-b", "16"), **lossless),
        Form("sox", "sphere", "pcm_mulaw", _sox("o.sph", "-e", "mu-law"), frame=8),
        Form("sox", "wv", "wavpack", _sox("o.wv"), frame=4_096, **lossless),
        *(
            Form("sndfile", "wav", f"pcm_s{bits}le", _sndfile("o.wav", f"-pcm{bits}"), **lossless)
            for bits in (16, 24, 32)
        ),
        Form(
            "sndfile",
            "wav",
            "adpcm_ima_wav",
            _sndfile("o.wav", "-ima-adpcm"),
            channels=(1,),
            frame=4_089,  # at 44.1 kHz, in blocks of 2,048 bytes; less at lower rates
            is_exact=False,
        ),
        Form("sndfile", "wav", "adpcm_ms", _sndfile("o.wav", "-ms-adpcm"), frame=500),
        Form("sndfile", "wav", "gsm_ms", _sndfile("o.wav", "-gsm610"), (8_000,), (1,), frame=320),
        *(
            Form("sndfile", "aiff", f"pcm_s{bits}be", _sndfile("o.aif", f"-pcm{bits}"), **lossless)
            for bits in (16, 24, 32)
        ),
        *(
            Form("sndfile", box, f"pcm_s{bits}le", _sndfile("o.aif", "-endian=little", f"-pcm{bits}"), **lossless)
            for box, bits in (("aiff", 16), ("aiff-c", 24), ("aiff-c", 32))
        ),
        *(
            Form("sndfile", "caf", f"pcm_s{bits}be", _sndfile("o.caf", f"-pcm{bits}"), **lossless)
            for bits in (16, 24, 32)
        ),
        *(
            Form(
                "sndfile",
                "caf",
                "alac",
                _sndfile("o.caf", f"-alac{bits}"),
                channels=(1,),
                frame=4_096,
                note=f"{bits} bits",
                **lossless,
            )
            for bits in (16, 20, 24, 32)
        ),
        *(
            Form("sndfile", "w64", f"pcm_s{bits}le", _sndfile("o.w64", f"-pcm{bits}"), **lossless)
            for bits in (16, 24, 32)
        ),
        *(
            Form("sndfile", "au", f"pcm_s{bits}be", _sndfile("o.au", f"-pcm{bits}"), **lossless)
            for bits in (16, 24, 32)
        ),
        *(
            Form(
                "sndfile", "sphere", f"pcm_s{bits}le", _sndfile("o.sph", "-endian=little", f"-pcm{bits}"), **lossless
            )
            for bits in (16, 24, 32)
        ),
        Form("sndfile", "sphere", "pcm_alaw", _sndfile("o.sph", "-alaw"), frame=8),
        Form("sndfile", "ogg", "vorbis", _sndfile("o.ogg", "-vorbis"), (16_000, 44_100)),
        Form("sndfile", "ogg", "opus", _sndfile("o.opus", "-opus"), (8_000, 16_000, 48_000), frame=960),
        Form("sndfile", "flac", "flac", _sndfile("o.flac", "-pcm16"), frame=4_096, **lossless),
        *(
            Form(
                "flac",
                "flac",
                "flac",
                _from_wav("o.flac", "flac", "-s", level, "IN", "-o", "OUT"),
                frame=4_096,
                note=level,
                **lossless,
            )
            for level in ("-0", "-5", "-8")
        ),
        Form(
            "flac",
            "ogg",
            "flac",
            _from_wav("o.oga", "flac", "-s", "--ogg", "IN", "-o", "OUT"),
            frame=4_096,
            **lossless,
        ),
        Form(
            "flac",
            "ogg",
            "flac",
            _joined(_from_wav("o.oga", "flac", "-s", "--ogg", "IN", "-o", "OUT")),
            frame=4_096,
            note="chain",
            **lossless,
        ),
        *(
            Form(
                "lame",
                "mp3",
                "mp3",
                _from_wav("o.mp3", "lame", "--silent", *options, "IN", "OUT"),
                frame=1_152,
                note=" ".join(options),
            )
            for options in (("-b", "160"), ("-V", "2"), ("--abr", "160"))
        ),
        Form(
            "lame",
            "mp3",
            "mp3",
            _from_wav("o.mp3", "lame", "--silent", "-t", "-b", "160", "IN", "OUT"),
            frame=1_152,
            note="no tag",
            **open_,
        ),
        Form("opusenc", "ogg", "opus", _from_wav("o.opus", "opusenc", "--quiet", "IN", "OUT"), frame=960),
        Form(
            "opusenc",
            "ogg",
            "opus",
            _joined(_from_wav("o.opus", "opusenc", "--quiet", "IN", "OUT")),
            frame=960,
            note="chain",
        ),
        Form("oggenc", "ogg", "vorbis", _from_wav("o.ogg", "oggenc", "-Q", "IN", "-o", "OUT"), (16_000, 44_100)),
        Form(
            "oggenc",
            "ogg",
            "vorbis",
            _joined(_from_wav("o.ogg", "oggenc", "-Q", "IN", "-o", "OUT")),
            (16_000, 44_100),
            note="chain",
        ),
        Form(
            "wavpack", "wv", "wavpack", _from_wav("o.wv", "wavpack", "-q", "IN", "-o", "OUT"), frame=4_410, **lossless
        ),
        Form(
            "wavpack",
            "wv",
            "wavpack",
            _from_wav("o.wv", "wavpack", "-q", "-b4", "IN", "-o", "OUT"),
            frame=4_410,
            note="hybrid",
        ),
    ]
    return made


FORMS = (*_libav(), *_of_ffmpeg(), *_of_others())
