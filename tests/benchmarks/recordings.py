"""LibriSpeech-like objects: cuts, usually of 12 s, 16 kHz, mono, FLAC, each different."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from storeside.stack.demo import RECORDINGS
from storeside.stack.speech_corpus import RATE, decode, encode, own_audio

SECONDS = 12


def make(folder: Path, count: int, seconds: int = SECONDS) -> list[Path]:
    """Write `count` recordings, each of up to 24 seconds, into `folder` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    speech = np.concatenate([decode(path) for path in own_audio(RECORDINGS)])
    choice = random.Random(1)  # noqa: S311
    length = RATE * seconds
    paths = []
    for number in range(count):
        start = choice.randrange(len(speech) - length)
        cut = (speech[start : start + length] * choice.uniform(0.4, 1)).astype(np.int16)
        path = folder / f"{number:05}.flac"
        path.write_bytes(encode(cut[None, :], "flac", "flac", RATE))
        paths.append(path)
    return paths
