"""Bodies of OCI's answers: the worker holds each once, and reads no more than it asked for."""

from __future__ import annotations

import io
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3 import HTTPResponse

from storeside.copying.errors import CopyTransientError
from storeside.copying.oci import OCIStore
from storeside.copying.store import Head

SIZE = 8 << 20
HEAD = Head(SIZE, "v", "tag")


class Body(io.RawIOBase):
    """A body of `size` zeros, which it makes when they are read."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.size - self.at)
        self.at += count
        return count


def range_of(body: Body) -> bytes:
    answer = HTTPResponse(io.BufferedReader(body), preload_content=False)
    data = SimpleNamespace(raw=answer, close=answer.close)
    client: Any = SimpleNamespace(get_object=lambda *_, **__: SimpleNamespace(data=data))
    return OCIStore(client, "n", "b").fetch_range("o", HEAD, 0, SIZE)


def test_a_range_is_held_once() -> None:
    range_of(Body(SIZE))  # imports the SDK, which would count as well
    tracemalloc.start()
    try:
        assert len(range_of(Body(SIZE))) == SIZE
        assert tracemalloc.get_traced_memory()[1] < 1.5 * SIZE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("size", "said"), [(20 * SIZE, f"received more than {SIZE} bytes"), (SIZE - 1, f"received {SIZE - 1} of {SIZE}")]
)
def test_a_body_of_another_size_is_not_taken(size: int, said: str) -> None:
    body = Body(size)
    with pytest.raises(CopyTransientError, match=said):
        range_of(body)
    assert body.at < 1.5 * SIZE
