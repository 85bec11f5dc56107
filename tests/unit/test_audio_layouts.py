"""Layouts of samples that libav misreads or does not know, and padding that containers count."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storeside.transformers.audio import libav_engine, transcoding
from storeside.transformers.audio.containers.stated import Stated
from storeside.transformers.audio.ffmpeg import AudioFfmpeg
from storeside.transformers.audio.ffmpeg_settings import FfmpegSettings
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError, probe
from storeside.transformers.settings import Settings
from tests.fuzz.differential import audio_corpus as corpus
from tests.fuzz.differential.audio_corpus import Base
from tests.unit.test_audio import Convert, every_reader, every_transcoder, riff, sine

Read = Callable[[bytes], object]
RATE, COUNT = 16_000, 1_601
STEPS = np.round(sine(COUNT / RATE) * (2**31 - 1)).astype(np.int64) >> 8 << 8
S16 = (STEPS >> 16).astype("<i2")


def packed(width: int, order: str = "<", channels: int = 1) -> bytes:
    """Return the samples as integers of `width` bytes."""
    whole = np.repeat((STEPS >> 32 - 8 * width).astype(f"{order}i4"), channels).view(np.uint8).reshape(-1, 4)
    return (whole[:, :width] if order == "<" else whole[:, 4 - width :]).tobytes()


def aifc(kind: bytes, bits: int, data: bytes, frames: int = COUNT) -> bytes:
    form = struct.pack(">hIhHQ", 1, frames, bits, 16_383 + 13, RATE << 50) + kind + b"\0\0"
    chunks = (
        (b"FVER", struct.pack(">I", 0xA2805140)),
        (b"COMM", form),
        (b"SSND", bytes(8) + data + bytes(len(data) % 2)),
    )
    body = b"AIFC" + b"".join(
        name + struct.pack(">I", len(content) - (name == b"SSND" and len(data) % 2)) + content
        for name, content in chunks
    )
    return b"FORM" + struct.pack(">I", len(body)) + body


def sphere(data: bytes, *fields: str, frames: int = COUNT, channels: int = 1) -> bytes:
    text = (
        f"channel_count -i {channels}",
        f"sample_count -i {frames}",
        f"sample_rate -i {RATE}",
        *fields,
        "end_head",
    )
    return ("NIST_1A\n   1024\n" + "\n".join(text) + "\n").encode().ljust(1_024) + data


def wanted(channels: int = 1) -> np.ndarray:
    return np.repeat(S16, channels)


def made(content: object, channels: int = 1) -> np.ndarray:
    result = bytes(content)  # type: ignore[call-overload]
    return np.frombuffer(result[result.index(b"data") + 8 :], "<i2")


def extensible(width: int, valid: int, channels: int = 1) -> bytes:
    """Return WAV with the bits that are valid, and a chunk before and after the samples."""
    block, bits = channels * width, 8 * width
    guid = bytes.fromhex("0100000000001000800000aa00389b71")
    form = struct.pack("<HHIIHHHHI", 0xFFFE, channels, RATE, RATE * block, block, bits, 22, valid, 0) + guid
    data = packed(width, channels=channels)
    note = b"note\3\0\0\0abc\0"
    body = b"WAVE" + note + b"fmt \x28\0\0\0" + form + b"data" + struct.pack("<I", len(data)) + data
    body += bytes(len(data) % 2) + note
    return b"RIFF" + struct.pack("<I", len(body)) + body


LITTLE, BIG = "sample_n_bytes -i 2", "sample_byte_format -s2 10"
KNOWN = {
    "sowt of 24 bits": aifc(b"sowt", 24, packed(3)),
    "sowt of 32 bits": aifc(b"sowt", 32, packed(4)),
    "42ni": aifc(b"42ni", 24, packed(3)),
    "42n1": aifc(b"42n1", 24, packed(3)),
    "23ni": aifc(b"23ni", 32, packed(4)),
    "sowt of 16 bits": aifc(b"sowt", 16, packed(2)),
    "twos of 24 bits": aifc(b"twos", 24, packed(3, ">")),
    "sphere of 16 bits": sphere(packed(2), "sample_n_bytes -i 2", "sample_byte_format -s2 01"),
    "sphere of 16 bits, most significant first": sphere(packed(2, ">"), "sample_n_bytes -i 2", BIG),
    "sphere of 24 bits": sphere(packed(3), "sample_n_bytes -i 3", "sample_byte_format -s3 012"),
    "sphere of 24 bits, as libsndfile names the order": sphere(
        packed(3), "sample_n_bytes -i 3", "sample_byte_format -s2 01"
    ),
    "sphere of 32 bits": sphere(packed(4, ">"), "sample_n_bytes -i 4", "sample_byte_format -s4 3210"),
    "24 bits in 32": extensible(4, 24),
    "20 bits in 32": extensible(4, 20),
    "16 bits in 24": extensible(3, 16),
    "20 bits in 24": extensible(3, 20),
}


@every_transcoder
@pytest.mark.parametrize("name", KNOWN)
def test_samples_keep_their_values(convert: Convert, tmp_path: Path, name: str) -> None:
    path = tmp_path / "recording"
    path.write_bytes(KNOWN[name])
    for source in (KNOWN[name], str(path)):
        found = made(convert(source, AudioFormat(sample_rate=RATE), Limits()))
        assert len(found) == COUNT
        assert np.abs(found.astype(int) - S16).max() <= 1  # rounded instead of cut
    facts = probe(KNOWN[name])
    assert (facts.samples, facts.complete, facts.ignored) == (COUNT, "yes", "")
    assert facts.declared_seconds == pytest.approx(COUNT / RATE)


def test_signed_bytes_keep_their_values() -> None:
    found = made(transcoding.transcode(aifc(b"sowt", 8, packed(1)), AudioFormat(sample_rate=RATE)))
    assert np.abs(found - (STEPS >> 24 << 8)).max() == 0


@every_transcoder
@pytest.mark.parametrize(("coding", "codec"), [("ulaw", "pcm_mulaw"), ("mu-law", "pcm_mulaw"), ("alaw", "pcm_alaw")])
def test_companded_sphere_of_two_channels(convert: Convert, coding: str, codec: str) -> None:
    data = np.random.default_rng(7).integers(0, 256, 2 * COUNT, np.uint8).tobytes()
    fields = "sample_n_bytes -i 1", f"sample_coding -s{len(coding)} {coding}"
    target = AudioFormat(sample_rate=RATE, channels=2)
    code = {"pcm_mulaw": 7, "pcm_alaw": 6}[codec]
    same = convert(riff(data, 2, RATE, 1, code), target, Limits())
    assert bytes(convert(sphere(data, *fields, channels=2), target, Limits())) == bytes(same)
    assert probe(sphere(data, *fields, channels=2)).codec == codec


def test_the_ffmpeg_command_reads_them_too(tmp_path: Path) -> None:
    settings = FfmpegSettings(output={"format": "wav", "acodec": "pcm_s16le"})
    transformer = AudioFfmpeg(settings, Limits(), Settings())
    path = tmp_path / "a.sph"
    path.write_bytes(KNOWN["sphere of 16 bits"])
    for source in (str(path), KNOWN["sphere of 16 bits"]):
        assert made(transformer.transform(source, "", "")).tolist() == S16.tolist()


REFUSED = {
    "SPHERE with the coding 'pcm,embedded-shorten-v2.00' is not supported": sphere(
        bytes(99), "sample_n_bytes -i 2", "sample_coding -s26 pcm,embedded-shorten-v2.00"
    ),
    "SPHERE with one channel after the other": sphere(
        packed(2, channels=2), "sample_n_bytes -i 2", "channels_interleaved -s5 FALSE", channels=2
    ),
    "SPHERE of 2 bytes per sample in the order ''": sphere(packed(2), "sample_n_bytes -i 2"),
    "SPHERE with a header of 0 bytes": b"NIST_1A\n   what\n" + bytes(99),
    "truncated: 3200 of 3202 declared bytes": sphere(packed(2)[:-2], "sample_n_bytes -i 2", BIG),
    "AIFF|truncated: 4800 of 4803 declared bytes": aifc(b"42ni", 24, packed(3)[:-3]),
}


@every_reader
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_read_says_why(read: Read, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read(REFUSED[message])


def test_bytes_after_the_samples_are_named() -> None:
    facts = probe(KNOWN["sphere of 16 bits"] + b"more")
    assert (facts.samples, facts.ignored) == (COUNT, "4 bytes after the samples")


@every_reader
@pytest.mark.parametrize(("bits", "width"), [(24, 4), (20, 4), (16, 3), (16, 4), (8, 2)])
def test_integers_that_do_not_fill_their_bytes_are_refused(read: Read, bits: int, width: int) -> None:
    data = packed(width)
    desc = struct.pack(">d4sIIIII", RATE, b"lpcm", 2, width, 1, 1, bits)
    caf = b"caff\0\1\0\0desc" + struct.pack(">Q", 32) + desc + b"data" + struct.pack(">qI", len(data) + 4, 0) + data
    wav = riff(data, 1, RATE, width)
    for name, content in (("CAF", caf), ("WAV", wav[:34] + struct.pack("<H", bits) + wav[36:])):
        with pytest.raises(AudioError, match=f"{name} with {bits} bits per sample in {width} bytes is not supported"):
            read(content)


def test_bits_that_do_not_fill_their_bytes_may_be_of_several_channels_or_an_unknown_number() -> None:
    content = extensible(4, 24, channels=3)
    assert (probe(content).samples, probe(content).channels) == (COUNT, 3)
    of_all = AudioFormat(sample_rate=RATE, channels=3)
    found = made(transcoding.transcode(content, of_all)).reshape(-1, 3)
    assert np.abs(found.astype(int) - S16[:, np.newaxis]).max() <= 1
    at = content.index(b"data") + 4
    piped = content[:at] + b"\xff" * 4 + content[at + 4 : -12]
    assert (probe(piped).samples, probe(piped).complete) == (COUNT, "unknown")
    with pytest.raises(AudioError, match="truncated"):
        probe(content[:-100])


@every_reader
@pytest.mark.parametrize(("bits", "width"), [(24, 4), (16, 4), (24, 3), (32, 4)])
def test_quicktime_states_bits_and_bytes(read: Read, bits: int, width: int) -> None:
    content = quicktime(bits, width, packed(width))
    if bits == 8 * width:
        read(content)
        assert probe(content).samples == COUNT
        assert (
            np.abs(made(transcoding.transcode(content, AudioFormat(sample_rate=RATE))).astype(int) - S16).max() <= 1
        )
    else:
        with pytest.raises(AudioError, match=f"QuickTime with {bits} bits per sample in {width} bytes is not"):
            read(content)


def quicktime(bits: int, width: int, data: bytes) -> bytes:
    """Return a recording with Apple's `lpcm`: signed integers with the least byte first."""
    made = corpus.encoded(Base("mov", "pcm_s16le", RATE, 1, "mono", (), COUNT / RATE))
    at = made.index(b"stsd") + 12
    size = struct.unpack(">I", made[at : at + 4])[0]
    flags = 4 | (8 if bits == 8 * width else 16)  # signed; packed, or aligned high
    form = struct.pack(">IdI4I", 72, RATE, 1, 0x7F000000, bits, flags, width) + struct.pack(">I", 1)
    entry = made[at + 8 : at + 16] + struct.pack(">HHIHHhHI", 2, 0, 0, 3, 16, -2, 0, 1 << 16) + form
    entry = struct.pack(">I4s", 8 + len(entry), b"lpcm") + entry
    grown = made[:at] + entry + made[at + size :]
    for name in (b"stsd", b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        place = grown.index(name) - 4
        old = struct.unpack(">I", grown[place : place + 4])[0]
        grown = grown[:place] + struct.pack(">I", old + len(entry) - size) + grown[place + 4 :]
    place = grown.index(b"stsz") + 8
    grown = grown[:place] + struct.pack(">I", width) + grown[place + 4 :]
    place = grown.index(b"mdat")
    return grown[: place - 4] + struct.pack(">I", 8 + len(data)) + b"mdat" + data + grown[place + 4 + 2 * COUNT :]


@every_reader
def test_more_samples_than_declared_are_a_contradiction(read: Read) -> None:
    content = aifc(b"twos", 16, packed(2, ">"), frames=COUNT // 2)
    with pytest.raises(
        AudioError, match=f"contradictory: the header declares {COUNT // 2} samples, .* gives {COUNT}"
    ):
        read(content)


def test_a_longer_recording_is_not_known_to_be_complete() -> None:
    stated = Stated(0, "", "yes", 10.0, is_exact=True, slack=1_152)
    assert [stated.completeness(seconds) for seconds in (10.0, 10.2, 11.0)] == ["yes", "yes", "unknown"]
    stated.require(20_000, 1_000)  # as an MP3 header declares the frames of the first of two recordings
    assert Stated(0, "", "yes", 10.0).completeness(11.0) == "yes", "an estimate from a bit rate"


# --- padding


def long(muxer: str, encoder: str, count: int, *options: tuple[str, str], rate: int = 44_100) -> bytes:
    return corpus.encoded(Base(muxer, encoder, rate, 1, "mono", options, count / rate))


FRAME = 1_024
LENGTHS = [1, FRAME - 1, FRAME, FRAME + 1, 10 * FRAME - 1, 10 * FRAME + 1]


@every_transcoder
@pytest.mark.parametrize("count", LENGTHS)
def test_aac_in_mp4_has_the_length_that_the_boxes_state(convert: Convert, count: int) -> None:
    for content in (
        long("ipod", "aac", count), long("mov", "aac", count), long("mp4", "aac", count, ("movflags", "faststart")),
    ):  # fmt: skip
        assert len(made(convert(content, AudioFormat(sample_rate=44_100), Limits()))) == count
        facts = probe(content)
        assert (facts.samples, facts.complete) == (count, "yes")
        assert facts.declared_seconds == pytest.approx(count / 44_100)


@pytest.mark.parametrize("count", [FRAME + 1, 100_001])
def test_fragments_have_the_length_of_their_samples(count: int) -> None:
    flags = ("movflags", "frag_keyframe+empty_moov+delay_moov"), ("frag_duration", "200000")
    content = long("mp4", "aac", count, *flags)
    assert probe(content).samples == count
    assert len(made(transcoding.transcode(content, AudioFormat(sample_rate=44_100)))) == count
    assert bytes(transcoding.transcode(content, AudioFormat())) == bytes(
        libav_engine.transcode(content, AudioFormat(), Limits())
    )


def test_an_edit_that_plays_a_part_is_followed() -> None:
    content = long("ipod", "aac", 44_100)
    at = content.index(b"elst") + 12
    assert struct.unpack(">I", content[at : at + 4])[0] == 1_000
    shorter = content[:at] + struct.pack(">I", 500) + content[at + 4 :]
    assert probe(shorter).samples == pytest.approx(22_050, abs=45)  # one tick of the movie


def test_the_note_of_itunes_about_padding_is_followed() -> None:
    content = long("ipod", "aac", 44_100).replace(b"udta", b"free")  # the note is the only one
    note = (
        b"iTunSMPB"
        + struct.pack(">I4sII", 80, b"data", 1, 0)
        + b" 00000000 00000400 00000348 00000000000%05X" % 44_000
    )
    udta = struct.pack(">I4s", 8 + len(note), b"udta") + note
    at = content.index(b"moov") - 4
    size = struct.unpack(">I", content[at : at + 4])[0]
    assert at + size == len(content), "the index is at the end"
    noted = content[:at] + struct.pack(">I", size + len(udta)) + content[at + 4 :] + udta
    assert probe(content).samples == 44_100
    assert probe(noted).samples == 44_000


@every_transcoder
@pytest.mark.parametrize("count", [1, 4_095, 4_096, 4_097, 44_100])
@pytest.mark.parametrize("remainder", [False, True])
def test_alac_in_caf_loses_nothing(convert: Convert, count: int, remainder: bool) -> None:
    content = long("caf", "alac", count)
    at = content.index(b"pakt") + 12
    packets = struct.unpack(">q", content[at : at + 8])[0]
    table = struct.pack(">qqii", packets, count, 0, -count % 4_096 if remainder else 0)  # as libsndfile writes it
    content = content[:at] + table + content[at + 24 :]
    pcm = corpus.encoded(Base("wav", "pcm_s16le", 44_100, 1, "mono", (), count / 44_100))
    assert made(convert(content, AudioFormat(sample_rate=44_100), Limits())).tolist() == made(pcm).tolist()
    assert (probe(content).samples, probe(content).complete) == (count, "yes")


def test_alac_with_fewer_samples_than_its_table_counts_is_refused() -> None:
    content = long("caf", "alac", 44_100)
    at = content.index(b"pakt") + 20
    more = content[:at] + struct.pack(">q", 46_000) + content[at + 8 :]
    with pytest.raises(AudioError, match="truncated: 44100 of 46000 declared samples"):
        probe(more)


def test_the_last_packet_of_alac_may_be_shorter_than_ffmpeg_5_counts() -> None:
    content = long("caf", "alac", 4_097)
    at = content.index(b"pakt") + 12
    assert struct.unpack(">qqii", content[at : at + 24])[0] == 2
    full = content[:at] + struct.pack(">qqii", 2, 2 * 4_096, 0, 0) + content[at + 24 :]
    assert probe(full).samples == 4_097
    assert len(made(transcoding.transcode(full, AudioFormat(sample_rate=44_100)))) == 4_097


@pytest.mark.parametrize("convert", [transcoding.transcode, libav_engine.transcode])
@pytest.mark.parametrize(("encoder", "block"), [("adpcm_ms", 1_012), ("adpcm_ima_wav", 2_041)])
def test_adpcm_ends_where_the_fact_chunk_says(convert: Convert, encoder: str, block: int) -> None:
    """As SoX and libsndfile write it; libav's own muxer counts full blocks."""
    rate = 16_000
    content = long("wav", encoder, 8 * block, rate=rate)
    at = content.index(b"fact") + 8
    blocks = -(-struct.unpack("<I", content[at : at + 4])[0] // (most := samples_of_a_block(content)))
    for count in ((blocks - 1) * most + 1, blocks * most - 1):
        shorter = content[:at] + struct.pack("<I", count) + content[at + 4 :]
        assert len(made(convert(shorter, AudioFormat(sample_rate=rate), Limits()))) == count
        assert (probe(shorter).samples, probe(shorter).complete) == (count, "yes")
    wrong = content[:at] + struct.pack("<I", blocks * most // 2) + content[at + 4 :]
    assert probe(wrong).samples == blocks * most, "libsndfile counts the samples of stereo wrongly"
    assert probe(wrong).declared_seconds == pytest.approx(blocks * most / rate)


def samples_of_a_block(content: bytes) -> int:
    at = content.index(b"fmt ") + 8
    return int.from_bytes(content[at + 18 : at + 20], "little")
