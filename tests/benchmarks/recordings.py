"""LibriSpeech-like objects: cuts of 12 s, 16 kHz, mono, FLAC, each different."""

from __future__ import annotations

import io
import random
from pathlib import Path

import av
import numpy as np

from include.stack.demo import RECORDINGS

RATE = 16_000
SECONDS = 12


def make(folder: Path, count: int) -> list[Path]:
    """Write `count` recordings into `folder` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    speech = np.concatenate([_samples(path) for path in sorted(RECORDINGS.iterdir()) if path.suffix in AUDIO])
    choice = random.Random(1)  # noqa: S311
    length = RATE * SECONDS
    paths = []
    for number in range(count):
        start = choice.randrange(len(speech) - length)
        cut = (speech[start : start + length] * choice.uniform(0.4, 1)).astype(np.int16)
        path = folder / f"{number:05}.flac"
        path.write_bytes(_flac(cut))
        paths.append(path)
    return paths


AUDIO = {".flac", ".mp3", ".ogg", ".wav", ".opus"}


def _samples(path: Path) -> np.ndarray:
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    with av.open(str(path)) as container:
        frames = [f.to_ndarray().ravel() for frame in container.decode(audio=0) for f in resampler.resample(frame)]
    return np.concatenate(frames)


def _flac(samples: np.ndarray) -> bytes:
    written = io.BytesIO()
    with av.open(written, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        stream.codec_context.open()
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE
        fifo = av.AudioFifo()
        fifo.write(frame)
        while (piece := fifo.read(stream.codec_context.frame_size, partial=True)) is not None:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return written.getvalue()
