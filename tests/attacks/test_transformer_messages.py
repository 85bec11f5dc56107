"""Finding 8: no message ends a transformer; and a message of any size needs a bounded amount of memory.

The attacker can choose the names of objects and the arguments of inline requests, and here even whole messages.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from storeside.transformers.contract import job as jobs
from storeside.transformers.contract.failures import parse
from storeside.transformers.contract.job import BadRequestError, Job
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import utf8
from storeside.transformers.workers.wire import Channel
from tests.unit.test_transformer_server import CONTENT, Server, launch, mountpath, server, target

__all__ = ["launch", "mountpath", "server", "target"]

DEEP = 200_000
FIELDS = ("path", "fqn", "etl_args", "pipeline")
HOSTILE = [
    b'{"path":"\\ud800"}',
    b'{"path":"x","etl_args":"\\udfff"}',
    b'{"path":"x","pipeline":"http://127.0.0.1:1/\\ud800"}',
    b'{"path":"x","fqn":"%2Fm%2F@ais%2Fb%2F%25ob%2F\\ud800"}',
    b"[" * DEEP,
    b'{"path":' + b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"path":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"path":"' + b"x" * (2 << 20) + b'"}',
    b'{"path":1' + b"0" * 5000 + b"}",
    b'{"path":null}',
    b'{"path":{"x":1}}',
    b'{"path":"x\\u0000y"}',
    b'{"path":"x","fqn":"%00"}',
    b'{"path":"x","fqn":17}',
    b'{"path":NaN}',
    b'{"path":"x","pipeline":"http://[::1"}',
    b'{"path":"x","pipeline":"http://h:99999999/x"}',
    b'{"path":"x","pipeline":"http://h:port/x"}',
    b'{"path":"x","pipeline":"http://h/x\\r\\nHost: other"}',
    b'{"path":"x","pipeline":"http://127.0.0.1:1/\\u00fc\\u20ac"}',
    b'{"path":"x","pipeline":",,,"}',
    b"\xff" * 1000,
    b"",
    b"\0",
]


def require_harmless(found: Job) -> None:
    """Do with a job what the server, its journal and its channel to a worker do with each job."""
    for failure in parse(found.failure("a reason", final=True).line()):
        assert failure.object == utf8(found.object)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        try:
            Channel(one).send(vars(found))
        except ValueError:  # the object fails; its head is too long
            return
        received = Channel(other).receive()
        assert received is not None
        assert Job(**received[0]) == found
    for text in (found.object, found.uname, found.arguments, found.pipeline, found.file):
        os.fsencode(text)


def control_or_bad(message: bytes) -> None:
    try:
        require_harmless(jobs.from_control_message(message))
    except BadRequestError as e:
        Job(e.object).failure(str(e), final=True).line().encode()
        str(e).encode()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
texts = st.text(st.characters(codec=None)) | st.builds(
    "/m/@ais/b/%25ob/{}".format, st.text(st.characters(codec=None))
)


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_message_is_refused_or_harmless(message: bytes) -> None:
    control_or_bad(message)


@given(st.binary(max_size=200) | st.fixed_dictionaries({}, optional={f: texts | anything for f in FIELDS}).map(
    lambda fields: json.dumps(fields).encode()
) | st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, st.text())).map(
    lambda fields: json.dumps(fields, ensure_ascii=False).encode()
))  # fmt: skip
@hypothesis_settings(max_examples=1000)
def test_any_control_message_is_refused_or_harmless(message: bytes) -> None:
    control_or_bad(message)


@given(st.sampled_from([jobs.from_push, jobs.from_pull]), st.binary(), st.binary(), st.text())
@example(jobs.from_push, b"/in/" + b"%ED%A0%80", b"etl_args=%ED%A0%80", "")
@example(jobs.from_push, b"/in/x", b"&" * 10_000, "")
@example(jobs.from_pull, b"/" + b"a%2F" * 10_000, b"", "")
@example(jobs.from_push, b"/in/x%00y", b"", "")
@example(jobs.from_push, b"/in/x", b"etl_fqn=%252Fm%252F@ais%252Fb%252F%2525ob%252F%00", "")
@hypothesis_settings(max_examples=1000)
def test_any_request_line_is_refused_or_harmless(
    read: Callable[[bytes, bytes, str], Job], path: bytes, query: bytes, pipeline: str
) -> None:
    try:
        require_harmless(read(path, query, pipeline))
    except BadRequestError as e:
        Job(e.object).failure(str(e), final=True).line()


def test_the_pod_survives_all_of_them(server: Server) -> None:
    for message in [*HOSTILE, "text", '{"path":"\ud7ff"}']:
        with connect(server.url.replace("http", "ws") + "/ws", max_size=None, compression=None) as ws:
            ws.send(message)
            with suppress(ConnectionClosed):
                ws.send(CONTENT)
                assert ws.recv(timeout=20) in ("failed", CONTENT), message[:80]
        assert server.process.poll() is None, f"{message[:80]!r} ended the pod: {server.log.read_text()[-2000:]}"
    for path in ("/in/%ED%A0%80", "/in/echo?etl_args=%ED%A0%80", "/in/echo?" + "&" * 5000, "/in/%00"):
        assert requests.put(f"{server.url}{path}", CONTENT, timeout=20).status_code in (200, 422, 500)
    assert server.push("after/echo").content == CONTENT
    assert server.process.poll() is None


def test_bodies_have_a_limit_by_default(launch: Callable[..., Server]) -> None:
    assert Settings.from_environment({}).largest_body == 2 << 30
    assert Settings.from_environment({"MAX_BODY": "8Gi"}).largest_body == 4 << 30, "a worker's memory is a limit, too"
    server = launch("tests.unit.transforms_for_tests:Told", MAX_BODY="1Mi")
    assert server.push("fits/echo", bytes(1 << 20)).ok
    refused = server.push("large/echo", bytes((1 << 20) + 1))
    assert refused.status_code == 413
    assert "MAX_BODY" in refused.text
    with server.connect() as ws:
        ws.send(b'{"path":"large/echo"}')
        ws.send(bytes((1 << 20) + 1))
        assert ws.recv(timeout=20) == "failed"
    with server.connect() as ws:
        ws.send(b'{"path":"larger/echo"}')
        with suppress(ConnectionClosed):
            ws.send(bytes(3 << 20))
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=20)
    # The server closes without reading the rest, so the kernel's reset may overtake its close frame.
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert server.push("after/echo").content == CONTENT


def test_what_a_target_answers_has_a_limit(launch: Callable[..., Server], target: Any) -> None:
    server = launch("tests.unit.transforms_for_tests:Told", MAX_BODY="1Mi")
    path = quote("ais/@#/in/huge/echo", safe="@")
    target.stored[f"/v1/etl/_object/some-etl/its-secret/{path}"] = bytes((1 << 20) + 1)
    refused = requests.get(f"{server.url}/{path}", timeout=20)
    assert (refused.status_code, "MAX_BODY" in refused.text) == (422, True)


def test_a_large_file_is_not_copied(launch: Callable[..., Server], mountpath: Any) -> None:
    server = launch("tests.unit.transforms_for_tests:shout", MAX_BODY="1Mi")
    large: Path = mountpath.put("large/echo", bytes((1 << 20) + 1))
    query = {"etl_fqn": quote(str(large), safe="")}
    refused = requests.put(f"{server.url}/in/large/echo", params=query, timeout=20)
    assert (refused.status_code, "MAX_BODY" in refused.text) == (422, True)
