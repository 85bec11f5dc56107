"""Generated recordings: valid ones in many containers, and slightly invalid ones made of them."""

from __future__ import annotations

import random
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import av
import numpy as np

_Samples: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# muxer, encoder, rates, most channels, options of the muxer
_PCM = (8_000, 11_025, 16_000, 44_100, 48_000)
FORMS: tuple[tuple[str, str, tuple[int, ...], int, tuple[tuple[str, str], ...]], ...] = (
    *(("wav", f"pcm_{kind}", _PCM, 16, ()) for kind in ("s16le", "s24le", "s32le", "f32le", "f64le", "u8", "alaw")),
    ("wav", "adpcm_ms", (8_000, 16_000), 2, ()), ("wav", "adpcm_ima_wav", (16_000,), 2, ()),
    ("wav", "pcm_s16le", _PCM, 8, (("rf64", "always"),)),
    ("w64", "pcm_s16le", _PCM, 8, ()), ("w64", "pcm_s24le", _PCM, 8, ()),
    ("aiff", "pcm_s16be", _PCM, 8, ()), ("aiff", "pcm_s24be", _PCM, 8, ()), ("aiff", "pcm_s16le", _PCM, 2, ()),
    ("caf", "pcm_s16be", _PCM, 8, ()), ("caf", "pcm_s24le", _PCM, 8, ()), ("caf", "alac", (16_000, 44_100), 2, ()),
    ("au", "pcm_s16be", _PCM, 8, ()), ("au", "pcm_mulaw", (8_000,), 2, ()),
    ("flac", "flac", _PCM, 8, ()),
    ("mp3", "libmp3lame", (8_000, 16_000, 44_100, 48_000), 2, ()),
    ("mp3", "libmp3lame", (16_000, 44_100), 2, (("write_xing", "0"), ("id3v2_version", "0"))),
    ("ogg", "libopus", (48_000,), 2, ()), ("ogg", "libvorbis", (16_000, 44_100), 2, ()),
    ("ogg", "flac", (16_000, 44_100), 8, ()),
    ("ipod", "aac", (16_000, 44_100), 2, ()), ("ipod", "alac", (16_000, 44_100), 2, ()),
    ("mp4", "aac", (16_000, 44_100), 2, (("movflags", "faststart"),)),
    ("mp4", "aac", (16_000, 44_100), 2, (("movflags", "frag_keyframe+empty_moov"),)),
    ("mov", "pcm_s16be", _PCM, 8, ()),
    ("matroska", "flac", _PCM, 8, ()), ("matroska", "pcm_s16le", _PCM, 8, ()),
    ("webm", "libopus", (48_000,), 2, ()), ("webm", "libvorbis", (16_000, 44_100), 2, ()),
    ("asf", "wmav2", (16_000, 44_100), 2, ()),
    ("wv", "wavpack", _PCM, 8, ()), ("tta", "tta", (16_000, 44_100), 2, ()),
    ("ac3", "ac3", (44_100, 48_000), 6, ()), ("adts", "aac", (16_000, 44_100), 2, ()),
)  # fmt: skip
# Lossless encoders.
LOSSLESS = ("pcm_", "flac", "alac", "wavpack", "tta")
LAYOUTS = {
    1: ("mono",), 2: ("stereo",), 3: ("2.1", "3.0", "3.0(back)"), 4: ("4.0", "quad", "quad(side)", "3.1"),
    5: ("5.0", "5.0(side)", "4.1"), 6: ("5.1", "5.1(side)", "6.0", "hexagonal", "6.0(front)"),
    7: ("6.1", "6.1(back)", "7.0", "7.0(front)"), 8: ("7.1", "7.1(wide)", "octagonal"),
}  # fmt: skip
# How the layout of raw PCM in WAV is given that no muxer writes: not at all.
UNSPECIFIED = "unspecified"
_SECONDS = (0.03, 0.11, 0.3)


@dataclass(frozen=True)
class Base:
    """A valid recording: how it was made."""

    muxer: str
    encoder: str
    rate: int
    channels: int
    layout: str
    options: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def is_lossless(self) -> bool:
        """Whether decoding gives the very samples, whatever the version of libav."""
        return self.encoder.startswith(LOSSLESS) and self.encoder != "pcm_alaw"


@dataclass(frozen=True)
class Recording:
    """A generated recording: file n of a seed. `kind` is what was done to the valid one."""

    number: int
    base: Base
    kind: str
    content: bytes

    def __str__(self) -> str:
        base = self.base
        options = ",".join(f"{name}={value}" for name, value in base.options)
        return (
            f"file {self.number} ({self.kind}; {base.muxer} {base.encoder} {base.rate} Hz {base.layout} {options}"
            f" {base.seconds} s)"
        )


