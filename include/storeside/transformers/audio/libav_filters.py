"""libav's filters on audio frames, through PyAV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av
import av.filter

from .formats import LAYOUTS, AudioFormat

Filter = tuple[str, str]  # name and arguments


class Filters:
    """A chain of libav filters for the frames of one recording, which all have the same form.

    Output frames have `frame_size` samples if an encoder requires that. Timestamps start at 0 and have no gaps,
    independently of the recording's own timestamps, as in a WAV file that the ffmpeg command writes.

    `filters` returns the chain for a recording's channel layout; see `layout`.
    """

    def __init__(self, filters: Callable[[Any], list[Filter]], frame_size: int | None = None) -> None:
        self._filters = filters
        self._frame_size = frame_size
        self._graph: Any = None
        self._started = False
        self._time_base = Fraction(1)
        self._samples = 0

    def process(self, frame: Any | None) -> Iterator[Any]:
        """Yield the output for one more frame; None flushes the rest at the end."""
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
        with suppress(av.EOFError):  # the frame lies after the end of a segment
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
        filters = self._filters(first.layout)
        as_it_is = [_aformat(first.format.name, first.sample_rate, name(first.layout))]
        if filters != as_it_is or self._frame_size:  # a graph costs as much as decoding a few seconds
            self._graph = self._configured(first, filters)

    def _configured(self, first: Any, filters: list[Filter]) -> Any:
        graph = av.filter.Graph()
        graph.threads = 1  # objects are processed in parallel
        source = graph.add_abuffer(
            sample_rate=first.sample_rate,
            format=first.format.name,
            layout=name(first.layout),
            time_base=self._time_base,
        )
        added = [graph.add(kind, arguments) for kind, arguments in filters]
        graph.link_nodes(source, *added, graph.add("abuffersink")).configure()
        if self._frame_size:
            graph.set_audio_frame_size(self._frame_size)
        return graph


def segment(target: AudioFormat) -> list[Filter]:
    """Return the filters that cut the target's segment out of the recording."""
    if not target.start_seconds and target.duration_seconds is None:
        return []
    duration = "" if target.duration_seconds is None else f":duration={target.duration_seconds:f}"
    return [("atrim", f"start={target.start_seconds:f}{duration}"), *_FROM_0]


def part(start: int, end: int) -> list[Filter]:
    """Return the filters that keep the samples from `start` up to, but without, `end`."""
    return [("atrim", f"start_sample={start}:end_sample={end}"), *_FROM_0]


def gain(decibels: float) -> list[Filter]:
    """Return the filters that apply a gain in decibels."""
    return [("volume", f"{decibels:f}dB:precision=float")]


def form(target: AudioFormat, sample_format: str, found: Any) -> list[Filter]:
    """Return the filters that resample and mix a recording with the layout `found` for a target.

    If the number of channels stays the same, the samples of each channel stay: a different target layout changes only
    the names of the channels. libswresample mixes to integers so that no sum exceeds full scale, and to floating
    point without such a limit; the filters set this limit, so the level does not depend on the sample format.
    """
    made = layout(target, found)
    many = len(found.channels)
    known = made if many == target.channels else _guessed(found)
    renamed: list[Filter] = []
    if name(found) != known:
        order = "|".join(map(str, range(many)))
        renamed = [("channelmap", f"map={order}:channel_layout={known}")]
    mixed: list[Filter] = []
    if many != target.channels and sample_format.startswith("flt"):
        options = f"out_sample_fmt={sample_format}:out_chlayout={made}:rematrix_maxval=1"
        mixed = [("aresample", f"{target.sample_rate}:{options}")]
    return [*renamed, *mixed, _aformat(sample_format, target.sample_rate, made)]


def _guessed(found: Any) -> str:
    """Return the layout of a recording; without channel names, the default that the ffmpeg command assumes as well.

    Raises ValueError for more than 8 unnamed channels, because versions of libav assume different layouts.
    """
    if not _UNNAMED.fullmatch(name(found)):
        return name(found)
    many = len(found.channels)
    if many not in LAYOUTS:
        raise ValueError("invalid argument")
    return LAYOUTS[many]


def exactly(target: AudioFormat, sample_format: str, found: Any) -> list[Filter]:
    """Return the filters that convert the result of `form` to another sample format."""
    return [_aformat(sample_format, target.sample_rate, layout(target, found))]


def layout(target: AudioFormat, found: Any) -> str:
    """Return the layout of the result for a target and a recording with the layout `found`.

    The result keeps the recording's layout if the number of channels is the same and more than two, and if the
    container can store the layout. Otherwise it has the default layout.
    """
    same = len(found.channels) == target.channels > 2 and target.container in _ANY_LAYOUT
    return name(found) if same and _NAMED.fullmatch(name(found)) else LAYOUTS[target.channels]


def name(found: Any) -> str:
    """Return the name of a layout in the syntax of filters, such as ``quad`` or ``FL+FR+LFE+TC``."""
    said = str(found.name)
    listed = re.fullmatch(r"\d+ channels \((.+)\)", said)
    return listed[1] if listed else said


# Containers whose headers name the channels. Encoders of other containers require the default layouts.
_ANY_LAYOUT = ("wav", "flac")
_UNNAMED = re.compile(r"\d+ channels")
# Layouts that name each channel, unlike "4 channels", "ambisonic 1" or "FL@left".
_NAMED = re.compile(r"([0-9.]+|[a-z]+)(\([a-z-]+\))?|[A-Z]+([0-9][A-Z]*)?(\+[A-Z]+([0-9][A-Z]*)?)*")


def _aformat(sample_format: str, rate: int, layout: str) -> Filter:
    return "aformat", f"sample_fmts={sample_format}:sample_rates={rate}:channel_layouts={layout}"


_FROM_0: list[Filter] = [("asetpts", "PTS-STARTPTS")]
