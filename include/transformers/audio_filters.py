"""libav's filters on audio frames, through PyAV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av
import av.filter

from .formats import LAYOUTS, AudioFormat

Filter = tuple[str, str]  # name and arguments


class Filters:
    """A chain of filters for the frames of one recording, which all have the same form.

    Frames come out with `frame_size` samples each where an encoder insists on that. Time begins at 0 and has no gaps,
    whatever the recording's own timestamps are, as in a WAV file that the ffmpeg command writes.
    """

    def __init__(self, filters: Sequence[Filter], frame_size: int | None = None) -> None:
        self._filters = list(filters)
        self._frame_size = frame_size
        self._graph: Any = None
        self._started = False
        self._time_base = Fraction(1)
        self._samples = 0

    def process(self, frame: Any | None) -> Iterator[Any]:
        """Yield what comes out for one more frame, or with None what is left at the end."""
        if frame is not None:
            if not self._started:
                self._start(frame)
            frame.time_base = self._time_base
            frame.pts = self._samples
            self._samples += frame.samples
        if self._graph is None:
            if frame is not None:
                yield frame
            return
        with suppress(av.EOFError):  # a part was cut out, and this comes behind it
            self._graph.push(frame)
        while True:
            try:
                made = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            yield made

    def _start(self, first: Any) -> None:
        self._started = True
        self._time_base = Fraction(1, first.sample_rate)
        as_it_is = [_aformat(first.format.name, first.sample_rate, first.layout.name)]
        if self._filters != as_it_is or self._frame_size:  # a graph costs as much as decoding a few seconds
            self._graph = self._configured(first)

    def _configured(self, first: Any) -> Any:
        graph = av.filter.Graph()
        graph.threads = 1  # objects are the parallelism
        source = graph.add_abuffer(
            sample_rate=first.sample_rate,
            format=first.format.name,
            layout=first.layout.name,
            time_base=self._time_base,
        )
        added = [graph.add(name, arguments) for name, arguments in self._filters]
        graph.link_nodes(source, *added, graph.add("abuffersink")).configure()
        if self._frame_size:
            graph.set_audio_frame_size(self._frame_size)
        return graph


def segment(target: AudioFormat) -> list[Filter]:
    """Return the filters that cut a target's segment out of the recording."""
    if not target.start_seconds and target.duration_seconds is None:
        return []
    duration = "" if target.duration_seconds is None else f":duration={target.duration_seconds:f}"
    return [("atrim", f"start={target.start_seconds:f}{duration}"), *_FROM_0]


def part(start: int, end: int) -> list[Filter]:
    """Return the filters that keep the samples from `start` to before `end`."""
    return [("atrim", f"start_sample={start}:end_sample={end}"), *_FROM_0]


def gain(decibels: float) -> list[Filter]:
    """Return the filters that make it louder."""
    return [("volume", f"{decibels:f}dB:precision=float")]


def form(target: AudioFormat, sample_format: str) -> list[Filter]:
    """Return the filters that resample and mix for a target."""
    return [_aformat(sample_format, target.sample_rate, LAYOUTS[target.channels])]


def _aformat(sample_format: str, rate: int, layout: str) -> Filter:
    return "aformat", f"sample_fmts={sample_format}:sample_rates={rate}:channel_layouts={layout}"


_FROM_0: list[Filter] = [("asetpts", "PTS-STARTPTS")]
