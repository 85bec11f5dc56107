"""A worker process: passes one object at a time to its decoder, and delivers the result.

The worker has network access and the secrets, and decodes nothing. Its decoder is a separate process, which is forked
before the worker reads a secret. If the decoder dies, the worker ends with the same status, and the server starts
another worker.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from storeside.transformers.contract.job import Job
from storeside.transformers.contract.results import RESULTS_URL
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data, ObjectError

from .decoder import described, failed
from .decoder_process import DecoderProcess, DecoderRefusedError
from .direct_put import DirectPut
from .given import GivenEntries
from .http_client import DeliveryError, HttpClient
from .results import ResultsOfOne, several
from .sidecar import Sidecars
from .source import Sources
from .stream_worker import StreamWorker
from .wire import FILE, Channel, Head

# The scheme of the URL for results in a trial on files, where a transformer may yield several results or return one.
_FOLDER = "file"


def run(end: socket.socket, transform: str, memory_limit: int | None) -> None:
    """Serve the connection `end` until it is closed; the first message contains the settings."""
    _prepare()
    decoder = DecoderProcess(transform, memory_limit)
    threading.Thread(target=_end_with_server, args=(end,), daemon=True).start()
    channel = Channel(end)
    try:
        settings = _settings(channel)
        decoder.wait()
        worker = StreamWorker(decoder, settings, channel) if decoder.streams else Worker(decoder, settings)
    except Exception as e:
        channel.send({"broken": str(e) if isinstance(e, DecoderRefusedError) else described(e)})
        raise SystemExit(1) from e
    channel.send({"ready": decoder.mime_type, "missing": decoder.missing, "streams": decoder.streams})
    messages = decoder.watched_with(end)
    while decoder.lives_until(messages) and (message := channel.receive()) is not None:
        decoder.pass_on(*_reply(worker, *message), channel)
        del message  # frees the object's content before the next one arrives


def _reply(worker: Worker | StreamWorker, head: Head, content: Any) -> tuple[Head, Data]:
    pipe = head.pop(FILE, None)
    try:
        return worker.work(Job(**head), content if pipe is None else pipe)
    except ObjectError as e:
        return failed(str(e), final=True)
    except DeliveryError as e:
        return failed(str(e), e.final)
    except Exception as e:
        return failed(described(e), final=False)
    finally:
        if pipe is not None:
            os.close(pipe)


class Worker:
    """Passes objects to the decoder and delivers the results."""

    def __init__(self, decoder: DecoderProcess, settings: Settings) -> None:
        client = HttpClient(settings)
        self._sources = Sources(settings, client, decoder.takes)
        self._sidecars = Sidecars(settings.sidecar_url, client, settings.token)
        self._beside = Sidecars(settings.results_url, client, settings.token, RESULTS_URL)
        self._given = GivenEntries(settings, client)
        self._direct_put = DirectPut(client, settings)
        self._decoder = decoder
        self._seconds = settings.object_timeout

    def work(self, job: Job, content: bytes | memoryview) -> tuple[Head, Data]:
        """Transform one object; return the reply's head, and the result unless it was delivered by direct put.

        Raises ObjectError and DeliveryError.
        """
        if self._given.url:
            self._decoder.give(self._given.entry(job.object))
        with self._sources.open(job, content) as source:
            head, data = self._decoder.transform(job, source, self._seconds)
        told, data = self._deliver(job, head, data)
        return ({**told, "facts": head["facts"]} if "facts" in head and "failed" not in told else told), data

    def _deliver(self, job: Job, head: Head, data: Data) -> tuple[Head, Data]:
        if "failed" in head:
            return failed(str(head["failed"]), bool(head["final"]))
        if "left_out" in head:
            return {"left_out": str(head["left_out"])}, b""
        if not len(data):
            raise ObjectError("the transform returned nothing")
        if "table" in head:
            data = self._store(job, several(job.object, int(head["table"]), data))
        elif self._beside.scheme not in ("", _FOLDER):
            raise ObjectError("the transform returned one result: with several_results, it yields each Result")
        if job.is_member:
            return {"content": len(data), **({"sidecar": head["sidecar"]} if "sidecar" in head else {})}, data
        if "sidecar" in head:
            content = str(head["sidecar"]).encode("latin-1")
            _require_json_object(content)
            self._sidecars.put(_sidecar_name(job, str(head["sidecar_name"])), content)
        if not job.pipeline:
            return {"content": len(data)}, data
        delivered = self._direct_put.deliver(job, data)
        if isinstance(delivered, int):
            return {"delivered": delivered}, b""
        return {"content": len(delivered)}, delivered

    def _store(self, job: Job, results: ResultsOfOne) -> bytes:
        """Store the results of an object, and return the list of them, which is the object's own result.

        The list of what follows is stored before the first result, except in a folder of a local trial.
        """
        if job.is_member:
            raise ObjectError("the transform yielded several results, and a member of a shard has one")
        if not self._beside.scheme:
            raise ObjectError(
                "the transform yielded several results: only the last ETL of a transform of a bucket with"
                " several_results may do so"
            )
        if self._beside.scheme != _FOLDER:
            self._beside.put(results.list, results.lines())
        return results.lines([self._beside.put(name, content) for name, content in results.contents])


def _sidecar_name(job: Job, name: str) -> str:
    """Return the sidecar's name; a decoder may choose only the end of its own object's name."""
    name = name or f"{job.object}.json"
    folder, _, last = job.object.rpartition("/")
    stem = os.path.join(folder, last.rpartition(".")[0] or last)
    end = name.removeprefix(stem)
    # The stem alone would also begin the names of other objects: "a" those of "ab.flac".
    if not name.startswith(stem) or end[:1] not in ("", ".") or "/" in end or "\0" in name:
        raise ObjectError(f"the sidecar {name!r} is not named after the object")
    return name


def _require_json_object(sidecar: bytes) -> None:
    """Raise ObjectError unless a sidecar is one JSON object: a second one would count as facts of another object."""
    try:
        if isinstance(json.loads(sidecar), dict):
            return
        reason = "it is a list or a value"
    except (ValueError, RecursionError) as e:
        reason = str(e)
    raise ObjectError(f"the sidecar is not one JSON object: {reason}")


def _settings(channel: Channel) -> Settings:
    message = channel.receive()
    if message is None:
        raise SystemExit(0)
    return Settings.from_json(json.loads(bytes(message[1])))


def _prepare() -> None:
    os.setpgid(0, 0)  # a kill of the group also ends the decoder and its child processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # if memory runs out, the kernel should kill this process and not AIStore
        Path("/proc/self/oom_score_adj").write_text("1000")
    _kernel().prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


def _kernel() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _end_with_server(end: socket.socket) -> None:
    """Kill this process and its children when the server ends; a busy worker would not notice the end."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    poll.poll()
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)
