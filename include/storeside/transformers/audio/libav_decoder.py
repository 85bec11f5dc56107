"""Audio decoding with libav through PyAV.

The input is untrusted: only a fixed list of containers is allowed, libav can open nothing but the given bytes, and
damage that libav would conceal is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import av
from av import logging

from . import engines, errors
from . import libav_filters as filters
from .errors import AudioError
from .input import CONTAINERS, SOURCE_RATES, Input
from .limits import Limits

_STRICT = {"err_detect": "explode+crccheck"}
_THREADS = "NONE"
_HEADERS = "new_extradata"
# 32 bits: the samples to drop at the start of a frame; 32 more: those at its end.
_SKIPPED = "SKIP_SAMPLES"
# The first byte of each frame in a packet of Ogg FLAC; packets of metadata begin with their kind (RFC 9639, 10.1).
_FLAC_FRAME = 0xFF


def reason(error: Exception) -> str:
    """Return libav's text for a failure, in lower case."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class Decoder:
    """Decodes the first audio stream of one object into frames; damage raises `AudioError`.

    `samples` is the number of samples decoded per channel. With `channel`, a number from 0, frames have only this
    channel.
    """

    def __init__(self, data: Input, limits: Limits, channel: int | None = None) -> None:
        self._stated = data.stated
        self._channel = channel
        # Not `channelmap`: it leaves the planes of the other channels in its frames, and PyAV returns them.
        picked = [("pan", f"mono|c0=c{channel}")]
        self._picked = None if channel is None else filters.Filters(lambda _: picked)
        edges = {"advanced_editlist": "0"} if data.stated.keeps_edges else {}
        try:
            self.container: Any = av.open(
                data,
                options={"format_whitelist": CONTAINERS, "protocol_whitelist": "", **edges},
                metadata_errors="ignore",
            )
        except (av.FFmpegError, ValueError) as e:
            raise errors.not_audio(reason(e)) from e
        self.limits = limits
        self.samples = 0
        self._link, self._begun = 0, 0  # the link of an Ogg chain, and the samples before it
        self._early = sum(data.stated.early[:1])  # samples before the start of the link, still to come
        self._form: tuple[Any, ...] | None = None
        try:
            self.stream: Any = self._decodable_stream()
        except AudioError:
            self.container.close()
            raise
        padding = {"flags2": "+skip_manual"} if data.stated.keeps_packets else {}
        self._options = {**_STRICT, **padding, **_usable_layout(self.container)}
        self.stream.codec_context.options = self._options
        # Objects are processed in parallel: threads for one object cost more than they save.
        self.stream.codec_context.thread_type = _THREADS

    def _decodable_stream(self) -> Any:
        if not self.container.streams.audio:
            raise errors.no_stream(self.container.format.name)
        stream = self.container.streams.audio[0]
        if stream.codec_context is None:
            raise errors.unknown_codec(self.container.format.name)
        cell = engines.row(self.container.format.name, stream.codec_context.name)
        if cell.engine == engines.NONE:
            raise errors.not_decodable(stream.codec_context.name, cell.container, cell.reason)
        _require_rate(stream.codec_context.sample_rate)
        if self._stated.seconds and self._stated.seconds > self.limits.seconds:
            raise errors.too_long(self.limits.seconds)
        return stream

    def frames(self, seconds: float = math.inf) -> Iterator[Any]:
        """Decode the stream to its end, or only its first `seconds`; only a complete read detects missing samples."""
        try:
            for decoded in self._decoded():
                if decoded.samples and (frame := self._kept(decoded)):
                    self.samples += frame.samples
                    yield from self._picked.process(frame) if self._picked else (frame,)
                    if self.samples > self.limits.seconds * self.rate:
                        raise errors.too_long(self.limits.seconds)
                    if self.samples >= seconds * self.rate:
                        return
        except av.FFmpegError as e:
            if not self._stated.has_all(self.samples, self.rate):
                raise errors.damaged(self.codec, self.samples, reason(e)) from e
        if not self.samples:
            raise errors.no_samples(self.codec)
        self._stated.require(self.samples, self.rate)

    def _kept(self, frame: Any) -> Any | None:
        """Return the part of a frame without the padding at both ends of the recording; None if there is none."""
        self._require_form(frame)
        first = _delay(frame) if self._stated.keeps_packets else 0
        early = min(self._early, frame.samples - first)
        self._early -= early
        first += early
        kept = self._stated.kept_seconds[self._link : self._link + 1]
        left = round(kept[0] * self.rate) + self._begun - self.samples if kept else math.inf
        count = min(frame.samples - first, left)
        if count == frame.samples:
            return frame
        cut = filters.Filters(lambda _: filters.part(first, first + int(count)))
        return next(chain(cut.process(frame), cut.process(None)), None) if count > 0 else None

    def _decoded(self) -> Iterator[Any]:
        """Yield all frames; each link of a chain of Ogg Vorbis has its own decoder.

        The decoder of libav 62.28 makes noise of a link of Vorbis whose headers differ from those of the first, and
        takes the metadata of a later link of FLAC for a damaged frame.
        """
        decoder = self.stream.codec_context
        in_ogg = self.container.format.name == "ogg"
        for packet in self.container.demux(self.stream):
            if decoder.name == "vorbis" and packet.has_sidedata(_HEADERS):
                yield from decoder.decode(None)
                self._link, self._begun = self._link + 1, self.samples
                self._early = sum(self._stated.early[self._link : self._link + 1])
                decoder = av.CodecContext.create("vorbis", "r")
                decoder.extradata = bytes(packet.get_sidedata(_HEADERS))
                decoder.options, decoder.thread_type = self._options, _THREADS
                packet = av.Packet(bytes(packet))  # noqa: PLW2901 - without the headers
            elif in_ogg and decoder.name == "flac" and packet.size and memoryview(packet)[0] != _FLAC_FRAME:
                continue
            yield from decoder.decode(packet)

    def _require_form(self, frame: Any) -> None:
        form = (frame.sample_rate, frame.format.name, frame.layout.name)
        if self._form is None:
            _require_rate(frame.sample_rate)
            if self._channel is not None and self._channel >= len(frame.layout.channels):
                raise errors.no_channel(self._channel + 1, len(frame.layout.channels))
            self._form = form
        elif form != self._form:
            raise errors.form_changed(self.codec, self.samples)

    @property
    def rate(self) -> int:
        """The sample rate in Hz: of the decoded frames, or, before the first frame, of the header."""
        return int(self._form[0] if self._form else self.stream.codec_context.sample_rate)

    @property
    def channels(self) -> int:
        """The number of channels in the stream."""
        return len(self.stream.codec_context.layout.channels)

    @property
    def codec(self) -> str:
        """The name of libav's decoder."""
        return str(self.stream.codec_context.name)

    def close(self) -> None:
        """Close the container."""
        self.container.close()


