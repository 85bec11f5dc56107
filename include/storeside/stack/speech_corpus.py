"""Creates many distinct speech objects from a few recordings, and broken objects that every pipeline must reject."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
import struct
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeside.stack.settings import StackError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.int16]

RATE = 16_000
STEREO_RATE = 44_100
SHORTEST_SECONDS = 4.0
LONGEST_SECONDS = 14.0
GAIN_DB = (-15.0, 0.0)
AUDIO_SUFFIXES = frozenset(
    ".aac .ac3 .aif .aifc .aiff .alac .amr .ape .au .caf .flac .m4a .m4b .mka .mp2 .mp3 .mp4 .oga .ogg .opus "  # noqa: SIM905
    ".snd .spx .tta .wav .wave .weba .webm .wma .wv".split()
)


@dataclass(frozen=True)
class SpeechObject:
    """One object of a corpus: its key below the corpus folder and the properties of its audio.

    `samples` is the number per channel before encoding. An MP3 decoder that ignores the gapless tag returns more,
    because it pads to whole frames.
    """

    name: str
    codec: str
    sample_rate: int
    channels: int
    samples: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Corpus:
    """The objects that `make` wrote below `folder`, by their number."""

    folder: Path
    objects: tuple[SpeechObject, ...]

    @property
    def seconds(self) -> float:
        """The total playing time of all objects in seconds."""
        return sum(item.samples / item.sample_rate for item in self.objects)

    @property
    def bytes(self) -> int:
        """The total encoded size of all objects in bytes."""
        return sum(item.bytes for item in self.objects)


@dataclass(frozen=True)
class _Cut:
    """The part of the audio that object `number` contains: `length` samples from `start`, with a linear `gain`."""

    number: int
    start: int
    length: int
    gain: float

    @property
    def form(self) -> tuple[str, str, int, int]:
        """Return container, encoder, sample rate and channels."""
        if self.number == 1:
            return "flac", "flac", STEREO_RATE, 2
        return {
            4: ("wav", "pcm_s16le", RATE, 1),
            8: ("mp3", "libmp3lame", RATE, 1),
        }.get(self.number % 10, ("flac", "flac", RATE, 1))

    @property
    def name(self) -> str:
        """Return the object's key, sixteen objects to a folder: ``librivox/0007/austen-00123.flac``."""
        return f"librivox/{self.number // 16:04d}/austen-{self.number:05d}.{self.form[0]}"


def own_audio(folder: Path) -> Iterator[Path]:
    """Return the audio files below `folder`, by suffix in upper or lower case, sorted by name.

    Skips hidden files and folders, and does not follow links to folders. Raises StackError, before the first
    iteration, if the folder does not exist or has no audio file.
    """
    if not folder.is_dir():
        raise StackError(f"{folder} is not a folder: choose a folder with audio files")
    found = _audio_files(folder)
    first = next(found, None)
    if first is None:
        raise StackError(f"{folder} has no audio file with one of the suffixes {' '.join(sorted(AUDIO_SUFFIXES))}")
    return itertools.chain((first,), found)


def make(source: Path, destination: Path, count: int, seed: int = 0) -> Corpus:
    """Write `count` distinct speech objects below `destination`; with the same `seed` a smaller count is a prefix.

    The recordings of `source` are decoded once (16 kHz mono, in memory) and joined to a ring. Each object is a
    section of 4 to 14 s from anywhere in the ring, 0 to 15 dB quieter. Eight of ten objects are FLAC, one is WAV and
    one MP3; object 1 is 44.1 kHz stereo FLAC. Raises StackError if a file of `source` cannot be decoded, or if the
    recordings are too short for distinct objects.
    """
    import numpy as np

    ring = np.concatenate([decode(path) for path in own_audio(source)])
    if len(ring) < RATE or not ring.any():
        raise StackError(f"the audio in {source} is silent or shorter than a second: add at least one recording")
    cuts = _plan(count, len(ring), seed)
    for folder in {(destination / cut.name).parent for cut in cuts}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        objects = tuple(pool.map(lambda cut: _write(ring, cut, destination), cuts))
    if len({item.checksum for item in objects}) < count:
        raise StackError(f"the audio in {source} does not yield {count} distinct objects: add other recordings")
    return Corpus(destination, objects)


