"""A decoder process: builds the transformer, isolates itself, then transforms one object at a time for its worker.

Media objects are untrusted and decoders have faults, so this process may crash, hang, exhaust memory or be taken over
at any time. It receives the bytes of one object or its open file, and returns a result: it has no network, no other
files and no secrets.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from storeside.transformers.isolation import decoders
from storeside.transformers.registry import Stream, build
from storeside.transformers.transformer import (
    Data,
    LeaveOut,
    ObjectError,
    Result,
    Source,
    StreamTransformer,
    Transformer,
    WithFacts,
    WithSidecar,
    source_of,
)

from . import stream_sender, wire
from .wire import Channel, Head

# The form in which the transformer receives an object's file: its path, its open file, or a copy of it in memory.
PATH, OPENED, COPIED = "path", "opened", "copied"
_REASON_LENGTH = 2000
# The key of a message with the entry that the job is given beside the next object.
GIVEN = "given"
# A decoder's last reply for an object.
Reply = tuple[Head, Data]
Answer = Callable[[Any, Head, bytes | memoryview, int | None], Reply]


def run(end: socket.socket, output: int, transform: str, memory_limit: int | None) -> None:
    """Serve the connection `end` until it is closed; the transformer's standard output goes to `output`."""
    _keep_only(end, output)
    decoders.limit(memory_limit)
    channel = Channel(end)
    try:
        transformer = build(transform)
        needs = frozenset(getattr(transformer, "needs", ()))
        if unknown := needs - decoders.NEEDS:
            raise ValueError(f"transform {transform!r} needs {sorted(unknown)}: write {sorted(decoders.NEEDS)}")
        missing = decoders.isolate(needs)
    except Exception as e:
        channel.send({"broken": described(e)})
        return
    streams = isinstance(transformer, Stream)
    ready = {"ready": transformer.mime_type, "takes": _takes(transformer, needs), "missing": missing}
    channel.send({**ready, "streams": streams})
    answer = _streamed(channel) if streams else _transformed
    given = ""
    while (message := channel.receive()) is not None:
        if GIVEN in message[0]:
            given = bytes(message[1]).decode()
            channel.send({GIVEN: len(message[1])})
            continue
        message[0]["arguments"] = given or message[0]["arguments"]
        reply = _answer(transformer, answer, memory_limit, *message)
        given = ""
        del message  # frees the object's content before the next one arrives
        try:
            channel.send(*reply)
        except (ValueError, OSError) as e:
            channel.send(*failed(f"the result cannot be returned: {e}", final=True))
        del reply


def described(error: BaseException) -> str:
    """Return the text of an unexpected error, with the line that raised it, for the transformer's author."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def failed(reason: str, final: bool) -> Reply:
    """Return the reply for an object that has no result."""
    return {"failed": reason[:_REASON_LENGTH], "final": final}, b""


def _takes(transformer: Transformer | StreamTransformer, needs: frozenset[str]) -> str:
    if decoders.FILES in needs:
        return PATH
    return OPENED if getattr(transformer, "opens_source", False) else COPIED


def _transformed(transformer: Any, head: Head, content: bytes | memoryview, descriptor: int | None) -> Reply:
    source: Source = head.get("path") or (bytes(content) if descriptor is None else source_of(descriptor))
    return _result(transformer.transform(source, head["name"], head["arguments"]))


def _streamed(channel: Channel) -> Answer:
    def answer(transformer: Any, head: Head, content: bytes | memoryview, descriptor: int | None) -> Reply:
        source = content if descriptor is None else descriptor
        return stream_sender.send(channel, transformer, source, head["name"], head["arguments"])

    return answer


def _answer(
    transformer: Transformer | StreamTransformer, answer: Answer, memory_limit: int | None, head: Head,
    content: bytes | memoryview,
) -> Reply:  # fmt: skip
    descriptor = head.pop(wire.FILE, None)
    try:
        return answer(transformer, head, content, descriptor)
    except LeaveOut as e:
        return {"left_out": str(e)[:_REASON_LENGTH], **_told(e.facts)}, b""
    except ObjectError as e:
        return failed(str(e), final=True)
    except MemoryError:
        if memory_limit is None:
            return failed("the node has not enough memory", final=False)
        mib = memory_limit >> 20
        return failed(f"the object needs more memory than WORKER_MEMORY_LIMIT allows ({mib} MiB)", final=True)
    except (Exception, SystemExit) as e:
        return failed(described(e), final=False)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _told(facts: Mapping[str, Any] | None) -> Head:
    return {"facts": json.dumps(facts, ensure_ascii=False, allow_nan=False)} if facts else {}


def _result(result: Data | WithSidecar | WithFacts | LeaveOut | Iterator[Result]) -> Reply:
    head: dict[str, Any] = {}
    if isinstance(result, LeaveOut):
        raise result
    if isinstance(result, WithFacts):
        head, data = _result(result.result)
        return {**head, **_told(result.facts)}, data
    if isinstance(result, Iterator):
        return _several(result)
    data = result.data if isinstance(result, WithSidecar) else result
    with memoryview(data) as view:
        if not view.nbytes:  # AIStore does not distinguish an empty result from a missing one
            raise ObjectError("the transform returned nothing")
    if isinstance(result, WithSidecar):
        head = {"sidecar": result.sidecar.decode("latin-1"), "sidecar_name": result.sidecar_name}
    return head, data


def _several(results: Iterator[Result]) -> Reply:
    """Return a table of all results, as JSON, and their contents after it; the head has the length of the table.

    Nothing is stored before the last one is made, so a transformer that then fails leaves no result.
    """
    table: list[tuple[str, int, Any]] = []
    contents: list[bytes] = []
    for result in results:
        if not isinstance(result, Result):
            raise TypeError(f"the transform yielded a {type(result).__name__}: yield Result(name, content)")
        contents.append(bytes(result.content))
        if not contents[-1]:
            raise ObjectError(f"the result {result.name!r} is empty")
        table.append((result.name, len(contents[-1]), dict(result.facts or {})))
    if not table:
        raise ObjectError("the transform yielded no result: raise LeaveOut to leave the object out")
    told = json.dumps(table, allow_nan=False).encode()
    return {"table": len(told)}, b"".join([told, *contents])


def _keep_only(end: socket.socket, output: int) -> None:
    """Close all descriptors except `end`, and send this process's output to `output`."""
    signal.set_wakeup_fd(-1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    with suppress(ValueError, AttributeError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
