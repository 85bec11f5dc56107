"""Ogg: a sequence of pages with numbers and checksums; the last page of a stream has a mark (RFC 3533)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

from storeside.transformers.audio import errors

from . import packets
from .stated import CHAIN, EARLY, Buffered, Bytes, Stated, big, bytes_after, exactly, little

_HEADER = 27
_MAGIC = b"OggS\0"
_CHECKSUM = slice(22, 26)
_CONTINUED, _FIRST, _LAST = 1, 2, 4
_NO_POSITION = 0xFFFFFFFFFFFFFFFF
_SIGN = 1 << 63
# More pages than 12 hours have with one packet of 20 ms each, and pages with a wrong checksum.
_MOST_PAGES, _MOST_BROKEN = 3_000_000, 4_096
_AHEAD = 256 << 10
# Maximum samples of a packet: Opus 120 ms at 48 kHz, Vorbis 8192, Speex 640 in 10 frames. FLAC states its own.
_LONGEST_PACKET = {"opus": 5_760, "vorbis": 8_192, "speex": 6_400}
# Packets of headers before the audio, which begins on another page.
_HEADERS = {"opus": 2, "vorbis": 3}
# Ogg's CRC-32 takes the bits of a byte in the other order than zlib's, and inverts nothing.
_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


@dataclass(frozen=True)
class _Page:
    kind: int
    position: int
    serial: int
    number: int
    lacing: bytes
    start: int
    end: int
    body: int

    @property
    def packets(self) -> int:
        """The number of packets that end on the page."""
        return len(self.lacing) - self.lacing.count(255)

    def beginnings(self, content: Buffered) -> list[bytes]:
        """Return the first two bytes of the packets that begin on the page; a packet may end on a later one."""
        found, at, begins = [], self.body, not self.kind & _CONTINUED
        for size in self.lacing:
            if begins:
                found.append(content.at(at, min(size, 2)))
            at, begins = at + size, size < 255
        return found

    @classmethod
    def read(cls, content: Buffered, at: int) -> _Page | None:
        head = content.at(at, _HEADER + 255)
        if len(head) < _HEADER or head[:5] != _MAGIC:
            return None
        lacing = head[_HEADER : _HEADER + head[26]]
        body = at + _HEADER + head[26]
        serial, number = little(head[14:18]), little(head[18:22])
        return cls(head[5], little(head[6:14]), serial, number, lacing, at, body + sum(lacing), body)

    def is_whole(self, content: Buffered) -> bool:
        """Return whether the page's checksum is right; libav drops a page whose checksum is wrong."""
        page = content.at(self.start, self.end - self.start)
        checked = page[: _CHECKSUM.start] + bytes(4) + page[_CHECKSUM.stop :]
        found = zlib.crc32(checked.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
        return found == big(page[_CHECKSUM].translate(_REVERSED))


@dataclass
class _Beginning:
    """The headers of a stream, and its packets up to the first page that has a position.

    `identification` is the beginning of the first header, and `longest` the maximum number of samples in a packet.
    `headers` counts the headers so far, `setup` has their last bytes, and `heard` the samples of each packet. The
    position `is_wrong` if it begins earlier than within the second packet.
    """

    codec: str
    identification: bytes
    longest: int
    headers: int = 0
    setup: bytes = b""
    samples: packets.Samples | None = None
    heard: list[int] = field(default_factory=list)
    is_wrong: bool = False

    def take(self, content: Buffered, page: _Page) -> None:
        """Add a page."""
        if self.codec not in _HEADERS:
            return
        if self.headers < _HEADERS[self.codec]:
            self.headers += page.packets
            last = content.at(max(page.body, page.end - packets.MODES), min(page.end - page.body, packets.MODES))
            self.setup = (self.setup + last)[-packets.MODES :]
            return
        if not self.heard:
            is_vorbis = self.codec == "vorbis"
            self.samples = packets.vorbis(self.identification, self.setup) if is_vorbis else packets.opus
        if self.samples:
            self.heard += map(self.samples, page.beginnings(content))

    def start(self, page: _Page) -> int | None:
        """Return the position of the first sample, by the first page that has one; None if it is unknown."""
        if not self.samples:
            return 0 if page.position <= page.packets * self.longest else None
        # the last packet may end on a later page
        heard = self.heard if page.lacing[-1:] != b"\xff" else self.heard[:-1]
        start = (page.position ^ _SIGN) - _SIGN - sum(heard)
        if start >= 0 or page.kind & _LAST:  # the end may be within the last packet
            return max(start, 0)
        if self.codec == "opus":
            return 0  # RFC 7845, section 4.5, allows none before it; libav reads the stream
        self.is_wrong = -start > sum(heard[:2])
        return None if self.is_wrong else start


@dataclass
class _Stream:
    """One logical stream: `start` and `position` are those of its first sample and after its last audio page.

    A stream that was cut out of another one may start anywhere. Before position 0 are samples that decoding yields,
    but that are no part of the recording: those of a packet in which the cut is. `start` is None if it is unknown. A
    stream `is_placed` once an audio page has a position. `number` is the number of its last page, and `end` the
    offset after that page.
    """

    rate: int
    skip: int
    beginning: _Beginning
    number: int = 0
    end: int = 0
    start: int | None = None
    position: int = 0
    is_ended: bool = False
    is_placed: bool = False

    @property
    def codec(self) -> str:
        return self.beginning.codec

    @property
    def longest(self) -> int:
        return self.beginning.longest

    @property
    def samples(self) -> int:
        """The samples per channel that the positions of the pages state; 0 if they state none."""
        if self.start is None or not self.rate or self.position >= _SIGN:
            return 0
        return max(self.position - max(self.start, 0) - self.skip, 0)

    @property
    def early(self) -> int:
        """The samples per channel before position 0."""
        return max(-(self.start or 0), 0)

    @property
    def is_empty(self) -> bool:
        """Whether the stream ends before its first sample; its packets have only padding."""
        return self.is_ended and not self.is_placed and self.rate > 0

    def take(self, content: Buffered, page: _Page) -> None:
        """Add a page, which follows the one before."""
        self.number, self.end = page.number, page.end
        if not self.is_placed:
            self.beginning.take(content, page)
        if page.position not in (0, _NO_POSITION):
            if not self.is_placed:
                self.start = self.beginning.start(page)
                self.is_placed = True
            self.position = page.position
        self.is_ended = self.is_ended or bool(page.kind & _LAST)


@dataclass
class _Walk:
    """The audio streams in the pages so far; of a chain, those of its last link, and the `earlier` ones.

    `gaps` is the number of places at which pages are missing although no byte is damaged, as in a recording of a live
    stream that lost some.
    """

    streams: dict[int, _Stream] = field(default_factory=dict)
    earlier: list[_Stream] = field(default_factory=list)
    is_chained: bool = False
    gaps: int = 0

    def take(self, content: Buffered, page: _Page, broken_at: int) -> None:
        """Add a page; the last bytes before it that are no page are at `broken_at`, or -1.

        Raises AudioError if pages of its stream are missing at these bytes.
        """
        if page.kind & _FIRST:
            self._open(content, page, broken_at)
            return
        known = self.streams.get(page.serial)
        if not known:
            return
        if page.number != (known.number + 1) & 0xFFFFFFFF:
            if broken_at >= known.end:
                raise errors.damaged_at("page", broken_at)
            # The recording of a live stream has the stream's headers, and then the pages since the recording began.
            self.gaps += known.is_placed
        known.take(content, page)

    def _open(self, content: Buffered, page: _Page, broken_at: int) -> None:
        self.is_chained = self.is_chained or any(one.is_ended for one in self.streams.values())
        stream = _opened(content.at(page.body, 64))
        if not stream:
            return
        if any(broken_at >= one.end and not one.is_ended for one in self.streams.values()):
            raise errors.damaged_at("page", broken_at)
        if self.is_chained:  # only the last link of a chain counts
            self.earlier += self.streams.values()
            self.streams.clear()
        stream.take(content, page)
        self.streams[page.serial] = stream


def ogg(content: Bytes, at: int) -> Stated:
    """Read all pages. Raises AudioError if audio pages are damaged, or the last one is cut or lacks its mark."""
    data, walk = Buffered(content, _AHEAD), _Walk()
    place = end = at
    broken_at, broken = -1, 0
    for _ in range(_MOST_PAGES):
        page = _Page.read(data, place)
        if page and page.end > content.size and place == end:
            raise errors.truncated_bytes(content.size - at, page.end - at)
        if page and page.end <= content.size and page.is_whole(data):
            walk.take(data, page, broken_at)
            place = end = page.end
            continue
        broken += page is not None
        if broken > _MOST_BROKEN:
            raise errors.damaged_at("page", end)
        # libav, too, continues at the next page.
        broken_at, place = end, data.find(_MAGIC, place + 1)
        if place < 0:
            break
    else:
        return Stated(content.size)
    rest = content.size - end
    if rest < _HEADER and content.at(end, 5) == _MAGIC:
        raise errors.truncated_bytes(rest, _HEADER)
    sound = list(walk.streams.values())
    if not sound:
        return Stated(content.size)
    if not sound[0].is_ended:
        raise errors.no_last_page(sound[0].codec)
    ignored = bytes_after(rest, "last page")
    if walk.is_chained:
        stated = _of_chain([*walk.earlier, *sound], end, ignored)
    else:
        stated = Stated(end, ignored, "yes") if len(sound) > 1 else _of_one(sound[0], end, ignored)
    return replace(stated, complete="unknown") if walk.gaps else stated


def _opened(head: bytes) -> _Stream | None:
    """Return the stream that starts with this packet; None if it is not audio."""
    if head[:8] == b"OpusHead":
        return _Stream(48_000, little(head[10:12]), _Beginning("opus", head, _LONGEST_PACKET["opus"]))
    if head[:7] == b"\x01vorbis":
        return _Stream(little(head[12:16]), 0, _Beginning("vorbis", head, _LONGEST_PACKET["vorbis"]))
    if head[:5] == b"\x7fFLAC":
        return _Stream(big(head[27:30]) >> 4, 0, _Beginning("flac", head, big(head[19:21])))
    if head[:8] == b"Speex   ":
        return _Stream(little(head[36:40]), 0, _Beginning("speex", head, _LONGEST_PACKET["speex"]))
    return None


def _of_one(stream: _Stream, end: int, ignored: str) -> Stated:
    samples = stream.samples
    if not samples and not stream.is_empty:
        return Stated(end, ignored, "unknown" if stream.beginning.is_wrong else "yes")
    stated = exactly(end, ignored, samples, stream.rate, stream.longest)
    if stream.codec != "vorbis":
        return stated
    # libav 59 to 62 cuts too much or nothing if the first page of a stream's audio is its last one.
    stated = replace(stated, complete="yes", keeps_packets=True, kept_seconds=(samples / stream.rate,))
    return replace(stated, early=(stream.early,), form=EARLY) if stream.early else stated


def _of_chain(links: list[_Stream], end: int, ignored: str) -> Stated:
    """Return the end of a chain; of Vorbis, also what each link keeps."""
    stated = Stated(end, ignored, "yes", form=CHAIN)
    if {link.codec for link in links} != {"vorbis"} or not all(link.samples or link.is_empty for link in links):
        return stated
    kept = tuple(link.samples / link.rate for link in links)
    return replace(
        stated, seconds=sum(kept), is_exact=True, slack=links[0].longest, keeps_packets=True, kept_seconds=kept,
        early=tuple(link.early for link in links),
    )  # fmt: skip
