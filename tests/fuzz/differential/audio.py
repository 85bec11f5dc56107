"""Our audio engines, native and PyAV, against the ffmpeg command."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storeside.transformers.audio import libav_engine, transcoding
from storeside.transformers.audio.engines import NATIVE, row
from storeside.transformers.audio.errors import AudioError
from storeside.transformers.audio.facts import stated_of
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.transformer import Data
from tests.fuzz.differential import audio_corpus as corpus
from tests.fuzz.differential import audio_reference as reference
from tests.fuzz.differential.audio_corpus import Recording
from tests.fuzz.differential.outcome import Outcome

Engine = Callable[[bytes, AudioFormat, Limits], Data]
ENGINES: dict[str, Engine] = {"native": transcoding.transcode, "PyAV": libav_engine.transcode}
_BATCH = 64
# ffmpeg reads one refused recording of this number, because each may need a separate process.
_REFUSED_EVERY = 20
# Steps of 16 bits by which decoders and resamplers of another version of libav differ.
_STEPS = 8
_ADPCM_STEPS = 64
# The fewest and the most samples that ffmpeg returns beyond the stated length, and resamples, too: it does not cut
# the padding in the last two frames of AAC, and cuts Vorbis of one page at another place within two blocks.
_BEYOND = {"aac": (0, 2 * 1024), "libvorbis": (-2 * 8192, 2 * 8192)}
# Samples at the end that a resampler calculates from those behind them.
_TAIL = 200
# The first words of libav's names of demuxers that differ from those of the muxers.
_DEMUXERS = {"webm": "matroska", "ipod": "mov", "mp4": "mov", "adts": "aac"}
_LIMITS = Limits(seconds=600)
_NUMBERS = re.compile(r"\d+")
# Titles of sections in docs/differences.md.
BEHIND = "Bytes before and after a recording are not read"
PADDING = "AAC in MP4 has the length that the boxes state"
POSITION = "Vorbis in Ogg has the length that the pages state"
VERSIONS = "Damage that one version of libav finds and another does not"


@dataclass
class Tried:
    """The outcome of one recording: samples of an engine, or the reason of its refusal."""

    recording: Recording
    target: AudioFormat
    ours: dict[str, bytes | str]

    @property
    def accepted(self) -> bool:
        """Whether an engine took it."""
        return any(isinstance(made, bytes) for made in self.ours.values())

    def request(self) -> reference.Request:
        """Return the format that ffmpeg must produce."""
        base, target = self.recording.base, self.target
        mixes = None if self.recording.kind == "flipped" else base.channels != target.channels
        return reference.Request(self.recording.content, target.sample_rate, target.channels, mixes)


def compare(files: int, seed: int, engines: dict[str, Engine] = ENGINES) -> Outcome:
    """Compare recordings 0 to `files` of a seed."""
    outcome = Outcome("audio", files)
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        for start in range(0, files, _BATCH):
            _batch(outcome, Path(folder), seed, range(start, min(files, start + _BATCH)), engines)
    return outcome


def _batch(outcome: Outcome, folder: Path, seed: int, numbers: range, engines: dict[str, Engine]) -> None:
    tried = [_try(seed, number, engines) for number in numbers]
    accepted = [one for one in tried if one.accepted]
    refused = [one for one in tried if not one.accepted]
    shown = [one for one in refused if one.recording.number % _REFUSED_EVERY == 0]
    for one, theirs in zip(accepted, reference.samples(folder, [one.request() for one in accepted]), strict=True):
        _judge(outcome, one, theirs)
    for one, theirs in zip(shown, reference.samples(folder, [one.request() for one in shown]), strict=True):
        if theirs:
            why = next(made for made in one.ours.values() if isinstance(made, str))
            outcome.stricter[f"{one.recording.kind}: {_NUMBERS.sub('N', why)[:90]}"] += 1
    outcome.refused += len(refused)


def _try(seed: int, number: int, engines: dict[str, Engine]) -> Tried:
    recording = corpus.recording(seed, number)
    rng = random.Random(f"target {seed}/{number}")  # noqa: S311
    base = recording.base
    form = rng.choice([(base.rate, min(base.channels, 8))] * 2 + [(16_000, 1), (44_100, 2), (base.rate, 3)])
    target = AudioFormat(sample_rate=form[0], channels=form[1])
    ours = {name: _samples(engine, recording.content, target) for name, engine in engines.items()}
    return Tried(recording, target, ours)


def _samples(engine: Engine, content: bytes, target: AudioFormat) -> bytes | str:
    try:
        made = bytes(engine(content, target, _LIMITS))
    except AudioError as e:
        return str(e)
    return made[made.index(b"data") + 8 :]


def _judge(outcome: Outcome, one: Tried, theirs: bytes | None) -> None:
    wrong = _wrong(one, theirs)
    if wrong.startswith("PyAV") and one.recording.kind == "flipped":
        outcome.intended[VERSIONS] += 1
    elif wrong and _is_beside(one, theirs):
        outcome.intended[BEHIND] += 1
    elif wrong and (title := _of_stated_length(one)) and _has_stated_length(one, theirs):
        outcome.intended[title] += 1
    elif wrong:
        outcome.silent.append(f"{one.recording} to {one.target.sample_rate} Hz {one.target.channels}: {wrong}")
    elif any(isinstance(made, str) for made in one.ours.values()):
        outcome.intended[VERSIONS] += 1
    else:
        outcome.equal += 1


def _wrong(one: Tried, theirs: bytes | None) -> str:
    """Return the fault of the results; "" for none."""
    refusals = {name: made for name, made in one.ours.items() if isinstance(made, str)}
    if refusals and one.recording.kind != "flipped":
        return f"only one engine refuses it: {refusals}"
    for name, made in one.ours.items():
        if isinstance(made, bytes) and (difference := _difference(one, name, made, theirs)):
            return f"{name}: {difference}"
    return _missing(one)


def _difference(one: Tried, engine: str, made: bytes, theirs: bytes | None) -> str:
    if theirs is None:
        return "ffmpeg refuses it"
    if len(made) != len(theirs):
        return f"{len(made)} bytes of samples instead of {len(theirs)}"
    if made == theirs:
        return ""
    steps = int(np.abs(np.frombuffer(made, "<i2").astype(int) - np.frombuffer(theirs, "<i2")).max())
    is_exact = (engine == "native" and _is_native(one.recording.base)) or _is_copied(one)
    most = _ADPCM_STEPS if one.recording.base.encoder.startswith("adpcm") else _STEPS
    return f"samples differ by {steps} steps" if is_exact or steps > most else ""


def _is_native(base: corpus.Base) -> bool:
    """Whether the table of engines leaves recordings of this form to the native library."""
    demuxer = _DEMUXERS.get(base.muxer, base.muxer)
    codec = base.encoder.removeprefix("lib").replace("mp3lame", "mp3")
    return row(demuxer, codec, rate=base.rate).engine == NATIVE


def _is_beside(one: Tried, theirs: bytes | None) -> bool:
    """Whether all engines gave what they give without the bytes that they ignored, and ffmpeg did not."""
    try:
        stated = stated_of(one.recording.content)
    except AudioError:
        return False
    if stated.ignored and one.recording.kind == "flipped":  # a length that was made smaller
        return _is_without(one, one.recording.content[: stated.end])
    if not (stated.ignored or stated.start) or one.recording.kind not in ("trailing", "tagged"):
        return False
    whole = corpus.encoded(one.recording.base)
    return theirs != _samples(transcoding.transcode, whole, one.target) and all(
        made == _samples(ENGINES[name], whole, one.target) for name, made in one.ours.items() if name in ENGINES
    )


def _of_stated_length(one: Tried) -> str:
    """Return the title of the difference if ffmpeg does not cut such recordings at the stated length, else ""."""
    base = one.recording.base
    if base.encoder == "aac" and base.muxer in ("mp4", "mov", "ipod"):
        return PADDING
    return POSITION if (base.encoder, base.muxer) == ("libvorbis", "ogg") else ""


def _has_stated_length(one: Tried, theirs: bytes | None) -> bool:
    """Whether all engines gave the samples that the recording was made from, and ffmpeg more or fewer at the end.

    Flipped bits may change the stated length.
    """
    base, channels = one.recording.base, one.target.channels
    if theirs is None:
        return False
    rate = one.target.sample_rate / base.rate
    fewest, most = (samples * rate for samples in _BEYOND[base.encoder])
    full = np.frombuffer(theirs, "<i2").reshape(-1, channels).astype(int)
    for made in one.ours.values():
        if isinstance(made, str):
            return False
        found = np.frombuffer(made, "<i2").reshape(-1, channels).astype(int)
        is_as_made = abs(len(found) - base.seconds * one.target.sample_rate) <= 2
        if not fewest <= len(full) - len(found) <= most or not (is_as_made or one.recording.kind == "flipped"):
            return False
        certain = max(min(len(found), len(full)) - _TAIL, 0)
        if certain and np.abs(found[:certain] - full[:certain]).max() > _STEPS:
            return False
    return True


def _is_without(one: Tried, content: bytes) -> bool:
    """Whether all engines gave what ffmpeg gives for a part of the recording."""
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        (theirs,) = reference.samples(Path(folder), [replace(one.request(), content=content)])
    return all(
        isinstance(made, bytes) and not _difference(one, name, made, theirs) for name, made in one.ours.items()
    )


def _is_copied(one: Tried) -> bool:
    """Whether samples are neither resampled, nor mixed, nor decoded from a lossy codec."""
    base, target = one.recording.base, one.target
    return (
        one.recording.kind != "flipped"
        and base.is_lossless
        and (base.rate, base.channels) == (target.sample_rate, target.channels)
    )


def _missing(one: Tried) -> str:
    """Return the missing part of a truncated recording whose facts state that it is complete; "" for none."""
    recording = one.recording
    if not recording.kind.startswith("cut") or stated_of(recording.content).complete != "yes":
        return ""
    whole = transcoding.transcode(corpus.encoded(recording.base), one.target, _LIMITS)
    made = next(samples for samples in one.ours.values() if isinstance(samples, bytes))
    left = len(whole) - bytes(whole).index(b"data") - 8 - len(made)
    return f"{left} bytes of samples are missing from a complete recording" if left > 0 else ""