def make_bad(destination: Path) -> dict[str, str]:
    """Write broken objects below `destination` that every pipeline must reject; return each key with its fault."""
    import numpy as np

    tone = np.sin(np.arange(8 * RATE) * (440 * 2 * np.pi / RATE)) * 8000
    noise = np.random.default_rng(0).normal(0, 800, len(tone))
    good = encode((tone + noise).astype(np.int16)[None, :], "flac", "flac", RATE)
    frames = _frames_offset(good)
    middle = (frames + len(good)) // 2
    rubbish = random.Random(0).randbytes(len(good) - frames)  # noqa: S311
    silence = io.BytesIO()
    with wave.open(silence, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
    made = {
        "bad/corrupt-frames.flac": (
            good[:frames] + rubbish,
            "the header is valid, all frames after it are overwritten with random bytes",
        ),
        "bad/damaged-middle.flac": (
            good[:middle] + rubbish[: len(good) // 10] + good[middle + len(good) // 10 :],
            "a tenth of the frames, in the middle, is overwritten with random bytes",
        ),
        "bad/truncated.flac": (
            good[:middle],
            "the header declares 8 s, the file ends in the middle",
        ),
        "bad/text.flac": (b"This is a text file.\n" * 40, "plain text under an audio name"),
        "bad/empty.flac": (b"", "no bytes at all"),
        "bad/no-samples.flac": (_flac_header(), "a valid FLAC header and no audio frame"),
        "bad/no-frames.wav": (silence.getvalue(), "a valid WAV header and no sample"),
    }
    for name, (content, _) in made.items():
        path = destination / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {name: reason for name, (_, reason) in made.items()}


def _audio_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES:
                yield Path(parent, name)


def decode(path: Path) -> Samples:
    """Return the audio of a file as 16 kHz mono samples, shape (samples,)."""
    import av
    import numpy as np

    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    try:
        with av.open(str(path)) as container:
            decoded = [
                out.to_ndarray()[0]
                for frame in itertools.chain(container.decode(audio=0), (None,))
                for out in resampler.resample(frame)
            ]
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise StackError(f"{path} cannot be read as audio ({error}): repair or remove it") from error
    if not decoded:
        raise StackError(f"{path} has no audio: repair or remove it")
    return np.concatenate(decoded)


def _plan(count: int, ring: int, seed: int) -> list[_Cut]:
    """Choose `count` sections; no two have the same start and length."""
    chance = random.Random(seed)  # noqa: S311
    cuts: dict[tuple[int, int], _Cut] = {}
    while len(cuts) < count:
        length = round(chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS) * RATE)
        start = chance.randrange(ring)
        gain = 10 ** (chance.uniform(*GAIN_DB) / 20)
        cuts.setdefault((start, length), _Cut(len(cuts), start, length, gain))
    return list(cuts.values())


def _write(ring: Samples, cut: _Cut, destination: Path) -> SpeechObject:
    import numpy as np

    container, codec, rate, channels = cut.form
    audio = ring.take(np.arange(cut.start, cut.start + cut.length), mode="wrap") * cut.gain
    if rate != RATE:
        audio = np.interp(np.arange(cut.length * rate // RATE) * (RATE / rate), np.arange(cut.length), audio)
    planes = np.stack([audio * 0.8**channel for channel in range(channels)])
    content = encode(planes.round().astype(np.int16), container, codec, rate)
    (destination / cut.name).write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    return SpeechObject(cut.name, codec, rate, channels, planes.shape[1], len(content), checksum)


def encode(planes: Samples, container: str, codec: str, rate: int) -> bytes:
    """Encode samples of shape (channels, samples)."""
    import av

    layout = "mono" if len(planes) == 1 else "stereo"
    packed, data = ("s16p", planes) if codec == "libmp3lame" else ("s16", planes.T.reshape(1, -1))
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.format = packed
        frame = av.AudioFrame.from_ndarray(data.copy(order="C"), format=packed, layout=layout)
        frame.sample_rate = rate
        for piece in (frame, None):
            output.mux(stream.encode(piece))
    return target.getvalue()


def _frames_offset(flac: bytes) -> int:
    """Return the offset at which the metadata blocks of a FLAC file end (RFC 9639, section 8)."""
    offset, last = 4, False
    while not last:
        (word,) = struct.unpack_from(">I", flac, offset)
        last, offset = bool(word >> 31), offset + 4 + (word & 0xFFFFFF)
    return offset


def _flac_header() -> bytes:
    """Return a FLAC file with only a STREAMINFO block (RFC 9639, section 8.2): 16 kHz, mono, no samples."""
    sizes = struct.pack(">HH", 4096, 4096) + bytes(6)
    form = (RATE << 44) | ((16 - 1) << 36)
    checksum = hashlib.md5(b"", usedforsecurity=False).digest()
    return b"fLaC" + struct.pack(">I", (1 << 31) | 34) + sizes + struct.pack(">Q", form) + checksum
