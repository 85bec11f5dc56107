"""A worker's handle of its decoder process: starts it, passes objects to it, and ends with the same status."""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, NoReturn

from storeside.transformers.contract.failures import MARK
from storeside.transformers.contract.job import Job
from storeside.transformers.transformer import Data

from . import decoder, stream_sender, wire
from .wire import Channel, Head

_OUTPUT_PIECE = 64 << 10
_LAST_WORDS_SECONDS = 0.5


class DecoderRefusedError(Exception):
    """The transformer cannot be built or isolated; the message gives the reason."""


class DecoderProcess:
    """One decoder process, a fork of this process. Start it before this process starts threads or reads secrets."""

    def __init__(self, transform: str, memory_limit: int | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, theirs_output = os.pipe()
        self._process = os.fork()
        if not self._process:
            status = 1
            try:
                decoder.run(theirs, theirs_output, transform, memory_limit)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        theirs.close()
        os.close(theirs_output)
        self._socket = ours
        self._channel = Channel(ours)
        self._output = threading.Thread(target=_pass_on, args=(output,), daemon=True)
        self._output.start()
        self._limits_cpu = True
        self.mime_type = ""
        self.takes = ""
        self.streams = False
        self.missing: list[str] = []

    def wait(self) -> None:
        """Wait until the decoder has built the transformer. Raises DecoderRefusedError."""
        head, _ = self._reply()
        if "broken" in head:
            raise DecoderRefusedError(str(head["broken"]))
        self.mime_type, self.takes = str(head["ready"]), str(head["takes"])
        self.streams = bool(head["streams"])
        self.missing = [str(name) for name in head["missing"]]

    def lives_until(self, other: select.poll) -> bool:
        """Wait for a message on `other`, and return True; end this process if the decoder ends first."""
        if any(descriptor == self._socket.fileno() for descriptor, _ in other.poll()):
            self._end()
        return True

    def watched_with(self, other: socket.socket) -> select.poll:
        """Return the poll object for `lives_until`."""
        poll = select.poll()
        for one in (self._socket, other):
            poll.register(one, select.POLLIN)
        return poll

    def give(self, entry: bytes) -> None:
        """Pass on what the job is given beside the next object; the transformer gets it as its arguments."""
        try:
            self._channel.send({decoder.GIVEN: True}, entry)
        except ConnectionError:
            self._end()
        self._reply()  # the memory of the entry may be overwritten only then

    def transform(self, job: Job, source: str | int | Data, seconds: float) -> tuple[Head, Data]:
        """Return the decoder's reply for an object, which is a path, an open file or its content.

        The decoder may use `seconds` of CPU time. If the decoder dies, this process ends with the same status.
        """
        self._limit_cpu(seconds)
        head: dict[str, Any] = {"name": job.object, "arguments": job.arguments}
        try:
            if isinstance(source, int):
                self._channel.send(head, descriptor=source)
            elif isinstance(source, str):
                self._channel.send({**head, "path": source})
            else:
                self._channel.send(head, source)
        except ConnectionError:
            self._end()
        return self._reply()

    def stream(self, job: Job, source: int | Data, seconds: float) -> Generator[Data, None, Head]:
        """Yield the pieces of a result, each valid until the next one; return the decoder's last reply.

        If the generator is closed before its end, the transformer is, too.
        """
        head, data = self.transform(job, source, seconds)
        while stream_sender.PIECE in head:
            answer = stream_sender.STOP
            try:
                yield data
                answer = stream_sender.NEXT
            finally:
                try:
                    self._channel.send({answer: True})
                except ConnectionError:
                    self._end()
                head, data = self._reply()
        return head

    def pass_on(self, head: Head, data: Data, to: Channel) -> None:
        """Send a reply; a result in the decoder's shared memory is not copied."""
        if isinstance(data, memoryview):
            to.relay(head, self._channel, data)
        else:
            to.send(head, data)

    def _reply(self) -> tuple[Head, Data]:
        try:
            message = self._channel.receive(copy=False)
        except ConnectionError:
            message = None
        if message is None:
            self._end()
        head, data = message
        if (descriptor := head.pop(wire.FILE, None)) is not None:
            os.close(descriptor)
        return head, data

    def _limit_cpu(self, seconds: float) -> None:
        """Allow the decoder `seconds` of additional CPU time; the kernel ends a decoder that exceeds them."""
        if not self._limits_cpu:
            return
        try:
            used = time.clock_gettime(~self._process << 3 | 2)  # a process's CPU clock, clock_getcpuclockid(3)
            limit = math.ceil(used + seconds) + 1
            resource.prlimit(self._process, resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        except OSError:  # the decoder has another user, whose limits this process may not change
            self._limits_cpu = False

    def _end(self) -> NoReturn:
        """End this process with the decoder's status, so that the server reports it."""
        self._socket.close()  # ends a decoder that sent an invalid message
        _, status = os.waitpid(self._process, 0)
        self._output.join(_LAST_WORDS_SECONDS)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            with suppress(OSError, ValueError):  # SIGKILL cannot be handled; only the main thread may set a handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _pass_on(output: int) -> None:
    """Pass on the transformer's output, except lines that look like the server's own failure lines."""
    with open(output, "rb", buffering=_OUTPUT_PIECE) as lines:
        while line := lines.readline(_OUTPUT_PIECE):
            if MARK.encode() not in line:
                os.write(1, line.rstrip(b"\n") + b"\n")
