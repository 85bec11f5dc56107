"""Reads an exported corpus with a library that trains on it, and prints what the library found: a program.

    python read_back.py lhotse CUTS.jsonl
    python read_back.py webdataset FOLDER_OF_SHARDS
    python read_back.py huggingface FOLDER_OF_OBJECTS

Each line of the output is one utterance: its name, seconds, text, speaker, language, and the hash of its samples as
16-bit integers. It runs with the packages of ``requirements.lock`` beside it, without those of Storeside.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    how, place = sys.argv[1:]
    reader = {"lhotse": lhotse_cuts, "webdataset": webdataset_shards, "huggingface": audio_folder}[how]
    for found in reader(Path(place)):
        print(json.dumps(found))


def lhotse_cuts(manifest: Path) -> Iterator[dict[str, Any]]:
    """Read Lhotse's cuts with their audio from AIStore (``AIS_ENDPOINT``), eight cuts a request."""
    from lhotse import CutSet
    from lhotse.ais import AISBatchLoader

    loader, cuts = AISBatchLoader(), iter(CutSet.from_jsonl(manifest))
    while batch := list(islice(cuts, 8)):
        for cut in loader(CutSet.from_cuts(batch)):
            (told,) = cut.supervisions
            yield {
                "name": cut.id, "seconds": cut.duration, "text": told.text or "",
                "speaker": told.speaker or "", "language": told.language or "",
                "samples": hashed(cut.load_audio()[0]),
            }  # fmt: skip


def webdataset_shards(folder: Path) -> Iterator[dict[str, Any]]:
    """Read WebDataset's samples of all shards."""
    import webdataset

    shards = [str(path) for path in sorted(folder.glob("**/*.tar"))]
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        facts, (samples, rate) = json.loads(sample["json"]), audio(sample["flac"])
        yield {
            "name": sample["__key__"], "seconds": len(samples) / rate, "text": sample.get("txt", b"").decode(),
            "speaker": facts["speaker"], "language": facts["language"], "samples": hashed(samples),
        }  # fmt: skip


def audio_folder(folder: Path) -> Iterator[dict[str, Any]]:
    """Read a folder of audio as Hugging Face's datasets do, with its ``metadata.jsonl``."""
    import datasets

    found = datasets.load_dataset(
        "audiofolder", data_dir=str(folder), split="train", cache_dir=str(folder / ".cache")
    )
    for row in found.cast_column("audio", datasets.Audio(decode=False)):
        path = Path(row["audio"]["path"])
        samples, rate = audio(row["audio"]["bytes"] or path.read_bytes())
        yield {
            "name": str(path.relative_to(folder).with_suffix("")), "seconds": len(samples) / rate,
            "text": row["text"], "speaker": row["speaker"], "language": row["language"], "samples": hashed(samples),
        }  # fmt: skip


def audio(content: bytes) -> tuple[np.ndarray, int]:
    import soundfile

    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    return samples, rate


def hashed(samples: np.ndarray) -> str:
    return hashlib.sha256(np.round(samples * 32_768).astype("<i2").tobytes()).hexdigest()


if __name__ == "__main__":
    main()
