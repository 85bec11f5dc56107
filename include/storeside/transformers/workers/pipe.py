"""A pipe through which an object's content flows to its decoder while it is received."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from storeside.transformers.transformer import Data

# Bytes that the kernel holds in a pipe; it allows so many without privileges (/proc/sys/fs/pipe-max-size).
_CAPACITY = 1 << 20
# Milliseconds after which a thread that waits for a reader looks whether the reader is gone.
_LOOK = 100


def new_pipe() -> tuple[int, int]:
    """Return the descriptors for reading and writing of a new pipe, whose writer does not wait. Raises OSError."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # the user has too many pipes for this size
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _CAPACITY)
    os.set_blocking(writer, False)
    return reader, writer


def write(writer: int, data: Data) -> int:
    """Write what fits into the pipe, and return the number of bytes, 0 if it is full.

    If no process reads the pipe any more, all bytes count as written. Raises OSError.
    """
    try:
        return os.write(writer, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)


@contextmanager
def filled(pieces: Iterator[bytes]) -> Iterator[int]:
    """Yield the reading end of a pipe that a thread fills with `pieces`, the body of an answer.

    At the end, raises the error of `pieces`: the reader has then seen only a part of them. Pieces that the reader did
    not want are not read.
    """
    reader, writer = new_pipe()
    ended = threading.Event()
    errors: list[Exception] = []

    def fill() -> None:
        try:
            for piece in pieces:
                if not _written(writer, piece, ended):
                    return
        except Exception as e:
            if not ended.is_set():
                errors.append(e)
        finally:
            os.close(writer)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        os.close(reader)
        ended.set()
        thread.join()
        if errors:
            raise errors[0]


def _written(writer: int, piece: bytes, ended: threading.Event) -> bool:
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    view = memoryview(piece)
    while view and not ended.is_set():
        view = view[write(writer, view) :]
        if view:
            poll.poll(_LOOK)
    return not ended.is_set()
