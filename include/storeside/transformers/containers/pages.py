"""Ogg: a sequence of pages; the last page of a stream has a mark (RFC 3533)."""

from __future__ import annotations

from dataclasses import dataclass

from storeside.transformers import audio_errors as errors

from .stated import Bytes, Stated, bytes_after, exactly, little

_HEADER = 27
_FIRST, _LAST = 2, 4
_NO_POSITION = 0xFFFFFFFFFFFFFFFF
_MOST_PAGES = 500_000
# Maximum samples of a packet: Opus 120 ms at 48 kHz, Vorbis 8192, FLAC 65535, Speex 640 in 10 frames.
_LONGEST_PACKET = {"opus": 5_760, "vorbis": 8_192, "flac": 65_535, "speex": 6_400}


@dataclass
class _Stream:
    """One logical stream: `start` and `position` are the samples before its first and after its last audio page."""

    codec: str
    rate: int
    skip: int
    start: int | None = None
    position: int = 0
    is_ended: bool = False


@dataclass(frozen=True)
class _Page:
    kind: int
    position: int
    serial: int
    packets: int
    end: int
    body: int

    @classmethod
    def read(cls, content: Bytes, at: int) -> _Page | None:
        head = content.at(at, _HEADER + 255)
        if len(head) < _HEADER or head[:5] != b"OggS\0":
            return None
        lacing = head[_HEADER : _HEADER + head[26]]
        body = at + _HEADER + head[26]
        packets = sum(value < 255 for value in lacing)
        return cls(head[5], little(head[6:14]), little(head[14:18]), packets, body + sum(lacing), body)


def ogg(content: Bytes, at: int) -> Stated:
    """Read all page headers. Raises AudioError if the last audio page is truncated or lacks the end mark."""
    streams: dict[int, _Stream] = {}
    chained = False
    end = at
    for _ in range(_MOST_PAGES):
        page = _Page.read(content, end)
        if page is None:
            break
        if page.end > content.size:
            raise errors.truncated_bytes(content.size - at, page.end - at)
        chained = _take(content, page, streams, chained)
        end = page.end
    else:
        return Stated(content.size)
    rest = content.size - end
    if rest < _HEADER and content.at(end, 5) == b"OggS\0":
        raise errors.truncated_bytes(rest, _HEADER)
    if rest and _goes_on(content, end + 1):
        return Stated(content.size)  # damage in the middle; libav continues at the next page
    sound = list(streams.values())
    if not sound:
        return Stated(content.size)
    if not sound[0].is_ended:
        raise errors.no_last_page(sound[0].codec)
    ignored = bytes_after(rest, "last page")
    if chained or len(sound) > 1:
        return Stated(end, ignored, "yes")
    return _of_one(sound[0], end, ignored)


def _take(content: Bytes, page: _Page, streams: dict[int, _Stream], chained: bool) -> bool:
    if page.kind & _FIRST:
        stream = _opened(content.at(page.body, 64))
        chained = chained or any(one.is_ended for one in streams.values())
        if stream:
            if chained:  # only the last link of a chain counts
                streams.clear()
            streams[page.serial] = stream
        return chained
    known = streams.get(page.serial)
    if known:
        if page.position not in (0, _NO_POSITION):
            if known.start is None:
                long = page.packets * _LONGEST_PACKET[known.codec]
                known.start = 0 if page.position <= long else -1
            known.position = page.position
        known.is_ended = known.is_ended or bool(page.kind & _LAST)
    return chained


def _opened(head: bytes) -> _Stream | None:
    """Return the stream that starts with this packet; None if it is not audio."""
    if head[:8] == b"OpusHead":
        return _Stream("opus", 48_000, little(head[10:12]))
    if head[:7] == b"\x01vorbis":
        return _Stream("vorbis", little(head[12:16]), 0)
    if head[:5] == b"\x7fFLAC":
        return _Stream("flac", int.from_bytes(head[27:30], "big") >> 4, 0)
    if head[:8] == b"Speex   ":
        return _Stream("speex", little(head[36:40]), 0)
    return None


def _of_one(stream: _Stream, end: int, ignored: str) -> Stated:
    if stream.start != 0 or not stream.rate or stream.position >= 1 << 63:
        return Stated(end, ignored, "yes")
    samples = stream.position - stream.skip
    if samples <= 0:
        return Stated(end, ignored, "yes")
    return exactly(end, ignored, samples, stream.rate, _LONGEST_PACKET[stream.codec])


def _goes_on(content: Bytes, at: int) -> bool:
    """Return whether another page starts within the next 128 KiB, more than the maximum size of a page."""
    return b"OggS\0" in content.at(at, 128 << 10)
