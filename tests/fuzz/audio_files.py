"""Audio of other programs in both engines: ``make audio-corpus``, ``python -m tests.fuzz.audio_files``.

Each form of `encoders.FORMS` is made in several lengths, rates and numbers of channels. The engine of the table, PyAV
and the probe must give the same samples, those that a lossless form was given, and the length that the file states.
A few files last an hour.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from storeside.transformers.audio import libav_engine, transcoding
from storeside.transformers.audio.errors import AudioError
from storeside.transformers.audio.facts import AudioFacts
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from tests.benchmarks.measure import bench, machine
from tests.fuzz import encoders
from tests.fuzz.encoders import Form, Samples
from tests.verify import CANNOT_RUN

_LIMITS = Limits()
_OPUS_RATE = 48_000
# Forms of which an hour is made, at the first of their rates.
_HOURS = (
    "ffmpeg wav pcm_s16le", "sox flac flac", "lame mp3 mp3 -V 2", "opusenc ogg opus", "oggenc ogg vorbis",
    "ffmpeg mp4 aac ipod", "sox wav adpcm_ms",
)  # fmt: skip
# Steps of 16 bits by which versions of libav decode a lossy codec differently.
_STEPS = 1
# Blocks of a codec that its encoder adds before and after the audio, if the file does not state them.
_ADDED_BLOCKS = 4
# Samples by which the tone of a lossy form may seem to be shifted, and the fewest that show a shift.
_SHIFT, _LEAST_SHOWN = 2, 4_000
# Bytes from the start in which a header with the samples' size is.
_HEADER_BYTES = 128
# Two engines, and the probe.
_WAYS = 3


@dataclass(frozen=True)
class Case:
    """One file: samples per channel, rate in Hz, and channels."""

    form: Form
    count: int
    rate: int
    channels: int

    def __str__(self) -> str:
        return f"{self.form}, {self.count} samples at {self.rate} Hz, {self.channels} channels"

    @property
    def decoded_rate(self) -> int:
        """The rate of the decoded samples in Hz; Opus has one."""
        return _OPUS_RATE if self.form.codec == "opus" else self.rate


@dataclass
class Found:
    """The results of all files: descriptions of faults, and how often files were refused for which reason."""

    files: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unmade: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    lengths: list[str] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Make one file, decode it in every way, and note what is wrong."""
        given = encoders.sweep(case.count, case.rate, case.channels)
        try:
            content = case.form.make(given, case.rate)
        except ValueError:
            self.unmade[str(case.form)] += 1  # programs refuse some lengths, such as 0
            return
        self.files += 1
        read = _read(case, content)
        if isinstance(read, list):
            self.refused[f"{case.form}: {read[0]}" if case.count else "files of 0 samples"] += 1
            if len(read) < _WAYS:
                self.differences.append(f"{case}: only a part refuses it: {read}")
            return
        ours, pyav, facts = read
        for faults, fault in (
            (self.differences, _difference(case, given, ours, pyav)),
            (self.lengths, _length(case, ours, pyav, facts)),
        ):
            if fault:
                faults.append(f"{case}: {fault}")
                print(f"  WRONG {faults[-1]}", flush=True)


def _read(case: Case, content: bytes) -> tuple[Samples, Samples, AudioFacts] | list[str]:
    """Return the samples of both engines and the facts; or the reasons of those that refuse the file."""
    target = AudioFormat(sample_rate=case.decoded_rate, channels=case.channels)
    made: list[Samples] = []
    reasons: list[str] = []
    for engine in (transcoding.transcode, libav_engine.transcode):
        try:
            result = bytes(engine(content, target, _LIMITS))
        except AudioError as e:
            reasons.append(str(e))
            continue
        start = result.index(b"data", 0, _HEADER_BYTES) + 8
        made.append(np.frombuffer(result, "<i2", offset=start).reshape(-1, case.channels))
    try:
        facts = transcoding.probe(content)
    except AudioError as e:
        reasons.append(str(e))
    return reasons or (made[0], made[1], facts)


