"""The server's handle of one worker process: starts it, passes objects to it, and reports how it ended."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from storeside.transformers.isolation.decoders import environment_for_decoders
from storeside.transformers.registry import TRANSFORM_VARIABLE, locate
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data

from .wire import Channel, Head

# Workers are forks of a process that has loaded all modules, so a dead worker is replaced within milliseconds.
_context = multiprocessing.get_context("forkserver")


class WorkerDiedError(Exception):
    """The worker process ended; the message states how."""


class BrokenTransformError(Exception):
    """No worker can be started; the message gives the reason."""


def prepare(transform: str) -> None:
    """Start to load the workers' modules. Raises UnknownTransformError for an unknown name."""
    locate(transform)
    os.environ[TRANSFORM_VARIABLE] = transform
    _context.set_forkserver_preload([f"{__package__}.preload"])
    with environment_for_decoders():
        multiprocessing.forkserver.ensure_running()


class WorkerProcess:
    """One worker process, for one event loop and one object at a time."""

    _told = False

    def __init__(self, transform: str, settings: Settings) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = (theirs, transform, settings.memory_limit)
            self._process = _context.Process(target=_run, args=arguments, daemon=True)
            with environment_for_decoders():  # starts the fork server again if it died
                self._process.start()
        ours.setblocking(False)
        self._channel = Channel(ours)
        # Not in the arguments: the decoder is a fork of the worker and must not see a secret.
        self._channel.send({}, settings.to_json())
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[tuple[Head, Any]] = self._loop.create_future()
        self._loop.add_reader(ours, self._on_message)
        self._loop.add_reader(self._process.sentinel, self._on_exit)
        self.alive = True
        self.streams = False
        self.pid = self._process.pid or 0

    async def ready(self) -> str:
        """Wait until the transformer is built; return its MIME type. Raises BrokenTransformError."""
        try:
            head, _ = await self._reply
        except WorkerDiedError as e:
            raise BrokenTransformError(str(e)) from e
        if "broken" in head:
            raise BrokenTransformError(head["broken"])
        if head["missing"] and not WorkerProcess._told:
            WorkerProcess._told = True
            missing = ", ".join(head["missing"])
            print(f"storeside: WARNING: this kernel lacks {missing}: decoders are less isolated", flush=True)
        self.streams = bool(head["streams"])
        return str(head["ready"])

    async def exchange(self, head: Mapping[str, Any], data: int | Data) -> tuple[Head, Any]:
        """Send a message, whose data may be an open pipe, and return the reply.

        Raises WorkerDiedError, ValueError for a message that is too large, and
        ConnectionError if the worker ended before it received the message.
        """
        self._reply = self._loop.create_future()
        if isinstance(data, int):
            self._channel.send(dict(head), descriptor=data)
        else:
            self._channel.send(dict(head), data)
        return await self._reply

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.alive:
            self.alive = False
            self._kill()

    def close(self) -> None:
        """Kill the process at the end of the event loop, which then does not wait for the process's exit."""
        self.kill()
        if self._channel.socket.fileno() >= 0:
            self._loop.remove_reader(self._process.sentinel)
            self._loop.remove_reader(self._channel.socket)
            self._channel.socket.close()

    def _kill(self) -> None:
        for kill in (os.killpg, os.kill):  # the worker may not have its own group yet
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def _on_message(self) -> None:
        try:
            message = self._channel.receive()
        except BlockingIOError:
            return
        except ConnectionResetError as e:  # the worker ended without reading the last message
            self._fail(e)
            message = None
        except (OSError, ValueError):
            message = None
        if message is None:
            self._loop.remove_reader(self._channel.socket)
            self.kill()
        elif not self._reply.done():
            self._reply.set_result(message)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        ending = _ending(self._process.exitcode)
        if self.alive:
            self._on_message()  # the worker may have replied before
        self.alive = False
        self._loop.remove_reader(self._channel.socket)
        self._channel.socket.close()
        with suppress(ProcessLookupError):  # its children
            os.killpg(self.pid, signal.SIGKILL)
        self._fail(WorkerDiedError(f"the worker process died: {ending}"))

    def _fail(self, error: Exception) -> None:
        if not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # avoids asyncio's warning if no caller waits


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    if code == -signal.SIGXCPU:
        return "it used more CPU time than OBJECT_TIMEOUT allows"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _run(end: socket.socket, transform: str, memory_limit: int | None) -> None:
    from .worker import run  # imported only in workers, because it loads AIStore's SDK

    run(end, transform, memory_limit)
