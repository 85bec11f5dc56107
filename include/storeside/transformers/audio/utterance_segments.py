"""Finds utterances in the probabilities of speech of a recording's windows; the code needs no audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .utterance_options import RATE, WINDOW, UtteranceOptions

# Speech ends at a lower probability than the one at which it begins, so that it does not flicker.
_HYSTERESIS = 0.15
# Decimals of the mean probability. A detector on another type of CPU may differ in later ones.
_DECIMALS = 4

# The first window of speech, and the window after its last one.
Windows = tuple[int, int]


@dataclass(frozen=True)
class Utterance:
    """A part of a recording, from sample `start` up to, but without, sample `end`, both at `RATE`.

    `probability` is the mean probability of speech of its windows without the padding, 0 to 1.
    """

    start: int
    end: int
    probability: float

    def at(self, rate: int) -> tuple[int, int]:
        """Return its first sample, and the sample after its last one, at another rate in Hz."""
        return round(self.start * rate / RATE), round(self.end * rate / RATE)

    def facts(self) -> dict[str, Any]:
        """Return what its detection says of its audio."""
        return {"speech_probability": round(self.probability, _DECIMALS)}

    @property
    def start_seconds(self) -> float:
        """Its start in seconds of the recording."""
        return self.start / RATE

    @property
    def end_seconds(self) -> float:
        """Its end in seconds of the recording."""
        return self.end / RATE


def utterances(probabilities: Sequence[float], samples: int, options: UtteranceOptions) -> list[Utterance]:
    """Return the utterances of a recording of `samples` at `RATE`, in their order; they do not overlap.

    `probabilities` has one value per window of `WINDOW` samples; the last window may reach beyond the recording.
    """
    found: list[Windows] = []
    for speech in _merged(_speech(probabilities, options.threshold), _windows(options.merge_gap_seconds)):
        if (speech[1] - speech[0]) * WINDOW >= options.min_seconds * RATE:
            found.extend(_divided(speech, probabilities, options))
    return list(_padded(found, probabilities, samples, round(options.padding_seconds * RATE)))


def _windows(seconds: float) -> float:
    return seconds * RATE / WINDOW


def _speech(probabilities: Sequence[float], threshold: float) -> Iterator[Windows]:
    start: int | None = None
    for n, probability in enumerate(probabilities):
        if start is None:
            if probability >= threshold:
                start = n
        elif probability < threshold - _HYSTERESIS:
            yield start, n
            start = None
    if start is not None:
        yield start, len(probabilities)


def _merged(speech: Iterator[Windows], gap: float) -> Iterator[Windows]:
    """Join speech after pauses of less than `gap` windows."""
    start, end = -1, -1
    for first, last in speech:
        if start >= 0 and first - end >= gap:
            yield start, end
            start = first
        elif start < 0:
            start = first
        end = last
    if start >= 0:
        yield start, end


def _divided(speech: Windows, probabilities: Sequence[float], options: UtteranceOptions) -> Iterator[Windows]:
    """Divide speech that is too long at its window of lowest probability in the second half of the longest length.

    No part is shorter than `min_seconds`.
    """
    start, end = speech
    longest = int(_windows(options.max_seconds - 2 * options.padding_seconds))
    shortest = max(1, int(-(-options.min_seconds * RATE // WINDOW)))
    while end - start > longest:
        latest = min(start + longest, end - shortest)
        earliest = min(max(start + longest // 2, start + shortest), latest)
        # of equal windows the last one, which makes fewer utterances
        cut = min(range(latest, earliest - 1, -1), key=lambda n: probabilities[n])
        yield start, cut
        start = cut
    yield start, end


def _padded(
    found: Sequence[Windows], probabilities: Sequence[float], samples: int, padding: int
) -> Iterator[Utterance]:
    for n, (first, last) in enumerate(found):
        before = found[n - 1][1] * WINDOW if n else None
        after = found[n + 1][0] * WINDOW if n + 1 < len(found) else None
        start, end = first * WINDOW, min(last * WINDOW, samples)
        # two neighbours share the pause between them; the middle of an odd number belongs to the second one
        left = start if before is None else -(-(start - before) // 2)
        right = samples - end if after is None else (after - end) // 2
        mean = sum(probabilities[first:last]) / (last - first)
        yield Utterance(start - min(padding, left), end + min(padding, right), mean)
