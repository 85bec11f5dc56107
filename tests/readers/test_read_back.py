"""A corpus with texts is cut in storage, and the libraries that train on it read all of it back: `make readers-test`.

Expected samples, durations and texts are those that the corpus was made of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storeside.aistore.buckets import Bucket
from storeside.operators import AISSplitShardsOperator
from storeside.stack.airflow import airflow
from storeside.stack.clients import clients_environment
from storeside.stack.settings import Stack
from tests.integration.test_given_segments import Cutting, Drive, line
from tests.readers import packages, read_back
from tests.support import IMAGE, put, read, sizes, task_context, unique
from tests.unit.test_audio import wav
from tests.unit.test_utterances import RATE

RECORDINGS = 24
TEXTS = ("", "one two", 'say "hi"\tto\x07 \u2028 the wörld \U0001f600', "ends with a blank ", "'; DROP TABLE x; --")


@dataclass
class Corpus:
    """The recordings and the lines about their segments, and what each segment is expected to be read as."""

    objects: dict[str, bytes]
    lines: str
    expected: list[dict[str, Any]]


def corpus() -> Corpus:
    """Make recordings of 1 to 4 s in folders, each with 1 to 4 segments, whose times fall between samples, too."""
    random = np.random.default_rng(41)
    made = Corpus({}, "", [])
    for n in range(RECORDINGS):
        stem = f"{'abc'[n % 3]}/day {n // 3}/talk-{n}"
        samples = random.integers(-20_000, 20_000, int(random.integers(RATE, 4 * RATE)), np.int16)
        made.objects[f"{stem}.wav"] = wav(samples)
        for k in range(int(random.integers(1, 5))):
            begin = float(random.uniform(0, len(samples) / RATE - 0.2))
            end = float(random.uniform(begin + 0.05, len(samples) / RATE))
            told = {
                "text": TEXTS[int(random.integers(len(TEXTS)))], "speaker": f"sp{n % 5}",
                "language": ("de", "en", "")[k % 3],
            }  # fmt: skip
            made.lines += line(f"{stem}.wav", begin, end, id=f"u{k:02}", **told)
            part = samples[round(begin * RATE) : round(end * RATE)]
            samples_hash = read_back.hashed(part / np.float32(32_768))
            made.expected.append({**told, "seconds": len(part) / RATE, "samples": samples_hash})
    return made


def read_with(how: str, place: Path, stack: Stack) -> list[dict[str, Any]]:
    """Return what a library reads, in a process with the library's packages."""
    environment = {
        **clients_environment(stack),
        "PYTHONPATH": str(packages.installed()), "HF_HUB_OFFLINE": "1",
        "PATH": os.environ["PATH"], "HOME": str(place.parent),
    }  # fmt: skip
    command = [sys.executable, read_back.__file__, how, str(place)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return [json.loads(told) for told in done.stdout.splitlines()]


def test_lhotse_webdataset_and_hugging_face_read_all_texts_and_samples(
    stack: Stack,
    clickhouse: Any,
    aistore: Any,
    s3_client: Any,
    drive: Drive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, connection in airflow.connections(stack).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    cutting, made = Cutting(stack, clickhouse, aistore, s3_client, drive), corpus()
    put(aistore, cutting.corpus, {**made.objects, "all.jsonl": made.lines.encode()})
    assert cutting.cut().done == RECORDINGS
    cutting.load_all()

    cuts = tmp_path / "cuts.jsonl"
    cuts.write_text("".join(f"{json.dumps(one)}\n" for one in cutting.manifest("lhotse_cuts")))
    shards = copied(aistore, cutting.shards, tmp_path / "shards")

    split = Bucket("ais", unique("split"))
    AISSplitShardsOperator(
        task_id="split", source=str(cutting.shards), destination=str(split), members="*.flac", image=IMAGE,
        deferrable=False,
    ).execute(task_context("split"))  # fmt: skip
    folder = copied(aistore, split, tmp_path / "folder")
    rows = cutting.manifest("huggingface")
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    for how, place in (("lhotse", cuts), ("webdataset", shards), ("huggingface", folder)):
        found = read_with(how, place, stack)
        right = sum(told in made.expected for told in map(without_name, found))
        print(f"BENCH readers.{how} {right} of {len(made.expected)} utterances", flush=True)
        assert sorted(map(str, map(without_name, found))) == sorted(map(str, made.expected)), how
        assert len({told["name"] for told in found}) == len(found), how


def without_name(told: dict[str, Any]) -> dict[str, Any]:
    return {key: told[key] for key in ("text", "speaker", "language", "seconds", "samples")}


def copied(aistore: Any, bucket: Bucket, folder: Path) -> Path:
    """Copy the objects of a bucket into a new folder and return it."""
    for name in sizes(aistore, bucket):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(read(aistore, bucket, name))
    return folder
