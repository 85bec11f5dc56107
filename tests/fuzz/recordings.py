"""Inputs of the fuzzing: real recordings in every container, mutated; playlists in disguise; bombs."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from storeside.stack.demo import RECORDINGS

# muxer, encoder, sample rate, layout
FORMS = (
    ("wav", "pcm_s16le", 16_000, "mono"), ("wav", "pcm_f32le", 16_000, "stereo"),
    ("wav", "adpcm_ima_wav", 16_000, "mono"),
    ("wav", "pcm_mulaw", 8_000, "mono"), ("w64", "pcm_s24le", 16_000, "mono"), ("aiff", "pcm_s16be", 16_000, "mono"),
    ("caf", "alac", 16_000, "mono"), ("caf", "pcm_s16be", 16_000, "mono"), ("flac", "flac", 16_000, "mono"),
    ("flac", "flac", 48_000, "7.1"), ("mp3", "libmp3lame", 16_000, "mono"), ("ogg", "libopus", 48_000, "mono"),
    ("ogg", "vorbis", 16_000, "stereo"), ("ogg", "flac", 16_000, "mono"), ("adts", "aac", 16_000, "mono"),
    ("ipod", "aac", 16_000, "stereo"), ("ipod", "alac", 16_000, "mono"), ("mp4", "aac", 16_000, "mono"),
    ("mov", "pcm_s16be", 16_000, "mono"), ("mov", "adpcm_ima_qt", 16_000, "mono"), ("3gp", "aac", 16_000, "mono"),
    ("matroska", "flac", 16_000, "mono"), ("matroska", "ac3", 48_000, "5.1"),
    ("matroska", "pcm_s16le", 16_000, "mono"),
    ("webm", "libopus", 48_000, "stereo"), ("webm", "vorbis", 16_000, "stereo"),
)  # fmt: skip
SECONDS = 0.2
_WORDS = (0, 1, *((1 << bits) - less for bits in (7, 8, 15, 16, 31, 32, 63, 64) for less in (0, 1)))
_TAGS = (
    b"RIFF", b"RF64", b"WAVE", b"fmt ", b"data", b"fLaC", b"OggS", b"moov", b"mdat", b"trak", b"stsd", b"stsz",
    b"stts", b"stco", b"dref", b"url ", b"alis", b"cmov", b"dcom", b"meta", b"ilst", b"covr", b"elst", b"moof",
    b"FORM", b"COMM", b"SSND", b"caff", b"ID3\x04", b"APIC", b"LIST", b"\x1a\x45\xdf\xa3", b"\xff\xfb", b"\xff\xf1",
    b"#EXTM3U\n", b"ffconcat version 1.0\n",
)  # fmt: skip


def seeds() -> dict[str, bytes]:
    """Return a fifth of a second of real speech in every form that can be decoded here."""
    return {f"{form[0]}-{form[1]}-{form[3]}": _encoded(*form) for form in FORMS}


def _encoded(muxer: str, encoder: str, rate: int, layout: str) -> bytes:
    import av

    stream: Any
    out = io.BytesIO()
    source = av.open(str(min(RECORDINGS.glob("*.flac"))))
    with source, av.open(out, "w", format=muxer, options={"fflags": "+bitexact"}) as target:
        stream = target.add_stream(encoder, rate=rate, layout=layout)
        stream.codec_context.options = {"strict": "-2"}
        stream.codec_context.open()
        form = stream.codec_context.format.name
        resampler = av.AudioResampler(form, layout, rate, stream.codec_context.frame_size or None)
        left = round(SECONDS * rate)
        for frame in source.decode(audio=0):
            for made in resampler.resample(frame):
                made.pts, made.time_base = round(SECONDS * rate) - left, Fraction(1, rate)
                target.mux(stream.encode(made))
                left -= made.samples
            if left <= 0:
                break
        target.mux(stream.encode(None))
    return out.getvalue()


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Return one recording with some damage; headers are hit more often than samples."""
    content = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 8))):
        if not content:
            break
        rng.choice(_DAMAGES)(rng, content, corpus)
    return bytes(content[: 4 << 20])