def _difference(case: Case, given: Samples, ours: Samples, pyav: Samples) -> str:
    """Return the difference between the engines, or from the samples that were given; "" for none."""
    steps = _steps(ours, pyav)
    if steps > (0 if case.form.is_lossless else _STEPS):
        return f"the engines differ by {steps} steps"
    if case.form.is_lossless and (steps := _steps(ours, given)):
        return f"a lossless file differs by {steps} steps"
    if case.form.is_placed and len(given) >= _LEAST_SHOWN and case.rate == case.decoded_rate:
        shift = _shift(ours[:, 0], given[:, 0])
        return f"shifted by {shift} samples" if abs(shift) > _SHIFT else ""
    return ""


def _steps(one: Samples, other: Samples) -> int:
    common = min(len(one), len(other))
    return int(np.abs(one[:common].astype(int) - other[:common]).max(initial=0))


def _shift(one: Samples, other: Samples) -> int:
    """Return by how many samples `one` is later than `other`, by their first second."""
    count = min(len(one), len(other), 48_000)
    size = 1 << (2 * count - 1).bit_length()
    spectra = [np.fft.rfft(samples[:count].astype(float), size) for samples in (one, other)]
    place = int(np.fft.irfft(spectra[0] * np.conj(spectra[1]), size).argmax())
    return place if place < size // 2 else place - size


def _length(case: Case, ours: Samples, pyav: Samples, facts: AudioFacts) -> str:
    """Return the fault of the length; "" for none."""
    if not len(ours) == len(pyav) == facts.samples:
        return f"engines give {len(ours)} and {len(pyav)}, the probe {facts.samples} samples"
    wanted = round(case.count * case.decoded_rate / case.rate)
    resampled = case.rate != case.decoded_rate  # programs round the length up or down
    if case.form.is_exact and abs(len(ours) - wanted) > resampled:
        return f"{len(ours)} samples instead of {wanted}, complete: {facts.complete}"
    added = _ADDED_BLOCKS * case.form.frame
    if not wanted - added <= len(ours) <= wanted + added:
        return f"{len(ours)} samples, far from {wanted}"
    return ""


def cases() -> Iterator[Case]:
    """Yield all files but those of an hour."""
    for form in encoders.FORMS:
        for rate in form.rates:
            for channels in form.channels if rate == form.rates[-1] else form.channels[:1]:
                for count in (0, 1, form.frame - 1, form.frame + 1, rate):
                    yield Case(form, count, rate, channels)


def hours() -> Iterator[Case]:
    """Yield one file of an hour of the forms in `_HOURS`."""
    for form in encoders.FORMS:
        if str(form) in _HOURS:
            yield Case(form, 3_600 * form.rates[0], form.rates[0], 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode the files and report; return 1 if one of them is wrong, and 2 if programs are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", help="of the files, such as 2/3: the second third; default: all")
    parser.add_argument("--no-hours", action="store_true", help="without the files of an hour")
    parser.add_argument("--only", default="", help="forms whose description contains this text")
    given = parser.parse_args(arguments)
    if missing := encoders.missing():
        print(f"error: programs are missing: apt-get install {' '.join(missing)}", file=sys.stderr)
        return CANNOT_RUN
    print(machine())
    part, parts = map(int, given.part.split("/"))
    chosen = [case for case in (*cases(), *([] if given.no_hours else hours())) if given.only in str(case.form)]
    found = Found()
    for case in chosen[part - 1 :: parts]:
        found.add(case)
    _report(found)
    return 1 if found.differences or found.lengths else 0


def _report(found: Found) -> None:
    for title, counts in (("not made", found.unmade), ("refused", found.refused)):
        for what, many in counts.most_common():
            print(f"  {title} {many}: {what}")
    bench("audio.files", found.files, "files")
    bench("audio.silent_differences", len(found.differences), "files")
    bench("audio.wrong_lengths", len(found.lengths), "files")


if __name__ == "__main__":
    sys.exit(main())
