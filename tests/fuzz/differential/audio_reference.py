"""The ffmpeg command, for many recordings in one process: starting it costs more than a short recording does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """16-bit samples of one recording: rate in Hz, and channels, which stay as they are where there are as many.

    `mixes` is whether the recording has another number of channels, so that ffmpeg mixes with ``-ac``. None means
    that the number is unknown: a filter then keeps the channels if their number is equal.
    """

    content: bytes
    rate: int
    channels: int
    mixes: bool | None

    def options(self) -> list[str]:
        """Return ffmpeg's options for the result."""
        if self.mixes is None:
            return ["-af", f"aformat=channel_layouts={self.channels}C", "-ar", str(self.rate)]
        return [*(["-ac", str(self.channels)] if self.mixes else []), "-ar", str(self.rate)]


def samples(folder: Path, requests: Sequence[Request]) -> list[bytes | None]:
    """Return the samples of each recording; None for one that ffmpeg refuses.

    One that it refuses ends the process, so the others are tried again in two halves.
    """
    if not requests:
        return []
    if (found := _run(folder, requests)) is not None:
        return list(found)
    if len(requests) == 1:
        return [None]
    half = len(requests) // 2
    return samples(folder, requests[:half]) + samples(folder, requests[half:])


def _run(folder: Path, requests: Sequence[Request]) -> list[bytes] | None:
    inputs: list[str] = []
    outputs: list[str] = []
    made = [folder / f"out-{number}" for number in range(len(requests))]
    for number, (request, result) in enumerate(zip(requests, made, strict=True)):
        path = folder / f"in-{number}"
        path.write_bytes(request.content)
        result.unlink(missing_ok=True)
        inputs += ["-threads", "1", "-i", str(path)]
        outputs += ["-map", f"{number}:a:0", *request.options(), "-c:a", "pcm_s16le", "-f", "s16le", str(result)]
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error", "-bitexact", *inputs, *outputs]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode or not all(path.exists() for path in made):
        return None
    return [path.read_bytes() for path in made]