def _delay(frame: Any) -> int:
    """Return how many samples at the start of a frame are the delay of the encoder.

    The decoder of Vorbis in libav 62 yields them and marks them; that of libav 59 drops them.
    """
    marks = (bytes(data) for data in frame.side_data if data.type.name == _SKIPPED)
    return next((int.from_bytes(mark[:4], "little") for mark in marks), 0)


# Channels in the order of the bits in libav's mask (libavutil/channel_layout.h).
_CHANNELS = """
    FL FR FC LFE BL BR FLC FRC BC SL SR TC TFL TFC TFR TBL TBC TBR DL DR WL WR SDL SDR LFE2 TSL TSR BFC BFL BFR SSL
    SSR TTL TTR
    """.split()  # noqa: SIM905 - words are easier to read
# Demuxers whose formats, like Apple's, name each channel individually.
_NAME_CHANNELS = ("aiff", "caf", "mov,mp4,m4a,3gp,3g2,mj2")
_LISTED = re.compile(r"^ *+Stream #(?>.*?: Audio: )(?>.*?, (\d+) channels \()([^)\n]*+)\)", re.MULTILINE)


def _usable_layout(container: Any) -> dict[str, str]:
    """Return the option that removes the channel names from a layout with names in a non-standard order.

    PyAV 18.1 frees the list of such names once for each Python object that represents the layout
    (`AudioLayout.__dealloc__`), which corrupts the heap. Therefore this function parses libav's description of the
    stream instead of creating such an object.
    """
    if container.format.name not in _NAME_CHANNELS:
        return {}
    level = logging.get_level()
    logging.set_level(logging.INFO)  # at a lower level the description is empty
    try:
        listed = _LISTED.search(container.dumps_format())
    finally:
        logging.set_level(level)
    if not listed:
        return {}
    names = listed[2].split("+")
    places = [_CHANNELS.index(name) if name in _CHANNELS else -1 for name in names]
    is_usual = -1 not in places and sorted(set(places)) == places
    return {} if is_usual else {"ch_layout": f"{listed[1]} channels"}


def _require_rate(rate: int) -> None:
    if rate not in SOURCE_RATES:
        raise errors.bad_rate(rate)
