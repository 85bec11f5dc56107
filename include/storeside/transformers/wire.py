"""Messages between the server, a worker process and its decoder: a small head, and an object's bytes or its file.

A Unix socket that keeps the boundaries of messages carries them. Data that do not fit into one message lie in memory
that both ends have mapped. It is used again for every object, because fresh pages for two megabytes cost more than
everything else here (measured: 1.1 ms against 0.06 ms for the copy). The ends take turns, so data that were sent may
be overwritten as soon as there is an answer.

The memory is sealed: its size is fixed, and only the end that made it can write to it. Memory without these seals is
refused, because an end that cuts it off would crash the other one.
"""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import socket
import struct
from typing import Any

from .transformer import Data

Head = dict[str, Any]

# Bytes of one message. The kernel's default buffer holds three: sending to a waiting worker does not block.
LARGEST_MESSAGE = 64 << 10
# Bytes of shared memory that are kept for the next object; a larger object gets its own.
LARGEST_KEPT = 16 << 20
_LENGTHS = struct.Struct("!IQ")  # of the head, and of the data in shared memory
_DESCRIPTOR = array.array("i", [0])
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, which Python 3.11 does not name: no writing but through existing mappings
_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The key of a received head that holds the descriptor of the object's file.
FILE = "descriptor"


class Channel:
    """One end of the connection between the server and a worker."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray(LARGEST_MESSAGE)
        self._outbox: mmap.mmap | None = None
        self._inbox: mmap.mmap | None = None

    def send(self, head: Head, data: Data = b"", descriptor: int | None = None) -> None:
        """Send one message, with data or with the descriptor of a file.

        Raises ValueError when the head is too large, OSError when the other end is gone.
        """
        encoded = json.dumps(head, separators=(",", ":")).encode()
        size = _LENGTHS.size + len(encoded)
        if size > LARGEST_MESSAGE:
            raise ValueError(f"{len(encoded)} bytes of names and arguments are too many")
        if descriptor is not None:
            socket.send_fds(self.socket, [_LENGTHS.pack(len(encoded), 0) + encoded], [descriptor])
            return
        with memoryview(data).cast("B") as view:
            if size + len(view) <= LARGEST_MESSAGE:
                self.socket.sendmsg([_LENGTHS.pack(len(encoded), 0), encoded, view])
            else:
                self._share(_LENGTHS.pack(len(encoded), len(view)) + encoded, view)

    def receive(self, copy: bool = True) -> tuple[Head, bytes | memoryview] | None:
        """Return the next message, or None when the other end is closed.

        Without `copy` the data may be valid only until the next message. The head's `FILE` is the descriptor of the
        file that came along, which the caller closes. Raises ValueError for a message that `send` does not make.
        """
        size, ancillary, flags, _ = self.socket.recvmsg_into(
            [self._buffer], socket.CMSG_SPACE(_DESCRIPTOR.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        if not size:
            return None
        received = [number for _, _, data in ancillary for number in array.array("i", data)]
        try:
            head, start, shared = self._head(size, flags)
            if shared and received:
                self._inbox = mapped(received.pop())
        except BaseException:
            for descriptor in received:
                os.close(descriptor)
            raise
        if received:
            head[FILE] = received.pop()
        if not shared:
            return head, bytes(memoryview(self._buffer)[start:size])
        if self._inbox is None or len(self._inbox) < shared:
            raise ValueError("what was announced is not in the shared memory")
        if not copy:
            return head, memoryview(self._inbox)[:shared]
        if shared <= LARGEST_KEPT:
            return head, self._inbox[:shared]
        own, self._inbox = self._inbox, None
        return head, memoryview(own)[:shared]

    def _head(self, size: int, flags: int) -> tuple[Head, int, int]:
        """Return the head, where the data begin, and how many are in the shared memory."""
        length, shared = _LENGTHS.unpack_from(self._buffer)
        start = _LENGTHS.size + length
        if start > size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message is cut off")
        head = json.loads(self._buffer[_LENGTHS.size : start])
        if not isinstance(head, dict):
            raise ValueError("a head is not an object")
        head.pop(FILE, None)
        return head, start, shared

    def _share(self, message: bytes, view: memoryview) -> None:
        if self._outbox is not None and len(view) <= len(self._outbox):
            self._outbox[: len(view)] = view
            self.socket.sendmsg([message])
            return
        # Twice the current need, so that ever larger objects do not need new memory each.
        size = len(view) if len(view) > LARGEST_KEPT else min(2 * len(view), LARGEST_KEPT)
        descriptor, outbox = _memory(size)
        try:
            outbox[: len(view)] = view
            socket.send_fds(self.socket, [message], [descriptor])
        finally:
            os.close(descriptor)
        self._outbox = outbox if size <= LARGEST_KEPT else None


def _memory(size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor of new memory that only its mapping can change, and the mapping."""
    descriptor = os.memfd_create("object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED | _FUTURE_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, mapping


def mapped(descriptor: int) -> mmap.mmap:
    """Map a sealed memory file for reading and close its descriptor; the mapping stays. Raises ValueError."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if seals & _FIXED != _FIXED:
            raise ValueError("the shared memory is not sealed")
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    except OSError as e:
        raise ValueError(f"what was sent is not memory: {e.strerror}") from e
    finally:
        os.close(descriptor)


def copied(descriptor: int) -> int:
    """Return the descriptor of sealed memory that holds what a file holds. Raises OSError."""
    copy = os.memfd_create("object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        while os.sendfile(copy, descriptor, None, 1 << 30):
            pass
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _FIXED | fcntl.F_SEAL_WRITE)
        os.lseek(copy, 0, os.SEEK_SET)
    except BaseException:
        os.close(copy)
        raise
    return copy
