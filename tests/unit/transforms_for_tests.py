"""Transformers for the tests of the ETL server; the last part of an object's name selects the behaviour."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from storeside.transformers.transformer import LeaveOut, ObjectError, Source, WithSidecar


def read(source: Source) -> bytes:
    return Path(source).read_bytes() if isinstance(source, str) else source


class Told:
    """Does what the name of the object says, such as ``any/folder/sleep-0.3``."""

    mime_type = "text/x-told"
    needs = frozenset(("commands", "files"))

    def transform(self, source: Source, name: str, arguments: str) -> bytes | bytearray | memoryview | WithSidecar:
        verb, _, argument = name.rpartition("/")[2].partition("-")
        if verb in ("echo", "sleep"):
            time.sleep(float(argument or 0) if verb == "sleep" else 0)  # the work of a slow transform
            return read(source)
        return getattr(self, verb)(source, argument, arguments)  # type: ignore[no-any-return]

    def kind(self, source: Source, *_: str) -> bytes:
        return type(source).__name__.encode()

    def arguments(self, _source: Source, _argument: str, arguments: str) -> bytes:
        return arguments.encode()

    def upper(self, source: Source, *_: str) -> bytearray:
        return bytearray(read(source).upper())

    def await_(self, source: Source, argument: str, _: str) -> bytes:
        """Make the file ``NAME.begun`` in the folder for temporary files, and wait for ``NAME.end``."""
        name = Path(tempfile.gettempdir(), argument)
        name.with_suffix(".begun").touch()
        while not name.with_suffix(".end").exists():
            time.sleep(0.01)  # between two looks
        return read(source)

    def pid(self, *_: object) -> bytes:
        time.sleep(0.05)  # the other workers get objects, too
        return str(os.getpid()).encode()

    def repeat(self, source: Source, argument: str, _: str) -> memoryview:
        return memoryview(read(source) * int(argument))

    def bad(self, *_: object) -> bytes:
        raise ObjectError('no "good" object\nat all')

    def short(self, *_: object) -> bytes:
        raise LeaveOut("shorter\x1b[31m than\n\u202e1 s\ud800 " + "x" * 1000)

    def silent(self, *_: object) -> LeaveOut:
        return LeaveOut()

    def error(self, *_: object) -> bytes:
        raise KeyError("not there")

    def leave(self, *_: object) -> bytes:
        sys.exit("enough")

    def empty(self, *_: object) -> bytes:
        return b""

    def text(self, *_: object) -> str:
        return "not bytes"

    def segv(self, *_: object) -> bytes:
        time.sleep(0.2)  # the other workers have begun
        os.kill(os.getpid(), signal.SIGSEGV)
        return b""

    def exit(self, _source: Source, argument: str, _: str) -> bytes:
        os._exit(int(argument))

    def memory(self, *_: object) -> bytes:
        return bytes(1 << 30)

    def hang(self, *_: object) -> bytes:
        """Write the ids of this process and of a child to the file HANGING, and then do nothing."""
        child = subprocess.Popen(["sleep", "1000"])
        Path(os.environ["HANGING"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(1000)  # it hangs
        return b""

    def replaced(self, source: Source, *_: str) -> bytes:
        """Replace the object's file, as AIStore does when the object is put again."""
        assert isinstance(source, str)
        content = read(source)
        Path(source + ".new").write_bytes(b"another version")
        Path(source + ".new").rename(source)
        return content

    def sidecar(self, source: Source, *_: str) -> WithSidecar:
        return WithSidecar(read(source), b'{"bytes":%d}' % len(read(source)))


class OnlyFiles(Told):
    """Refuses objects whose content is sent."""

    def transform(self, source: Source, _name: str, _arguments: str) -> bytes:
        if not isinstance(source, str):
            raise ObjectError("its content was sent")
        return read(source)


def shout(source: Source, _name: str, _arguments: str) -> bytes:
    return read(source) + b"!"


def make() -> Told:
    return Told()


class Unmakeable:
    def __init__(self) -> None:
        raise RuntimeError("AUDIO_CODEC is not set")


nothing = 3