def recording(seed: int, number: int) -> Recording:
    """Return one recording, always the same one."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311
    muxer, encoder, rates, most, options = rng.choice(FORMS)
    channels = rng.choice([1, 1, 2, 2, *range(1, min(most, 8) + 1), *range(9, most + 1)])
    channels = min(channels, most)
    layout = rng.choice(LAYOUTS.get(channels, (UNSPECIFIED,)))
    if encoder == "ac3" and layout not in _AC3:
        layout, channels = "stereo", 2
    if muxer == "wav" and encoder == "pcm_s16le" and not options and rng.random() < 0.3:
        layout = UNSPECIFIED
    if channels > 8:
        encoder, layout = "pcm_s16le", UNSPECIFIED
    base = Base(muxer, encoder, rng.choice(rates), channels, layout, options, rng.choice(_SECONDS))
    kind, damage = rng.choices(_KINDS, [weight for _, _, weight in _KINDS])[0][:2]
    return Recording(number, base, kind, damage(rng, encoded(base)))


_AC3 = ("mono", "stereo", "3.0", "3.0(back)", "4.0", "quad(side)", "5.0(side)", "5.1(side)", "5.0", "5.1")


@lru_cache(4_096)
def encoded(base: Base) -> bytes:
    """Return the valid recording: a different tone with noise on each channel."""
    count = round(base.seconds * base.rate)
    noise = np.random.default_rng(base.channels).uniform(-0.2, 0.2, (count, base.channels))
    hertz = 150 + 97 * np.arange(base.channels)
    tones = 0.5 * np.sin(2 * np.pi * hertz * np.arange(count)[:, None] / base.rate)
    samples = ((noise + tones) * 32_767).round().astype("<i2")
    if base.layout == UNSPECIFIED:
        return _riff(samples, base.rate)
    with tempfile.NamedTemporaryFile() as file:  # the muxer of MP4 opens its result a second time
        if base.encoder == "libvorbis":  # the encoder in PyAV's libav makes what no other version decodes alike
            form = ["-f", "s16le", "-ar", str(base.rate), "-ac", str(base.channels), "-i", "-"]
            made = ["-c:a", base.encoder, "-bitexact", "-f", base.muxer, "-y", file.name]
            subprocess.run(["ffmpeg", "-v", "error", *form, *made], input=samples.tobytes(), check=True)
        else:
            _encode(base, samples, file.name)
        return file.read()


def _encode(base: Base, samples: _Samples, path: str) -> None:
    with av.open(path, "w", format=base.muxer, options={"fflags": "+bitexact", **dict(base.options)}) as target:
        stream: Any = target.add_stream(base.encoder, rate=base.rate, layout=base.layout)
        if base.encoder == "wmav2":
            stream.bit_rate = 64_000
        stream.codec_context.options = {"strict": "-2"}
        stream.codec_context.open()
        form = stream.codec_context.format.name
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "s16", base.layout)
        frame.sample_rate, frame.pts, frame.time_base = base.rate, 0, Fraction(1, base.rate)
        resampler = av.AudioResampler(form, base.layout, base.rate, stream.codec_context.frame_size or None)
        for made in (*resampler.resample(frame), *resampler.resample(None)):
            target.mux(stream.encode(made))
        target.mux(stream.encode(None))


def _riff(samples: _Samples, rate: int) -> bytes:
    """Return a WAV file that does not identify its channels."""
    channels = samples.shape[1]
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2, channels * 2, 16)
    data = samples.tobytes()
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


# --- what is done to valid recordings


def _intact(_: random.Random, content: bytes) -> bytes:
    return content


def _cut(rng: random.Random, content: bytes) -> bytes:
    least = len(content) // 10
    return content[: rng.randrange(least, len(content))]


def _cut_little(rng: random.Random, content: bytes) -> bytes:
    return content[: -rng.randrange(1, min(40, len(content)))]


def _trailing(rng: random.Random, content: bytes) -> bytes:
    size = rng.choice((1, 1, 2, 3, 4, 7, 16, 100, 3_000))
    return content + rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))


def _tagged(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(_TAGS)(content)


def _id3v1(content: bytes) -> bytes:
    return content + b"TAG" + b"title".ljust(125, b"\0")


def _ape(content: bytes) -> bytes:
    item = struct.pack("<II", 5, 0) + b"Title\0" + b"title"
    foot = b"APETAGEX" + struct.pack("<IIII", 2_000, len(item) + 32, 1, 0) + bytes(8)
    head = b"APETAGEX" + struct.pack("<IIII", 2_000, len(item) + 32, 1, 0xA0000000) + bytes(8)
    return content + head + item + foot[:20] + struct.pack("<I", 0x80000000) + bytes(8)


def _id3v2(content: bytes) -> bytes:
    body = b"TIT2" + struct.pack(">I", 6) + b"\0\0\0title" + bytes(100)
    size = bytes(len(body) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + size + body + content


_TAGS = (_id3v1, _ape, lambda content: _id3v1(_ape(content)), _id3v2)


def _flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        reach = rng.choice((64, len(changed), len(changed)))
        changed[rng.randrange(min(reach, len(changed)))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_KINDS = (
    ("intact", _intact, 28), ("cut", _cut, 14), ("cut little", _cut_little, 8), ("trailing", _trailing, 14),
    ("tagged", _tagged, 14), ("flipped", _flipped, 22),
)  # fmt: skip
