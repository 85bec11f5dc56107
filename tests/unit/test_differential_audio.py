"""The differential fuzzing of audio: a few hundred files, and proof that it detects differences."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storeside.transformers.audio import native_engine, transcoding
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from tests.fuzz.differential import audio as family
from tests.unit.test_audio_native import is_of_the_same_libraries

pytestmark = pytest.mark.skipif(
    not shutil.which("ffmpeg") or not native_engine.is_available() or not is_of_the_same_libraries(),
    reason="no native library, or no ffmpeg command of the same libraries",
)
DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "differences.md"


def test_no_difference_is_silent() -> None:
    outcome = family.compare(256, seed=3)
    assert not outcome.silent, outcome.silent
    assert outcome.equal > 100
    assert outcome.files == outcome.equal + outcome.refused + outcome.intended.total()


@pytest.mark.exhaustive
def test_a_planted_difference_is_found() -> None:
    def louder(content: bytes, target: AudioFormat, limits: Limits) -> Any:
        made = bytearray(transcoding.transcode(content, target, limits))
        made[-2] ^= 1
        return made

    outcome = family.compare(64, seed=3, engines={"native": louder})
    assert len(outcome.silent) > 20
    assert "samples differ by 1 steps" in outcome.silent[0]


@pytest.mark.exhaustive
def test_a_planted_acceptance_is_found() -> None:
    def lenient(content: bytes, target: AudioFormat, limits: Limits) -> Any:
        try:
            return transcoding.transcode(content, target, limits)
        except transcoding.AudioError:
            return b"data0000" + bytes(2_000)

    outcome = family.compare(64, seed=3, engines={"native": lenient})
    assert len(outcome.silent) > 5


@pytest.mark.parametrize("title", [family.BEHIND, family.PADDING, family.POSITION, family.VERSIONS])
def test_intended_differences_are_documented(title: str) -> None:
    assert f"\n### {title}\n" in DIFFERENCES.read_text()
