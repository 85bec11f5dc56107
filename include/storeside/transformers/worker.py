"""A worker process: builds the transformer once, then transforms one object at a time and delivers the result.

Media are hostile and decoders have faults, so this process may crash, hang or exhaust memory at any time: nothing
else runs in it, and the server starts another one.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from .direct_put import DirectPut
from .http_client import DeliveryError, HttpClient
from .job import Job
from .registry import build
from .settings import Settings
from .sidecar import Sidecars
from .source import Sources
from .transformer import Data, ObjectError, Result, Transformer
from .wire import Channel, Head

_REASON_LENGTH = 2000


def run(end: socket.socket, transform: str, settings: Settings) -> None:
    """Serve the other end of a connection until it is closed."""
    _confine(settings)
    threading.Thread(target=_end_with_server, args=(end,), daemon=True).start()
    channel = Channel(end)
    try:
        worker = Worker(build(transform), settings)
    except Exception as e:
        channel.send({"broken": _described(e)})
        raise SystemExit(1) from e
    channel.send({"ready": worker.mime_type})
    while (message := channel.receive()) is not None:
        channel.send(*worker.work(Job(**message[0]), message[1]))
        del message  # an object's content is not kept until the next one arrives


class Worker:
    """Transforms objects and delivers the results."""

    def __init__(self, transformer: Transformer, settings: Settings) -> None:
        client = HttpClient(settings.retries, settings.token)
        self._transformer = transformer
        self._settings = settings
        self._sources = Sources(settings, client)
        self._sidecars = Sidecars(settings.sidecar_url, client)
        self._direct_put = DirectPut(client, settings.target_url)

    @property
    def mime_type(self) -> str:
        """The MIME type of results."""
        return self._transformer.mime_type

    def work(self, job: Job, content: bytes | memoryview) -> tuple[Head, Data]:
        """Transform one object; return the head of the reply, and the result unless it has been delivered."""
        try:
            with self._sources.open(job, content) as source:
                result = self._transformer.transform(source, job.object, job.arguments)
            return self._deliver(job, result)
        except ObjectError as e:
            return _failed(str(e), final=True)
        except DeliveryError as e:
            return _failed(str(e), e.final)
        except MemoryError:
            if self._settings.memory_limit is None:
                return _failed("there is not enough memory", final=False)
            mib = self._settings.memory_limit >> 20
            return _failed(f"more memory is needed than WORKER_MEMORY_LIMIT allows, {mib} MiB", final=True)
        except (Exception, SystemExit) as e:
            return _failed(_described(e), final=False)

    def _deliver(self, job: Job, result: Data | Result) -> tuple[Head, Data]:
        data = result.data if isinstance(result, Result) else result
        with memoryview(data) as view:
            size = view.nbytes
        if not size:  # AIStore cannot tell an empty result from a missing one
            raise ObjectError("the transform returned nothing")
        if isinstance(result, Result):
            self._sidecars.put(result.sidecar_name or f"{job.object}.json", result.sidecar)
        if not job.pipeline:
            return {"content": size}, data
        delivered = self._direct_put.deliver(job, data)
        if isinstance(delivered, int):
            return {"delivered": delivered}, b""
        return {"content": len(delivered)}, delivered


def _failed(reason: str, final: bool) -> tuple[Head, Data]:
    return {"failed": reason[:_REASON_LENGTH], "final": final}, b""


def _described(error: BaseException) -> str:
    """Name an unexpected error and the line that raised it, for the transformer's author."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def _confine(settings: Settings) -> None:
    os.setpgid(0, 0)  # so that processes that a transformer starts can be ended with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if settings.memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_limit, settings.memory_limit))
    with suppress(OSError):  # when the node runs out of memory, the kernel should kill this process and not AIStore
        Path("/proc/self/oom_score_adj").write_text("1000")
    _kernel().prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


def _kernel() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _end_with_server(end: socket.socket) -> None:
    """Kill this process and its children when the server is gone; a worker that transforms would not notice."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    poll.poll()
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)
