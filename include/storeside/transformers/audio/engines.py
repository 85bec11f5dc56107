"""Which engine decodes which container and codec: the only place that decides it.

The native engine is faster, and decodes what the versions of libav decode alike, so that the facts of a probe, which
PyAV measures, fit its samples. PyAV, whose libav is the same on every machine, decodes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .containers.stated import CHAIN, DELAY, EARLY, FRAGMENTS

NATIVE, PYAV, NONE = "native", "PyAV", "none"


@dataclass(frozen=True)
class Row:
    """Cells of the table: all `codecs`, by libav's names, in one container, with the engine that decodes them.

    `demuxers` are the first words of libav's names of the container; () stands for all containers, and () as `codecs`
    for all codecs. A row may be only for recordings of one `form` (see `Stated`), one `rate` in Hz, or one `tag` of
    MP4, which is its name of a codec. No engine decodes the codecs of a row with `NONE`.
    """

    container: str
    demuxers: tuple[str, ...]
    codecs: tuple[str, ...]
    engine: str
    reason: str
    form: str = ""
    rate: int = 0
    tag: str = ""

    @property
    def is_special(self) -> bool:
        """Whether the row is not for all recordings in its container and codec."""
        return bool(self.form or self.rate or self.tag)


_INTEGERS = ("pcm_s16le", "pcm_s24le", "pcm_s32le")
_BIG = ("pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be")
_FLOATS = ("pcm_f32le", "pcm_f64le")
_COMPANDED = ("pcm_mulaw", "pcm_alaw")
_SAME = "lossless: the same samples"
_ALIKE = "lossy: the same length, and at most 1 step of 16 bits"
_FIXED = "integer arithmetic: the same samples"

# The first row that fits counts, so those for special recordings come first.
TABLE: tuple[Row, ...] = (
    Row("Ogg", ("ogg",), (), PYAV, "libav before 8 shifts or refuses the links after the first", form=CHAIN),
    Row("Ogg", ("ogg",), ("vorbis",), PYAV, "libav plays the samples before the start", form=EARLY),
    Row("MP4", ("mov",), (), PYAV, "libav before 6 plays the delay of the encoder", form=FRAGMENTS),
    Row("CAF", ("caf",), (), PYAV, "libav before 6 plays the delay of the encoder", form=DELAY),
    Row("all", (), ("mp3",), PYAV, "libav before 8 distorts it", rate=24_000),
    Row("MP4", ("mov",), (), PYAV, "PCM of MPEG: libav before 8 reads another size", tag="ipcm"),
    Row("MP4", ("mov",), (), PYAV, "PCM of MPEG: libav before 8 reads another size", tag="fpcm"),
    Row("WAV, W64", ("wav", "w64"), ("adpcm_ima_wav",), PYAV, "the versions differ by up to 61 steps of 16 bits"),
    Row(
        "Matroska", ("matroska",), ("aac", "mp3", "mp2", "ac3", "opus"), PYAV, "libav before 8 ignores a stated delay"
    ),
    Row("Matroska", ("matroska",), ("tta",), NONE, "libav takes the length from a duration in milliseconds"),
    Row("WAV, W64", ("wav", "w64"), (*_INTEGERS, *_FLOATS), NATIVE, _SAME),
    Row("WAV", ("wav",), ("pcm_s64le",), NATIVE, _SAME),
    Row("WAV, W64", ("wav", "w64"), ("pcm_u8", *_COMPANDED, "adpcm_ms"), NATIVE, _FIXED),
    Row("WAV", ("wav",), ("adpcm_yamaha", "adpcm_swf", "g722", "g726", "gsm_ms"), NATIVE, _FIXED),
    Row("WAV", ("wav",), ("mp3",), NATIVE, _ALIKE),
    Row("AIFF", ("aiff",), (*_BIG, "pcm_s16le", "pcm_s8"), NATIVE, _SAME),
    Row("AIFF", ("aiff",), (*_COMPANDED, "adpcm_ima_qt"), NATIVE, _FIXED),
    Row("CAF", ("caf",), (*_INTEGERS, *_FLOATS, *_BIG, "pcm_s8", "alac"), NATIVE, _SAME),
    Row("CAF", ("caf",), (*_COMPANDED, "adpcm_ima_qt"), NATIVE, _FIXED),
    Row("CAF", ("caf",), ("opus",), NATIVE, _ALIKE),
    Row("AU", ("au",), (*_BIG, "pcm_s8"), NATIVE, _SAME),
    Row("AU", ("au",), _COMPANDED, NATIVE, _FIXED),
    Row("FLAC", ("flac",), ("flac",), NATIVE, _SAME),
    Row("WavPack", ("wv",), ("wavpack",), NATIVE, _SAME),
    Row("TTA", ("tta",), ("tta",), NATIVE, _SAME),
    Row("Ogg", ("ogg",), ("flac",), NATIVE, _SAME),
    Row("Ogg", ("ogg",), ("opus", "vorbis", "speex"), NATIVE, _ALIKE),
    Row("MP3", ("mp3",), ("mp3", "mp2"), NATIVE, _ALIKE),
    Row("AAC", ("aac",), ("aac",), NATIVE, _ALIKE),
    Row("AC-3", ("ac3", "eac3"), ("ac3", "eac3"), NATIVE, _ALIKE),
    Row("AMR", ("amr",), ("amrnb",), NATIVE, _ALIKE),
    Row("WMA", ("asf",), ("wmav1", "wmav2"), NATIVE, _ALIKE),
    Row("MP4", ("mov",), (*_INTEGERS, *_FLOATS, *_BIG, "pcm_s8", "pcm_u8", "alac", "flac"), NATIVE, _SAME),
    Row("MP4", ("mov",), (*_COMPANDED, "adpcm_ima_qt"), NATIVE, _FIXED),
    Row("MP4", ("mov",), ("aac", "mp3", "ac3", "opus", "amrnb"), NATIVE, _ALIKE),
    Row(
        "Matroska",
        ("matroska",),
        (*_INTEGERS, "pcm_f32le", "pcm_s16be", "pcm_s24be", "pcm_u8", "flac", "alac", "wavpack"),
        NATIVE,
        _SAME,
    ),
    Row("Matroska", ("matroska",), ("vorbis",), NATIVE, _ALIKE),
    Row("all others", (), (), PYAV, "no test compares the versions of libav"),
)


def row(demuxer: str, codec: str, *, form: str = "", rate: int = 0, tag: str = "") -> Row:
    """Return the row of a recording, by libav's names of its container and of its decoder."""
    first = demuxer.partition(",")[0]
    name = codec.removesuffix("float")
    return next(
        row
        for row in TABLE
        if (not row.demuxers or first in row.demuxers)
        and (not row.codecs or name in row.codecs)
        and (not row.is_special or (row.form, row.rate, row.tag) in ((form, 0, ""), ("", rate, ""), ("", 0, tag)))
    )


@cache
def native_cells() -> tuple[bytes, bytes]:
    """Return the table for the native library: the cells that it decodes, and rates and tags that PyAV decodes.

    A cell is "demuxer:codec"; the others are "codec@rate" and "demuxer:tag". Commas divide them. Recordings of a
    `form` do not reach the library.
    """
    cells = sorted(
        f"{demuxer}:{codec}"
        for row in TABLE
        if row.engine == NATIVE
        for demuxer in row.demuxers
        for codec in row.codecs
    )
    rates = [f"{codec}@{row.rate}" for row in TABLE if row.rate for codec in row.codecs]
    tags = [f"{demuxer}:{row.tag}" for row in TABLE if row.tag for demuxer in row.demuxers]
    return ",".join(cells).encode(), ",".join(rates + tags).encode()
