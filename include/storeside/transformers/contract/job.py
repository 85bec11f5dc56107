"""One object to transform, as AIStore identifies it over its three channels.

The same object is ``name`` in a WebSocket message, ``bucket/name`` in the path of a push, and
``ais/@#/bucket/name``, its *uname*, in the path of a pull. `Job.object` is always its plain name.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, unquote_to_bytes

from storeside.transformers.transformer import utf8

from .failures import Facts, Failure, LeftOut

# <mountpath>/@<provider>/[<namespace>/]<bucket>/%ob/<object name>: AIStore's docs/on_disk_layout.md
_FILE = re.compile(r"/@([a-z]+)/(?:(@[^/#]*)?(#[^/]*)/)?([^@#/][^/]*)/%ob/(.+)", re.DOTALL)
_MOST_FIELDS = 100
# Bytes of a control message. The limit leaves room to report names and arguments that are too long for a worker.
_LONGEST_MESSAGE = 1 << 20
# AIStore stores a name that is too long for a file under a digest with this prefix (fs/fntl.go).
_SHORTENED = ".x"


class BadRequestError(ValueError):
    """The request is not a valid request of AIStore; `object` is the name in it, if any."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.object = name


@dataclass(frozen=True)
class Job:
    """One object to transform, and the destination of its result.

    `file` is the path of the object's file, and `uname` its name in a request to the target; if both are empty, the
    content comes with the request. `arguments` are those of an inline request. `pipeline` lists the destinations of
    the result, separated by commas: further ETLs and the destination target. If it is empty, the result is the
    answer. With `latest`, a remote backend must return its current version. The result of a member of a shard
    (`is_member`), whose name follows that of the shard, is returned with its sidecar.
    """

    object: str
    bucket: str = ""
    file: str = ""
    uname: str = ""
    arguments: str = ""
    pipeline: str = ""
    latest: bool = False
    is_member: bool = False

    @property
    def needs_content(self) -> bool:
        """Whether the object's content comes with the request."""
        return not self.file and not self.uname

    def failure(self, reason: str, final: bool) -> Failure:
        """Return this object's entry for the failure journal."""
        return Failure(time.time(), self.bucket, self.object, reason, final)

    def left_out(self, reason: str, facts: str = "") -> LeftOut:
        """Return this object's entry for the failure journal if the transformer left it out."""
        return LeftOut(time.time(), self.bucket, self.object, reason, facts=facts)

    def measured(self, facts: str) -> Facts:
        """Return the entry with this object's facts for the failure journal."""
        return Facts(time.time(), self.bucket, self.object, facts)


def from_control_message(message: bytes) -> Job:
    """Parse a WebSocket control message (ext/etl/websocket_comm.go). Raises BadRequestError."""
    fields = _fields(message)
    name, fqn, arguments, pipeline = (fields.get(key, "") for key in ("path", "fqn", "etl_args", "pipeline"))
    job = _checked(Job(name, arguments=arguments.strip(), pipeline=pipeline), fqn)
    return _in_file(job, fqn) if fqn else job


def _fields(message: bytes) -> dict[str, str]:
    try:
        if len(message) > _LONGEST_MESSAGE:
            raise ValueError
        fields = json.loads(message.decode("utf-8", "surrogateescape"))
        if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
            raise ValueError
    except (ValueError, RecursionError) as e:  # deeply nested JSON
        raise BadRequestError(f"not a control message of AIStore: {message[:100]!r}") from e
    return fields


def _checked(job: Job, fqn: str = "") -> Job:
    """Return the job if its texts can be encoded to bytes. Raises BadRequestError."""
    for text in (job.object, job.arguments, job.pipeline, fqn):
        try:
            os.fsencode(text)
        except UnicodeEncodeError as e:
            raise BadRequestError(f"{text[:100]!r} is not Unicode", utf8(job.object)) from e
    if "\0" in job.object:
        raise BadRequestError(f"{job.object[:100]!r} is not a valid name in AIStore", job.object)
    return job


def from_push(raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Parse the request line of a push (``PUT /bucket/name``). Raises BadRequestError."""
    # AIStore 5.0 does not escape the name here (ext/etl/communicator.go): a question mark in a name looks like the
    # start of the query, and %41 does not mean the letter A. The path of the object's file contains the exact name.
    rest, mark, query = raw_query.rpartition(b"?")
    bucket, _, name = _decoded(raw_path.lstrip(b"/") + (b"?" + rest if mark else b"")).partition("/")
    job = _with_query(_checked(Job(name or bucket, bucket if name else "", pipeline=pipeline)), query)
    exact = _FILE.search(job.file)
    if exact is None or exact[5].startswith(_SHORTENED):
        return job
    return _checked(replace(job, object=exact[5]))


def from_pull(raw_path: bytes, raw_query: bytes, pipeline: str) -> Job:
    """Parse the request line of a pull (``GET /<escaped uname>``). Raises BadRequestError."""
    uname = _decoded(raw_path.removeprefix(b"/"))
    parts = uname.split("/", 3)
    if len(parts) < 4 or not parts[3]:
        raise BadRequestError(f"{uname!r} does not have the form provider/namespace/bucket/object", uname)
    return _with_query(_checked(Job(parts[3], parts[2], uname=uname, pipeline=pipeline)), raw_query)


def _with_query(job: Job, raw_query: bytes) -> Job:
    try:
        query = parse_qs(raw_query.decode("latin-1"), True, errors="surrogateescape", max_num_fields=_MOST_FIELDS)
    except ValueError as e:
        raise BadRequestError(f"the query has more than {_MOST_FIELDS} fields", job.object) from e
    fqn = query.get("etl_fqn", [""])[-1].strip()
    job = replace(
        job,
        arguments=query.get("etl_args", [""])[-1].strip(),
        latest=query.get("latest-ver", [""])[-1] == "true",
    )
    return _in_file(job, fqn) if fqn else job


def _in_file(job: Job, fqn: str) -> Job:
    """Add the escaped path of the object's file to the job. Raises BadRequestError for other paths."""
    path = _decoded(fqn.encode("utf-8", "surrogateescape"))
    match = _FILE.search(path)
    if match is None or os.path.normpath(path) != path or not path.startswith("/") or "\0" in path:
        raise BadRequestError(f"{path!r} is not the file of an AIStore object", job.object)
    provider, cluster, namespace, bucket, _ = match.groups()
    uname = f"{provider}/{cluster or '@'}{namespace or '#'}/{bucket}/{job.object}"
    return replace(job, file=path, bucket=bucket, uname=job.uname or uname)


def place_of(path: str) -> str:
    """Return the part of an object file's path that is the same below each mountpath; empty for other files."""
    match = _FILE.search(path)
    return path[match.start() :] if match else ""


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")
