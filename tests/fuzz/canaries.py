"""Files and sockets that no process has a reason to use, and the detection of their use."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

HOST = "127.0.0.1"
_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")


class Canaries:
    """A folder with a recording that no process may open, and two ports to which no process may connect."""

    def __init__(self, folder: Path, recording: bytes) -> None:
        folder.mkdir(parents=True)
        self.file = folder / "canary.wav"
        self.file.write_bytes(recording)
        self.files = [self.file, *(folder / name for name in ("x", "canary.wav.m3u8", "0"))]
        for path in self.files[1:]:
            path.write_bytes(recording)
        self._tcp = socket.create_server((HOST, 0))
        self._tcp.setblocking(False)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((HOST, 0))
        self._udp.setblocking(False)
        kernel = ctypes.CDLL(None, use_errno=True)
        self._watch = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._watch < 0 or kernel.inotify_add_watch(self._watch, os.fsencode(folder), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    @property
    def tcp(self) -> int:
        """The port that a connection would be seen on."""
        return int(self._tcp.getsockname()[1])

    @property
    def udp(self) -> int:
        """The port that a datagram would be seen on."""
        return int(self._udp.getsockname()[1])

    def touched(self) -> list[str]:
        """Return the canaries that were opened or connected to since the last call."""
        found = []
        try:
            while events := os.read(self._watch, 1 << 16):
                while events:
                    *_, length = _EVENT.unpack_from(events)
                    name, events = events[_EVENT.size :][:length], events[_EVENT.size + length :]
                    found.append(f"file {os.fsdecode(name.rstrip(bytes(1)))}")
        except BlockingIOError:
            pass
        try:
            while connection := self._tcp.accept()[0]:
                connection.close()
                found.append("TCP port")
        except BlockingIOError:
            pass
        try:
            while self._udp.recv(1):
                found.append("UDP port")
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        """Let go of files and ports."""
        os.close(self._watch)
        self._tcp.close()
        self._udp.close()
