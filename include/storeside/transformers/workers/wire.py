"""Messages between the server, a worker and its decoder: a small JSON head, and an object's bytes or its open file.

A Unix socket that preserves message boundaries carries the messages. Data that do not fit into one message are in
memory that both ends map. It is reused for every object, because new pages for two megabytes cost more than all other
work here (measured: 1.1 ms, compared with 0.06 ms for the copy). The ends take turns, so sent data may be overwritten
after the answer has arrived.

The memory is sealed: its size is fixed, and only its creator can write to it. Memory without these seals is refused,
because an end that shrinks it would crash the other end.
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

from storeside.transformers.transformer import Data

Head = dict[str, Any]

# Bytes of one message. The kernel's default buffer holds three messages, so a send to a waiting worker does not
# block.
LARGEST_MESSAGE = 64 << 10
# Bytes of shared memory that are kept for the next object. A larger object gets its own memory.
LARGEST_KEPT = 16 << 20
_LENGTHS = struct.Struct("!IQ")  # of the head, and of the data in shared memory
_DESCRIPTOR = array.array("i", [0])
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, not in Python 3.11: only existing mappings can write
_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The key in a received head for the descriptor of the object's file.
FILE = "descriptor"


class Channel:
    """One end of the connection between the server and a worker."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray(LARGEST_MESSAGE)
        self._outbox: mmap.mmap | None = None
        self._inbox: mmap.mmap | None = None
        # The descriptor of the inbox, for `relay`, and another channel's memory that the other end has mapped.
        self._kept: int | None = None
        self._relayed: mmap.mmap | None = None

    def send(self, head: Head, data: Data = b"", descriptor: int | None = None) -> None:
        """Send one message with data, or with the descriptor of a file.

        Raises ValueError if the head is too large, and OSError if the other end is closed.
        """
        encoded = json.dumps(head, separators=(",", ":")).encode()
        size = _LENGTHS.size + len(encoded)
        if size > LARGEST_MESSAGE:
            raise ValueError(f"{len(encoded)} bytes of names and arguments are too many for one message")
        if descriptor is not None:
            socket.send_fds(self.socket, [_LENGTHS.pack(len(encoded), 0) + encoded], [descriptor])
            return
        with memoryview(data).cast("B") as view:
            if size + len(view) <= LARGEST_MESSAGE:
                self.socket.sendmsg([_LENGTHS.pack(len(encoded), 0), encoded, view])
            else:
                self._share(_LENGTHS.pack(len(encoded), len(view)) + encoded, view)

    def relay(self, head: Head, other: Channel, data: memoryview) -> None:
        """Send data that `other` received last without a copy; shared memory is passed on, not copied."""
        encoded = json.dumps(head, separators=(",", ":")).encode()
        if other._kept is None or data.obj is not other._inbox:
            self.send(head, data)
            return
        message = _LENGTHS.pack(len(encoded), len(data)) + encoded
        if self._relayed is other._inbox:
            self.socket.sendmsg([message])
            return
        socket.send_fds(self.socket, [message], [other._kept])
        # It replaces this channel's own memory at the other end, which does not keep a large memory.
        self._outbox, self._relayed = None, other._inbox if len(data) <= LARGEST_KEPT else None

    def receive(self, copy: bool = True) -> tuple[Head, bytes | memoryview] | None:
        """Return the next message, or None if the other end is closed.

        Without `copy`, the data may be valid only until the next message. The head's `FILE` is the descriptor of a
        file that came with the message; the caller closes it. Raises ValueError for an invalid message.
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
                self._map(received.pop(), keep=not copy)
        except BaseException:
            for descriptor in received:
                os.close(descriptor)
            raise
        if received:
            head[FILE] = received.pop()
        if not shared:
            return head, bytes(memoryview(self._buffer)[start:size])
        if self._inbox is None or len(self._inbox) < shared:
            raise ValueError("the shared memory is smaller than the announced data")
        if not copy:
            return head, memoryview(self._inbox)[:shared]
        if shared <= LARGEST_KEPT:
            return head, self._inbox[:shared]
        own, self._inbox = self._inbox, None
        return head, memoryview(own)[:shared]

    def _map(self, descriptor: int, keep: bool) -> None:
        kept = os.dup(descriptor) if keep else None
        if self._kept is not None:
            os.close(self._kept)
        self._kept = kept
        self._inbox = mapped(descriptor)

    def _head(self, size: int, flags: int) -> tuple[Head, int, int]:
        """Return the head, the offset of the data, and the number of bytes in the shared memory."""
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
        # Allocate twice the current need, so that growing objects do not need new memory each time.
        size = len(view) if len(view) > LARGEST_KEPT else min(2 * len(view), LARGEST_KEPT)
        descriptor, outbox = _memory(size)
        try:
            outbox[: len(view)] = view
            socket.send_fds(self.socket, [message], [descriptor])
        finally:
            os.close(descriptor)
        self._outbox = outbox if size <= LARGEST_KEPT else None
        self._relayed = None


def _memory(size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor and the mapping of new memory that only this mapping can change."""
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
        raise ValueError(f"the received descriptor is not memory: {e.strerror}") from e
    finally:
        os.close(descriptor)


def copied(descriptor: int) -> int:
    """Return the descriptor of sealed memory with a copy of a file's content. Raises OSError."""
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
