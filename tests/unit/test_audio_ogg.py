"""Ogg: recordings and chains have the length that the positions of their pages state, in both engines."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transformers.audio import libav_engine, native_engine, transcoding
from storeside.transformers.audio.containers import packets
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.limits import Limits
from storeside.transformers.audio.transcoding import AudioError
from tests.unit.test_audio import needs_native

ENGINES = [libav_engine.transcode, pytest.param(native_engine.transcode, marks=needs_native)]


def tone(samples: int, hz: float, rate: int, channels: int = 1) -> np.ndarray[Any, Any]:
    wave = (12_000 * np.sin(np.arange(samples) * hz * 2 * np.pi / rate)).astype("<i2")
    return np.stack([wave] * channels, axis=1)


def opus(samples: int, rate: int) -> bytes:
    return vorbis(samples, rate, codec="libopus")


def vorbis(samples: int, rate: int, hz: float = 440, channels: int = 1, codec: str = "libvorbis") -> bytes:
    form = ["-f", "s16le", "-ar", str(rate), "-ac", str(channels), "-i", "-"]
    command = ["ffmpeg", "-v", "error", *form, "-c:a", codec, "-f", "ogg", "-"]
    wave = tone(samples, hz, rate, channels).tobytes()
    return subprocess.run(command, input=wave, capture_output=True, check=True).stdout


def decoded(transcode: Callable[..., Any], content: bytes, rate: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes(transcode(content, AudioFormat(sample_rate=rate), Limits())), "<i2", offset=44)


@pytest.mark.parametrize("transcode", ENGINES)
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("samples", [100, 576, 1_000, 5_000, 16_000, 44_101, 100_000])
def test_vorbis_has_all_samples_and_no_padding(transcode: Callable[..., Any], rate: int, samples: int) -> None:
    """The audio of the short ones is one page, which is the last: libav cuts such streams wrongly."""
    content = vorbis(samples, rate)
    found = decoded(transcode, content, rate)
    assert len(found) == samples
    facts = transcoding.probe(content)
    assert (facts.samples, facts.complete) == (samples, "yes")
    assert facts.declared_seconds == pytest.approx(samples / rate)
    difference = found[200:-200].astype(int) - tone(samples, 440, rate)[200:-200, 0]
    assert not len(difference) or np.abs(difference).mean() < 600


def moved(content: bytes, by: int) -> bytes:
    """Return a stream whose audio has other positions, as that of a stream which was cut out of a longer one."""
    pages = [bytearray(b"OggS" + page) for page in content.split(b"OggS")[1:]]
    for page in pages:
        position = int.from_bytes(page[6:14], "little")
        if position and position + 1 < 1 << 64:
            page[6:14] = ((position + by) % (1 << 64)).to_bytes(8, "little")
            page[22:26] = bytes(4)
            page[22:26] = checksum(page).to_bytes(4, "little")
    return b"".join(bytes(page) for page in pages)


@pytest.mark.parametrize("transcode", [transcoding.transcode, *ENGINES[:1]])
def test_samples_of_vorbis_before_its_start_are_left_out(transcode: Callable[..., Any]) -> None:
    whole, cut = vorbis(100_000, 44_100, 330), moved(vorbis(100_000, 44_100, 330), -100)
    expected = decoded(transcode, whole, 44_100)[100:]
    found = decoded(transcode, cut, 44_100)
    assert len(found) == 99_900
    assert np.abs(found.astype(int) - expected).max() <= 1  # another engine than that of the whole one
    facts = transcoding.probe(cut)
    assert (facts.samples, facts.complete, facts.declared_seconds) == (99_900, "yes", 99_900 / 44_100)
    chain = decoded(transcoding.transcode, whole + cut, 44_100)
    assert len(chain) == 199_900
    assert np.abs(chain[100_000:].astype(int) - expected)[1_000:].max() <= 1


def test_positions_of_vorbis_that_are_wrong_lose_nothing() -> None:
    """A packet is at most 8192 samples, so the first position cannot be before them."""
    content = moved(vorbis(300_000, 44_100), -40_000)
    for read in (decoded(transcoding.transcode, content, 44_100), decoded(ENGINES[0], content, 44_100)):
        assert len(read) >= 300_000
    facts = transcoding.probe(content)
    assert (facts.complete, facts.declared_seconds) == ("unknown", None)


@pytest.mark.parametrize("by", [8_000, 100_000, 170_000_000])
def test_positions_may_begin_after_0(by: int) -> None:
    """As in a recording of a live stream (RFC 7845, section 4.5, and Vorbis I, A.2)."""
    for content, rate in ((vorbis(100_000, 44_100), 44_100), (opus(100_000, 48_000), 48_000)):
        facts = transcoding.probe(moved(content, by))
        assert (facts.samples, facts.complete, facts.declared_seconds) == (100_000, "yes", 100_000 / rate)
        whole, cut = (decoded(transcoding.transcode, one, rate) for one in (content, moved(content, by)))
        assert np.array_equal(whole, cut)


@pytest.mark.parametrize(
    ("packet", "samples"),
    [(b"\x18", 2_880), (b"\x61", 960), (b"\x82", 240), (b"\x7b\x83", 2_880), (b"\xfc", 960), (b"\xff", 0), (b"", 0)],
)
def test_packets_of_opus_state_their_samples(packet: bytes, samples: int) -> None:
    """Configurations 3, 12, 16, 15 and 31; of one or two frames, or of the number in the second byte (RFC 6716)."""
    assert packets.opus(packet) == samples


@given(st.binary(max_size=40), st.binary(max_size=200), st.lists(st.binary(max_size=2)))
def test_headers_of_vorbis_that_are_damaged_state_nothing_or_some_samples(
    identification: bytes, setup: bytes, begun: list[bytes]
) -> None:
    if samples := packets.vorbis(identification, setup):
        assert all(0 <= samples(one) <= 1 << 14 for one in begun)


def test_each_link_of_a_vorbis_chain_has_its_length() -> None:
    lengths = (44_100, 1_000, 100_001)
    chain = b"".join(vorbis(samples, 44_100, hz) for samples, hz in zip(lengths, (330, 440, 550), strict=True))
    facts = transcoding.probe(chain)
    assert (facts.samples, facts.complete) == (sum(lengths), "yes")
    found = decoded(transcoding.transcode, chain, 44_100)
    assert len(found) == sum(lengths)
    last = tone(lengths[2], 550, 44_100)[:, 0].astype(int)
    assert np.abs(found[-lengths[2] :] - last)[2_000:-2_000].max() < 2_500  # not shifted against the links before


def test_a_link_without_audio_gives_no_samples() -> None:
    """Its packets have only padding, which ends at position 0."""
    empty, link = emptied(vorbis(100, 44_100)), vorbis(1_000, 44_100)
    assert transcoding.probe(empty + link).samples == transcoding.probe(link + empty).samples == 1_000
    for read in (transcoding.probe, lambda content: transcoding.transcode(content, AudioFormat())):
        with pytest.raises(AudioError, match="holds no audio samples"):
            read(empty)


def emptied(content: bytes) -> bytes:
    """Return a stream whose last page is at position 0, as oggenc writes one of 0 samples."""
    at = content.rindex(b"OggS")
    page = bytearray(content[at:])
    page[6:14], page[22:26] = bytes(8), bytes(4)
    page[22:26] = checksum(page).to_bytes(4, "little")
    return content[:at] + bytes(page)


def test_a_vorbis_chain_whose_channels_change_is_refused_with_its_reason() -> None:
    with pytest.raises(AudioError, match="a change of channels within a chain of Ogg"):
        transcoding.probe(vorbis(44_100, 44_100) + vorbis(44_100, 44_100, channels=2))


def flac(samples: int, hz: float, channels: int = 1, padding: bool = True) -> bytes:
    """Return Ogg FLAC; with `padding`, the header has another block of metadata, as the reference encoder writes."""
    out = io.BytesIO()
    wave = tone(samples, hz, 16_000, channels).reshape(1, -1)
    with av.open(out, "w", format="ogg") as file:
        layout = "mono" if channels == 1 else "stereo"
        stream = file.add_stream("flac", rate=16_000, layout=layout)
        frame = av.AudioFrame.from_ndarray(wave, format="s16", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = 16_000, 0, Fraction(1, 16_000)
        resampler = av.AudioResampler("s16", layout, 16_000, frame_size=4_096)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    if not padding:
        return out.getvalue()
    first, comment, *pages = [bytearray(b"OggS" + page) for page in out.getvalue().split(b"OggS")[1:]]
    body = 27 + first[26]
    first[body + 7 : body + 9] = (2).to_bytes(2, "big")  # packets of metadata that follow
    comment[27 + comment[26]] &= 0x7F  # no longer the last block
    block = b"\x81\0\0\x08" + bytes(8)
    padded = comment[:26] + bytes([1, len(block)]) + block
    whole = [first, comment, bytearray(padded), *pages]
    for number, page in enumerate(whole):
        page[18:22] = number.to_bytes(4, "little")
        page[22:26] = bytes(4)
        page[22:26] = checksum(page).to_bytes(4, "little")
    return b"".join(whole)


def checksum(page: bytearray) -> int:
    """Ogg's CRC-32 (RFC 3533): without inversion, the highest bit first."""
    found = 0
    for byte in page:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1 ^ (0x04C11DB7 if found >> 31 else 0)) & 0xFFFFFFFF
    return found


@pytest.mark.parametrize("padding", [False, True])
def test_a_chain_of_flac_is_read_with_all_blocks_of_its_metadata(padding: bool) -> None:
    lengths, pitches = (16_000, 1, 5_000), (330, 440, 550)
    chain = b"".join(flac(n, hz, padding=padding) for n, hz in zip(lengths, pitches, strict=True))
    facts = transcoding.probe(chain)
    assert (facts.samples, facts.complete) == (sum(lengths), "yes")
    found = decoded(transcoding.transcode, chain, 16_000)
    expected = np.concatenate([tone(n, hz, 16_000)[:, 0] for n, hz in zip(lengths, pitches, strict=True)])
    assert np.array_equal(found, expected)


def test_a_chain_of_flac_whose_channels_change_is_refused() -> None:
    with pytest.raises(AudioError, match="changes its rate, channels or sample format after 16000 samples"):
        transcoding.probe(flac(16_000, 330) + flac(16_000, 330, channels=2))
