"""Attacks with small content that takes the memory of a worker when it is unpacked. They need no server.

The attacker may put objects into a bucket that is loaded.
"""

from __future__ import annotations

import io
import lzma
from typing import Any

import pytest

from storeside.transfer.base.errors import LimitError, LoadObjectError
from storeside.transfer.objects import content as contents
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import opened
from storeside.transfer.request.options import LoadLimits, ReadOptions
from tests.unit.test_transfer_content import COMPRESS

MB = 1 << 20


class Held(Content):
    """Content that is in memory, with the limit that a load gives it."""

    def __init__(self, content: bytes, limits: LoadLimits) -> None:
        super().__init__(None, "bucket", "k.csv", len(content), most=limits.bytes_of(len(content)))  # type: ignore[arg-type]
        self.content = content

    def range(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_sample_is_unpacked_within_the_limit_of_the_load(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the largest sample that an option may request."""
    bomb = Held(COMPRESS[kind](bytes(32 * MB)), LoadLimits(bytes=MB))
    assert bomb.compression == kind
    assert bomb.size < MB
    unpacked = []

    def counted(file: Any, kind: str) -> Any:
        class Counted:
            def read(self, size: int) -> bytes:
                unpacked.append(len(piece := source.read(size)))
                return bytes(piece)

        source = opened(file, kind)
        return Counted()

    monkeypatch.setattr(contents, "opened", counted)
    with pytest.raises(LimitError, match=f"its content has more than {MB} bytes"):
        bomb.sample(ReadOptions.RANGES["sample_bytes"][1])
    assert MB < sum(unpacked) < 2 * MB


@pytest.mark.parametrize("kind", COMPRESS)
def test_control_a_sample_below_the_limit_is_read(kind: str) -> None:
    assert Held(COMPRESS[kind](b"a\n" * MB), LoadLimits(bytes=2 * MB)).sample(MB) == b"a\n" * (MB // 2)


def xz(size: int, dictionary: int) -> bytes:
    """Return an xz stream of zeros whose decoder keeps up to `dictionary` bytes of its output in memory."""
    chain = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
    return lzma.compress(bytes(size), lzma.FORMAT_XZ, filters=chain)


def test_xz_keeps_no_dictionary_that_is_too_large() -> None:
    """An object of 76 kB with a dictionary of 512 MB took 500 MB, below any limit of its content."""
    bomb = xz(1000, 160 * MB)
    with pytest.raises(LoadObjectError, match="xz needs more than 128 MB of memory: pack it with xz -9 or less"):
        opened(io.BytesIO(bomb), "xz").read(1)
    with pytest.raises(LoadObjectError, match="xz needs more than 128 MB of memory"):
        Held(bomb, LoadLimits()).sample(1000)


def test_control_xz_at_its_highest_level_is_read() -> None:
    assert opened(io.BytesIO(xz(1000, 64 * MB)), "xz").read(2000) == bytes(1000)
