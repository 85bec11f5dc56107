"""One object to transform, as AIStore names it over its three channels.

The same object is ``name`` in a WebSocket message, ``bucket/name`` in the path of a push and
``ais/@#/bucket/name``, its *uname*, in the path of a pull; `Job.object` is its plain name in all of them.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, unquote_to_bytes

from .failures import Failure

# <mountpath>/@<provider>/[<namespace>/]<bucket>/%ob/<object name>: AIStore's docs/on_disk_layout.md
_FILE = re.compile(r"/@([a-z]+)/(?:(@[^/#]*)?(#[^/]*)/)?([^@#/][^/]*)/%ob/(.+)", re.DOTALL)
# Names that are too long for a file are stored under a digest that begins with this (fs/fntl.go).
_SHORTENED = ".x"


class BadRequestError(ValueError):
    """The request is not one of AIStore's; `object` is the name in it, if any."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.object = name


@dataclass(frozen=True)
class Job:
    """One object to transform, and where its result goes.

    `file` is the file that holds the object; `uname` is its name in a request to the target; with neither, the
    content comes with the request. `arguments` are those of an inline request. `pipeline` says where to put the
    result: further ETLs and the destination target, separated by commas; when empty, the result is the answer.
    `latest` asks a remote backend for its current version.
    """

    object: str
    bucket: str = ""
    file: str = ""
    uname: str = ""
    arguments: str = ""
    pipeline: str = ""
    latest: bool = False

    @property
    def needs_content(self) -> bool:
        """Whether the object's content comes with the request."""
        return not self.file and not self.uname

    def failure(self, reason: str, final: bool) -> Failure:
        """Return this object's line for the failure journal."""
        return Failure(time.time(), self.bucket, self.object, reason, final)


def from_control_message(message: bytes) -> Job:
    """Read a WebSocket control message (ext/etl/websocket_comm.go). Raises BadRequestError."""
    try:
        control = json.loads(message.decode("utf-8", "surrogateescape"))
        name, fqn, arguments, pipeline = (control.get(key, "") for key in ("path", "fqn", "etl_args", "pipeline"))
        job = Job(str(name), arguments=str(arguments).strip(), pipeline=str(pipeline))
    except (ValueError, AttributeError) as e:
        raise BadRequestError(f"not a control message of AIStore: {message[:100]!r}") from e
    return _in_file(job, str(fqn)) if fqn else job


def from_push(raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Read the request line of a push (``PUT /bucket/name``). Raises BadRequestError."""
    # AIStore 5.0 does not escape the name here (ext/etl/communicator.go): a question mark in it looks like the start
    # of the query, and %41 does not mean the letter A. The file's own name is exact.
    rest, mark, query = raw_query.rpartition(b"?")
    bucket, _, name = _decoded(raw_path.lstrip(b"/") + (b"?" + rest if mark else b"")).partition("/")
    job = _with_query(Job(name or bucket, bucket if name else "", pipeline=pipeline), query)
    exact = _FILE.search(job.file)
    if exact is None or exact[5].startswith(_SHORTENED):
        return job
    return replace(job, object=exact[5])


def from_pull(raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Read the request line of a pull (``GET /<escaped uname>``). Raises BadRequestError."""
    uname = _decoded(raw_path.removeprefix(b"/"))
    parts = uname.split("/", 3)
    if len(parts) < 4 or not parts[3]:
        raise BadRequestError(f"{uname!r} does not name an object as provider/namespace/bucket/object", uname)
    return _with_query(Job(parts[3], parts[2], uname=uname, pipeline=pipeline), raw_query)


def _with_query(job: Job, raw_query: bytes) -> Job:
    query = parse_qs(raw_query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
    fqn = query.get("etl_fqn", [""])[-1].strip()
    job = replace(
        job,
        arguments=query.get("etl_args", [""])[-1].strip(),
        latest=query.get("latest-ver", [""])[-1] == "true",
    )
    return _in_file(job, fqn) if fqn else job


def _in_file(job: Job, fqn: str) -> Job:
    """Add the escaped path of the object's file to the job; only paths of objects are accepted."""
    path = _decoded(fqn.encode("utf-8", "surrogateescape"))
    match = _FILE.search(path)
    if match is None or os.path.normpath(path) != path or not path.startswith("/") or "\0" in path:
        raise BadRequestError(f"{path!r} is not the file of an object of AIStore", job.object)
    provider, cluster, namespace, bucket, _ = match.groups()
    uname = f"{provider}/{cluster or '@'}{namespace or '#'}/{bucket}/{job.object}"
    return replace(job, file=path, bucket=bucket, uname=job.uname or uname)


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")