def _at(rng: random.Random, content: bytearray) -> int:
    """Return a position, seldom in the first bytes, because an unrecognised recording reaches no decoder."""
    least = 0 if len(content) < 16 or rng.random() < 0.1 else 12
    return rng.randrange(least, max(least + 1, min(len(content), rng.choice((64, 512, 4_096, len(content))))))


def _anywhere(rng: random.Random, content: bytearray) -> int:
    return rng.randrange(len(content))


def _flip(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    content[_at(rng, content)] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    content[_at(rng, content)] = rng.choice((0, 0xFF, rng.randrange(256)))


def _word(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    """Put an extreme number in: sizes, counts, rates, durations."""
    at, width = _at(rng, content), rng.choice((2, 4, 4, 8))
    value = rng.choice((*_WORDS, len(content), rng.getrandbits(32))) & ((1 << 8 * width) - 1)
    content[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def _cut(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    del content[_anywhere(rng, content) + 1 :]


def _leave_out(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    at = _at(rng, content)
    del content[at : at + rng.choice((1, 4, 16, 1000))]


def _repeat(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    at = _at(rng, content)
    content[at:at] = content[at : at + rng.choice((4, 64, 2000))] * rng.choice((1, 2, 50))


def _splice(rng: random.Random, content: bytearray, corpus: list[bytes]) -> None:
    other = rng.choice(corpus)
    content[_anywhere(rng, content) :] = other[rng.randrange(len(other)) :]


def _tag(rng: random.Random, content: bytearray, _: list[bytes]) -> None:
    """Put the name of a chunk in, over another one's or between two."""
    at, tag = _at(rng, content), rng.choice(_TAGS)
    content[at : at + rng.choice((0, len(tag)))] = tag


_DAMAGES: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip, _flip, _byte, _byte, _word, _word, _word, _cut, _leave_out, _repeat, _splice, _tag,
)  # fmt: skip


# --- what refers to other files


def references(file: Path, tcp: int, udp: int) -> list[str]:
    """Return all forms of references that make libav read a file or a socket."""
    url = f"http://127.0.0.1:{tcp}/canary.wav"
    return [
        str(file), file.name, f"file:{file}", f"file://{file}", f"subfile,,start,0,end,0,,:{file}",
        f"concat:{file}|{file}", f"concatf:{file}", f"async:{file}", f"cache:{file}", f"crypto:{file}", url,
        f"crypto+{url}", url.replace("http", "hls+http", 1), f"icecast://x:y@127.0.0.1:{tcp}/x",
        *(f"{name}://127.0.0.1:{tcp}/x" for name in ("ftp", "gopher", "rtmp", "rtsp", "sftp", "mmsh", "ffrtmphttp")),
        *(f"{name}://127.0.0.1:{tcp}" for name in ("tcp", "tls")),
        *(f"{name}://127.0.0.1:{udp}" for name in ("udp", "rtp", "srt")),
        "pipe:0", "fd:", "/proc/self/environ", "/dev/stdin", f"data:audio/x-mpegurl,{file}",
    ]  # fmt: skip


def playlists(reference: str) -> list[bytes]:
    """Return everything that names other media, each naming `reference`."""
    end = f"#EXTINF:1,\n{reference}\n#EXT-X-ENDLIST\n"
    texts = [
        f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n{end}",
        f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{reference}\n",
        f'#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-KEY:METHOD=AES-128,URI="{reference}"\n{end}',
        f'#EXTM3U\n#EXT-X-MAP:URI="{reference}"\n#EXT-X-TARGETDURATION:1\n{end}',
        f'#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="a",NAME="a",URI="{reference}"\n#EXT-X-STREAM-INF:AUDIO="a"\nx\n',
        f"ffconcat version 1.0\nfile '{reference}'\n",
        f"ffconcat version 1.0\nfile {reference}\nduration 1e300\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
        f'<Representation id="1" mimeType="audio/wav"><BaseURL>{reference}</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>",
        f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "{reference}">]><MPD><BaseURL>&e;</BaseURL></MPD>',
        f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\na=control:{reference}\n"
        "m=audio 5004 RTP/AVP 0\n",
        f"[playlist]\nFile1={reference}\nNumberOfEntries=1\n",
        f"<asx version='3.0'><entry><ref href='{reference}'/></entry></asx>",
        f"[Reference]\nRef1={reference}\n",
        f"<smil><body><audio src='{reference}'/></body></smil>",
        f"RTSPtext\n{reference}\n",
        f"%!PS\n({reference}) run\n",
        f"<svg><image href='{reference}'/></svg>",
    ]
    return [text.encode() for text in texts]


def disguised(rng: random.Random, playlist: bytes, corpus: list[bytes]) -> bytes:
    """Return a playlist that looks like audio: after a tag, in a container, or damaged."""
    size = len(playlist)
    synchsafe = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    ways = [
        playlist,
        b"\xef\xbb\xbf" + playlist,
        b"ID3\x04\x00\x00" + synchsafe + playlist + playlist,
        b"ID3\x04\x00\x00\x00\x00\x00\x00" + playlist,
        b"RIFF" + struct.pack("<I", size + 12) + b"WAVEdata" + struct.pack("<I", size) + playlist,
        struct.pack(">I", size + 8) + b"moov" + playlist,
        struct.pack(">I", 20) + b"ftypqt  \0\0\0\0qt  " + struct.pack(">I", size + 8) + b"rmra" + playlist,
        rng.choice(corpus)[:12] + playlist,
        rng.choice(corpus) + playlist,
        mutated(rng, [playlist]),
    ]
    return rng.choice(ways)


def elsewhere(rng: random.Random, corpus: list[bytes], reference: str) -> bytes:
    """Return a QuickTime file that refers to another file for its samples (`dref`)."""
    content = next(one for one in rng.sample(corpus, len(corpus)) if b"dref" in one)
    name = reference.encode()
    kinds = {
        b"url ": b"\0\0\0\0" + name + b"\0",
        b"alis": b"\0\0\0\0" + _alias(name),
        b"rsrc": b"\0\0\0\0" + _alias(name),
        b"urn ": b"\0\0\0\0" + name + b"\0" + name + b"\0",
    }
    kind = rng.choice(sorted(kinds))
    entry = struct.pack(">I", 8 + len(kinds[kind])) + kind + kinds[kind]
    body = b"dref" + struct.pack(">II", 0, 1) + entry
    path = [b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"]
    return _replaced(content, path, struct.pack(">I", 4 + len(body)) + body)


def _alias(name: bytes) -> bytes:
    """Return an alias record with an absolute path (type 18), as libavformat's mov.c reads one."""
    head = bytearray(150)
    head[0:4] = b"\0\0\0\0"
    head[4:8] = struct.pack(">HH", 150, 2)
    head[50] = min(len(name), 63)
    head[51 : 51 + min(len(name), 63)] = name[:63]
    head[130:134] = struct.pack(">HH", 1, 1)  # folders up and down
    extra = b"".join(struct.pack(">HH", kind, len(name)) + name + b"\0" * (len(name) % 2) for kind in (2, 18))
    return bytes(head) + extra + struct.pack(">HH", 0xFFFF, 0)


def _replaced(content: bytes, path: list[bytes], box: bytes) -> bytes:
    """Return boxes with the box at `path` replaced, and the sizes of its parents corrected."""
    made, at = b"", 0
    while at + 8 <= len(content):
        size, name = struct.unpack_from(">I4s", content, at)
        size = size if size >= 8 else len(content) - at
        inner = content[at : at + size]
        if name == path[0]:
            inner = box if len(path) == 1 else _box(name, _replaced(inner[8:], path[1:], box))
        made, at = made + inner, at + size
    return made + content[at:]


def _box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + name + body


# --- little that becomes much


def bombs() -> dict[str, bytes]:
    """Return small objects that declare, or unpack to, very much."""
    unknown = b"\xff\xff\xff\xff"
    riff = b"RIFF" + unknown + b"WAVEfmt " + struct.pack("<I", 16)
    slow = struct.pack("<HHIIHH", 1, 1, 1_000, 2_000, 2, 16)
    wide = struct.pack("<HHIIHH", 1, 0xFFFF, 768_000, 0xFFFFFFFF, 0xFFFF, 16)
    sizes = b"RF64" + unknown + b"WAVEds64" + struct.pack("<IQQQI", 28, *(1 << 62,) * 3, 0)
    png = _png(30_000, 30_000)
    page = b"OggS\0\0" + bytes(20) + b"\0"
    return {
        "a WAV file that declares 4 GB": riff + slow + b"data\xff\xff\xff\xfe" + bytes(2_000),
        "a WAV file of 65,535 channels": riff + wide + b"data" + unknown + bytes(200_000),
        "an RF64 file of 2^62 bytes": sizes + riff[12:] + slow + b"data" + unknown + bytes(2_000),
        "a FLAC file that declares 2^36 samples": _flac(declared=(1 << 36) - 1),
        "24 hours of silence in FLAC": _flac(declared=0, frames=20_000),
        "a FLAC file with a picture of 900 megapixels": _flac_picture(png),
        "an MP3 file with a picture of 900 megapixels": _id3_picture(png),
        "an MP4 file with 2^32 samples in its tables": _tables(),
        "MP4 boxes in boxes": _nested(),
        "an Ogg file of nothing but headers": page * 40_000,
        "Matroska elements in elements": b"\x1a\x45\xdf\xa3\x80" + (b"\x18\x53\x80\x67\x01" + b"\xff" * 7) * 20_000,
    }


def _png(width: int, height: int) -> bytes:
    """Return a picture of one colour: 112 MB of pixels in 110 kB."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = zlib.compressobj(9)
    packed = b"".join(rows.compress(bytes(width // 8 + 1)) for _ in range(height)) + rows.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def _flac(declared: int, frames: int = 1) -> bytes:
    """Return FLAC of silence: frames of 65,535 samples at 8 kHz in a dozen bytes each."""
    info = struct.pack(">HH", 65_535, 65_535) + bytes(6)
    info += (8_000 << 44 | 0 << 41 | 15 << 36 | declared).to_bytes(8, "big") + bytes(16)
    return b"fLaC\x80\x00\x00\x22" + info + b"".join(map(_silence, range(frames)))


def _silence(number: int) -> bytes:
    head = b"\xff\xf8\x74\x08" + _utf8(number) + struct.pack(">H", 65_534)
    frame = head + bytes([_crc(head, 8, 0x07)]) + b"\x00\x00\x00"  # one constant subframe
    return frame + _crc(frame, 16, 0x8005).to_bytes(2, "big")


def _utf8(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass")


def _crc(content: bytes, bits: int, polynomial: int) -> int:
    value = 0
    for byte in content:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value >> (bits - 1) else value << 1) & ((1 << bits) - 1)
    return value


def _flac_picture(png: bytes) -> bytes:
    picture = (
        struct.pack(">II", 3, 9) + b"image/png" + struct.pack(">IIIIII", 0, 30_000, 30_000, 1, 0, len(png)) + png
    )
    plain = _flac(declared=65_535)
    return plain[:4] + b"\x00" + plain[5:42] + b"\x86" + len(picture).to_bytes(3, "big") + picture + plain[42:]


def _id3_picture(png: bytes) -> bytes:
    frame = b"\0image/png\0\x03\0" + png
    frame = b"APIC" + struct.pack(">I", len(frame)) + b"\0\0" + frame
    synchsafe = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\x00\x00" + synchsafe + frame + _encoded("mp3", "libmp3lame", 16_000, "mono")


def _tables() -> bytes:
    """Return an MP4 file with every count of its sample tables at its greatest."""
    content = bytearray(_encoded("mp4", "aac", 16_000, "mono"))
    for name, offset in ((b"stts", 8), (b"stsz", 12), (b"stsc", 8), (b"stco", 8), (b"mdhd", 20)):
        at = content.find(name)
        content[at + offset : at + offset + 4] = b"\xff\xff\xff\xff"
    return bytes(content)


def _nested() -> bytes:
    boxes = b""
    for _ in range(3_000):
        boxes = _box(b"moov", boxes)
    return _box(b"ftyp", b"isom\0\0\0\0isom") + boxes
