"""Reads the declared length of an object, in every supported container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from . import boxes, chunks, pages, sphere, streams
from .stated import Bytes, Stated

# The first bytes of a container, and the function that reads it.
_MAGIC: tuple[tuple[bytes, Callable[[Bytes, int], Stated]], ...] = (
    (b"fLaC", streams.flac), (b"OggS", pages.ogg), (b"\x1a\x45\xdf\xa3", boxes.matroska),
    (b"riff\x2e\x91\xcf\x11", chunks.wave64), (b"caff", chunks.caf), (b".snd", chunks.au), (b"DSD ", chunks.dsf),
    (b"FRM8", chunks.dsdiff), (b"wvpk", streams.wavpack), (b"MAC ", streams.ape), (b"TTA1", streams.tta),
    (bytes.fromhex("3026b2758e66cf11"), boxes.asf), (b"NIST_1A\n", sphere.sphere),
    (b"#!AMR\n", streams.amr), (b"#!AMR-WB\n", streams.amr),
)  # fmt: skip
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")


def survey(data: BinaryIO) -> Stated:
    """Read the length that an object declares; libav detects damage that the headers do not show.

    Raises AudioError if the container declares more bytes than exist.
    """
    content = Bytes(data)
    at = streams.after_id3(content)
    if at >= content.size:
        return Stated(content.size)
    found = _survey(content, at)
    return found if found.head else replace(found, start=at)


def _survey(content: Bytes, at: int) -> Stated:
    head = content.at(at, 16)
    for magic, read in _MAGIC:
        if head.startswith(magic):
            return read(content, at)
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return chunks.wave(content, at)
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC", b"8SVX"):
        return chunks.aiff(content, at)
    if head[4:8] in _BOXES:
        return boxes.mp4(content, at)
    return streams.mp3(content, at) or Stated(content.size)
