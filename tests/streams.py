"""Stream transformers for tests; the last part of an object's name selects the behaviour."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from storeside.transformers.transformer import Data, LeaveOut, ObjectError

MIB = 1 << 20


def pieces(reader: BinaryIO) -> Iterator[bytes]:
    while piece := reader.read(MIB):
        yield piece


def generated(number: int) -> bytes:
    """Return a MiB that differs from the others."""
    return number.to_bytes(8, "big") * (MIB // 8)


def sha256(mebibytes: int) -> str:
    """Return the checksum of the first generated MiB."""
    digest = hashlib.sha256()
    for number in range(mebibytes):
        digest.update(generated(number))
    return digest.hexdigest()


class Told:
    """Does what the name of the object says, such as ``folder/generate-5``."""

    mime_type = "text/x-stream"

    def transform_stream(self, reader: BinaryIO, path: str, etl_args: str) -> Iterator[Data]:
        verb, _, argument = path.rpartition("/")[2].partition(".")[0].partition("-")
        if etl_args:
            yield etl_args.encode()
        yield from getattr(self, verb)(reader, argument)

    def upper(self, reader: BinaryIO, _: str) -> Iterator[bytes]:
        for piece in pieces(reader):
            yield piece.upper()

    def generate(self, _: BinaryIO, argument: str) -> Iterator[bytes]:
        for number in range(int(argument)):
            yield generated(number)

    def slow(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        for piece in self.generate(reader, argument):
            yield piece
            time.sleep(0.05)  # so that a test can kill its server within an object

    def digest(self, reader: BinaryIO, _: str) -> Iterator[bytes]:
        digest, size = hashlib.sha256(), 0
        for piece in pieces(reader):
            digest.update(piece)
            size += len(piece)
        yield f"{size} {digest.hexdigest()}".encode()

    def bad(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        yield from self.generate(reader, argument)
        raise ObjectError("no good object")

    def error(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        yield from self.generate(reader, argument)
        raise KeyError("not there")

    def die(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        yield from self.generate(reader, argument)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        yield from (b"x" for _ in range(int(argument)))
        raise LeaveOut("it wishes so")

    def nothing(self, *_: object) -> Iterator[bytes]:
        yield b""

    def text(self, *_: object) -> Iterator[str]:
        yield "not bytes"

    def tiny(self, reader: BinaryIO, argument: str) -> Iterator[bytes]:
        for _ in range(int(argument)):
            yield b"0123456789"

    def reused(self, _: BinaryIO, argument: str) -> Iterator[memoryview]:
        """Yield memory that is changed and resized afterwards."""
        for number in range(int(argument)):
            memory = bytearray(generated(number))
            yield memoryview(memory)
            memory[:] = b"changed"

    def first(self, reader: BinaryIO, _: str) -> Iterator[bytes]:
        yield reader.read(1)

    def endless(self, _: BinaryIO, argument: str) -> Iterator[bytes]:
        while True:
            yield generated(0)
            time.sleep(float(argument or 0) / 1000)  # the work of a slow transform

    def sleep(self, _: BinaryIO, argument: str) -> Iterator[bytes]:
        yield generated(0)
        time.sleep(float(argument))  # it hangs in the middle

    def spy(self, _: BinaryIO, __: str) -> Iterator[bytes]:
        """State whether an isolated process may read and write files."""
        for do in (lambda: Path("/etc/passwd").read_bytes(), lambda: Path(tempfile.gettempdir(), "x").touch()):
            try:
                do()
                yield b"allowed "
            except OSError:
                yield b"denied "


def transform_stream(reader: BinaryIO, _path: str, _etl_args: str) -> Iterator[bytes]:
    for piece in pieces(reader):
        yield piece.swapcase()


class Both:
    """Has both methods: `transform` counts, as in AIStore's SDK."""

    mime_type = "text/plain"

    def transform(self, *_: object) -> bytes:
        return b"transform"

    def transform_stream(self, *_: object) -> Iterator[bytes]:
        yield b"transform_stream"


class Digest(Told):
    """Consumes each object, whatever its name says."""

    def transform_stream(self, reader: BinaryIO, path: str, etl_args: str) -> Iterator[Data]:
        return self.digest(reader, "")
