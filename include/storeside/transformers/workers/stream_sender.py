"""The decoder's part of a stream: it calls the transformer, and sends each piece of the result to the worker.

The worker acknowledges a piece when it has passed it on. Only then does the transformer make the next one, so a slow
receiver slows it down, and no process holds more than a few pieces.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any, BinaryIO

from storeside.transformers.transformer import Data, LeaveOut, ObjectError, StreamTransformer

from .wire import Channel, Head

# The keys of a message with a piece, of the answer that requests the next one, and of one that requests no more.
PIECE, NEXT, STOP = "piece", "next", "stop"
# Bytes of a piece, except for the last one of a result: smaller ones are joined, because each costs several messages.
PIECE_BYTES = 256 << 10
Pieces = Generator[Data, None, None]


class _StoppedError(Exception):
    """Nothing more is wanted, because the destination has answered or is gone."""


def send(
    channel: Channel, transformer: StreamTransformer, source: int | bytes | memoryview, name: str, arguments: str
) -> tuple[Head, Data]:
    """Send the pieces of a result, and return the last message, which has none.

    Raises the transformer's errors, and ObjectError if it yields nothing, or leaves the object out too late.
    """
    yielded = _Yielded()
    with closing(_opened(source)) as reader, closing(yielded.pieces(transformer, reader, name, arguments)) as pieces:
        try:
            for piece in pieces:
                _pass_on(channel, piece)
                del piece  # the transformer may use its memory again
        except _StoppedError:
            return {"ended": True}, b""
        except LeaveOut as e:
            if not yielded.anything:
                raise
            raise ObjectError(
                f"it was left out ({e}) after a part of its result: raise LeaveOut before the first yield"
            ) from e
    if not yielded.anything:  # AIStore does not distinguish an empty result from a missing one
        raise ObjectError("the transform returned nothing")
    return {"ended": True}, b""


class _Yielded:
    """The bytes that a transformer yields, in pieces of `PIECE_BYTES`."""

    def __init__(self) -> None:
        self.anything = False

    def pieces(self, transformer: StreamTransformer, reader: BinaryIO, name: str, arguments: str) -> Pieces:
        chunks: Any = transformer.transform_stream(reader, name, arguments)
        if isinstance(chunks, LeaveOut):
            raise chunks
        if isinstance(chunks, bytes | bytearray | memoryview | str) or not isinstance(chunks, Iterable):
            raise TypeError(f"transform_stream returned {type(chunks).__name__}: yield pieces of bytes")
        iterator: Any = iter(chunks)
        try:
            yield from self._cut(iterator)
        finally:
            with suppress(AttributeError):  # an iterator that is no generator
                iterator.close()

    def _cut(self, chunks: Iterator[Data]) -> Pieces:
        small = bytearray()
        for chunk in chunks:
            try:
                view = memoryview(chunk).cast("B")
            except TypeError as e:
                raise TypeError(f"transform_stream yielded {type(chunk).__name__}: yield pieces of bytes") from e
            with view:
                self.anything = self.anything or bool(view.nbytes)
                at = 0
                while len(small) + len(view) - at >= PIECE_BYTES:
                    end = at + PIECE_BYTES - len(small)
                    yield small + view[at:end] if small else view[at:end]
                    small.clear()
                    at = end
                small += view[at:]
            del chunk
        if small:
            yield small


def _pass_on(channel: Channel, piece: Data) -> None:
    with memoryview(piece) as view:
        channel.send({PIECE: len(view)}, view)
    answer = channel.receive()
    if answer is None or NEXT not in answer[0]:
        raise _StoppedError


def _opened(source: int | bytes | memoryview) -> BinaryIO:
    if isinstance(source, int):
        return open(source, "rb", closefd=False)
    return io.BytesIO(source)
