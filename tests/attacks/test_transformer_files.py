"""Finding 14: a filter of ffmpeg writes no file."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.transformers.audio.ffmpeg_settings import FfmpegSettings


@pytest.mark.parametrize(
    "given",
    [
        ("loudnorm", [], {"stats_file": "canary.json"}),
        ("loudnorm", [-16, 7, -2, -20, 5, -3, -30, 0, 1, 0, "json", "canary.json"], {}),
        ("loudnorm", [], {"print_format": "json", "stats_file": "x"}),
    ],
)
def test_loudnorm_does_not_write_its_statistics(given: Any) -> None:
    with pytest.raises(ValueError, match="loudnorm's stats_file writes a file"):
        FfmpegSettings({"format": "wav"}, [given])


def test_loudnorm_is_there() -> None:
    FfmpegSettings({"format": "wav"}, [("loudnorm", [-16], {"TP": -1.5, "print_format": "summary"})])
