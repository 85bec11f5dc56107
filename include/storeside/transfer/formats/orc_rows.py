"""Reads the rows of each ORC object in a separate process.

pyarrow 26.0.1 ends its process with a segmentation fault while it reads some damaged stripes, although not while it
reads a footer. These processes are forks of a reader that has imported pyarrow, which takes most of the time of a
small object. docs/decisions/0011-isolation-of-readers.md has the reason and the measurement.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from storeside.transfer.base.errors import LoadObjectError, TransferTransientError, not_copied
from storeside.transfer.objects.content import Content

# Characters of a message that are kept.
_MOST = 300
# Words of pyarrow about a timestamp that ORC can hold, and 64 bits of nanoseconds cannot.
_VALID = "out of range for nanosecond resolution"
# For each path on its socket, forks a process that writes the file's rows as an Arrow stream to one descriptor, and
# errors to another. Answers with the exit status. Ends when the other side closes the socket.
_PROGRAM = """
import os
import socket
import sys
import pyarrow
from pyarrow import orc

def write(path, rows):
    file = orc.ORCFile(path)
    with os.fdopen(rows, "wb") as sink, pyarrow.ipc.new_stream(sink, file.schema) as writer:
        for n in range(file.nstripes):
            batch = file.read_stripe(n)
            batch.validate(full=True)
            writer.write_batch(batch)

requests = socket.socket(fileno=0)
while True:
    path, descriptors, *_ = socket.recv_fds(requests, 4096, 2)
    if not path:
        break
    child = os.fork()
    if not child:
        requests.close()
        os.dup2(descriptors[1], 2)
        try:
            write(path.decode(), descriptors[0])
        except BaseException as e:
            os.write(2, str(e).encode())
            os._exit(1)
        os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    _, status = os.waitpid(child, 0)
    requests.sendall(b"%d\\n" % os.waitstatus_to_exitcode(status))
"""


class _Reader:
    """The process that forks; it reads one object at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-I", "-c", _PROGRAM], stdin=theirs.fileno())

    def begin(self, path: str, errors: int) -> BinaryIO:
        """Let a fork read a file; return its rows. It writes errors to the descriptor `errors`. Raises OSError."""
        source, sink = os.pipe()
        rows = os.fdopen(source, "rb")
        try:
            socket.send_fds(self._socket, [path.encode()], [sink, errors])
        except OSError:
            rows.close()
            raise
        finally:
            os.close(sink)
        return rows

    def status(self) -> int:
        """Wait for the fork and return its exit status. Raises OSError if the reader itself has ended."""
        if not (answer := self._socket.recv(32)):
            raise ConnectionResetError("the reader has ended")
        return int(answer)

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the reader."""
        self._socket.close()
        self._process.wait()


_idle: list[_Reader] = []


def _idle_reader() -> _Reader:
    """Return a reader that no other thread uses."""
    while True:
        try:
            reader = _idle.pop()
        except IndexError:
            return _Reader()
        if reader.runs:
            return reader
        reader.close()


@atexit.register
def _end() -> None:
    while _idle:
        _idle.pop().close()


def stripes(content: Content) -> Generator[Any, None, None]:
    """Yield the stripes of an ORC object as Arrow batches.

    The object is first copied into a temporary file. Raises LoadObjectError, also if the system kills the process
    that reads this object, and TransferTransientError if the reader has ended for another reason.
    """
    import pyarrow as pa

    with ExitStack() as files:
        try:
            path = Path(files.enter_context(tempfile.TemporaryDirectory()), "object.orc")
            errors = files.enter_context(tempfile.TemporaryFile())
            with path.open("wb") as file:
                for piece in content.stream():
                    file.write(piece)
        except OSError as e:
            raise not_copied(content.key, "it", e) from e
        reader = _idle_reader()
        failed = ""
        try:
            rows = reader.begin(str(path), errors.fileno())
            try:
                yield from pa.ipc.open_stream(rows)
            except (pa.ArrowException, OSError) as e:
                failed = str(e)
            finally:
                rows.close()  # a fork that still writes ends
                status = reader.status()
                _idle.append(reader)
        except OSError as e:
            reader.close()
            raise TransferTransientError(f"{content.key!r}: it cannot be read in a separate process: {e}") from e
        if status == -signal.SIGTERM:
            raise TransferTransientError(f"{content.key!r}: the process that reads it was stopped")
        if status == -signal.SIGKILL:  # only this object fails: its rows may need more memory than the worker has
            raise LoadObjectError(
                "the process that read it was killed, perhaps because the worker has too little memory"
            )
        if status or failed:
            errors.seek(0)
            *_, why = (errors.read().decode("utf-8", "replace").strip() or failed or "no message").splitlines()
            what = "it has a value that cannot be loaded" if _VALID in why else "its ORC content is corrupt"
            raise LoadObjectError(f"{what}: {why[:_MOST]} (status {status})")
