"""Shards that a server makes of objects, with a double of AIStore whose answers can lack objects."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from storeside.transformers.contract.job import Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.settings import Settings
from storeside.transformers.shards import gathering
from storeside.transformers.shards.gathering import Gathered, Gathering, planned
from storeside.transformers.workers.http_client import DeliveryError
from storeside.transformers.workers.pool import Delivered, Streamed
from tests.shards import files, tar

OBJECTS = {f"{n}.txt": str(n).encode() * n for n in range(6)}


class AIStore(ThreadingHTTPServer):
    """Answers requests for one object and for many; `batch` makes the archive of a request for many."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = dict(OBJECTS)
        self.refusal = 404
        self.batch: Callable[[list[str]], bytes | None] = lambda names: tar((n, self.objects[n]) for n in names)
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.queries: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/objects/b/?provider=ais"


class _Handler(BaseHTTPRequestHandler):
    server: AIStore

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.tokens.add(self.headers["Authorization"])
        self.server.queries.add(parts.query)
        if parts.path == "/v1/ml/moss/b":
            self.server.asked.append("batch")
            content = self.server.batch([entry["objname"] for entry in json.loads(body)["in"]])
            status = 500
        else:
            name = unquote(parts.path.removeprefix("/v1/objects/b/"))
            self.server.asked.append(name)
            content, status = self.server.objects.get(name), self.server.refusal
        self.send_response(status if content is None else 200)
        content = b"not there" if content is None else content
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def aistore() -> Iterator[AIStore]:
    with AIStore() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def make(aistore: AIStore, plan: bytes | None = None, url: str = "", cancelled: bool = False, **settings: Any) -> Any:
    """Make the shard of all objects, and return its files."""
    plan = json.dumps([(n, len(c), "v") for n, c in OBJECTS.items()]).encode() if plan is None else plan
    wanted: Any = asyncio.Future(loop=asyncio.new_event_loop())
    if cancelled:
        wanted.cancel()
    try:
        made = Gathered(
            Job("s.tar", "plans"),
            Gathering(url or aistore.url),
            Settings(token="t", retries=0, **settings),
            wanted,
            Journal(),
        )
        outcome = made.transform(plan)
        assert isinstance(outcome, Streamed)
        content = b"".join(outcome.pieces)
    finally:
        wanted.get_loop().close()
    assert made.report().kept == len(OBJECTS)
    return files(content)


def test_one_request_returns_many_objects(aistore: AIStore) -> None:
    assert make(aistore) == list(OBJECTS.items())
    assert (aistore.asked, aistore.tokens) == (["batch"], {"Bearer t"})


def test_objects_in_another_order_are_put_in_order(aistore: AIStore) -> None:
    aistore.batch = lambda names: tar((n, OBJECTS[n]) for n in reversed(names))
    assert make(aistore) == list(OBJECTS.items())


@pytest.mark.parametrize(
    ("answer", "alone"),
    [
        (tar([("__404__/0.txt", b""), *[(n, c) for n, c in OBJECTS.items() if n != "0.txt"]]), ["0.txt"]),
        (tar([(n, b"no" if n == "3.txt" else c) for n, c in OBJECTS.items()]), ["3.txt"]),
        (tar(list(OBJECTS.items())[:4])[: 8 * 512], ["4.txt", "5.txt"]),
        (b"no archive", list(OBJECTS)),
    ],
    ids=["missing", "another size", "cut off", "no archive"],
)
def test_what_an_answer_lacks_is_requested_alone(aistore: AIStore, answer: bytes, alone: list[str]) -> None:
    aistore.batch = lambda _: answer
    assert make(aistore) == list(OBJECTS.items())
    assert aistore.asked == ["batch", *alone]


def test_a_failed_request_for_many_is_not_repeated(aistore: AIStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_BATCH_OBJECTS", 2)
    assert make(aistore) == list(OBJECTS.items())
    assert aistore.asked == ["batch"] * 3
    aistore.asked, aistore.batch = [], lambda _: None
    assert make(aistore) == list(OBJECTS.items())
    assert aistore.asked == ["batch", *OBJECTS]


def test_objects_of_remote_buckets_are_requested_alone_in_their_current_version(aistore: AIStore) -> None:
    assert make(aistore, url=aistore.url.replace("=ais", "=aws")) == list(OBJECTS.items())
    assert aistore.asked == list(OBJECTS)
    assert aistore.queries == {"provider=aws&latest-ver=true"}
    assert not Gathering(f"{aistore.url}&namespace=%40remote").batch_url
    assert Gathering(f"{aistore.url}&namespace=%23mine").batch_url.endswith(
        "/v1/ml/moss/b?provider=ais&namespace=%23mine"
    )


@pytest.mark.parametrize(
    ("changed", "reason"), [({}, "4.txt: HTTP 404: not there"), ({"4.txt": b"x"}, "4.txt: it has 1 bytes, and had 4")]
)
def test_a_missing_or_changed_object_is_the_reason(aistore: AIStore, changed: dict[str, bytes], reason: str) -> None:
    aistore.objects.pop("4.txt")
    aistore.objects.update(changed)
    aistore.batch = lambda names: tar((n, aistore.objects[n]) for n in names if n in aistore.objects)
    with pytest.raises(DeliveryError, match=reason) as error:
        make(aistore)
    assert error.value.final


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_missing_token_and_is_not_the_objects_fault(aistore: AIStore, status: int) -> None:
    aistore.objects.clear()
    aistore.batch, aistore.refusal = lambda _: None, status
    with pytest.raises(DeliveryError, match=f"HTTP {status}: not there: .* a token in AIS_AUTHN_TOKEN") as error:
        make(aistore)
    assert not error.value.final


def test_limits_and_an_end_of_the_request(aistore: AIStore) -> None:
    aistore.batch = lambda _: None
    with pytest.raises(DeliveryError, match=r"5\.txt: it has more than 4 bytes \(MAX_BODY\)"):
        make(aistore, plan=b'[["5.txt", 5, ""]]', most_body=4)
    with pytest.raises(DeliveryError, match="no longer waits"):
        make(aistore, cancelled=True)


def test_a_large_shard_needs_little_memory(aistore: AIStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of objects go through this process, also from its server; the pieces of the shard are dropped."""
    monkeypatch.setattr(gathering, "_BATCH_BYTES", 4 << 20)
    content = os.urandom(1_000_000)
    aistore.batch = lambda names: tar((n, content) for n in names)
    plan = json.dumps([(f"{n}.bin", len(content), "") for n in range(100)]).encode()
    sent = 0

    def deliver(_: Any, __: Job, pieces: Any) -> int:
        nonlocal sent
        for piece in pieces:
            sent += len(piece)
        return 0

    monkeypatch.setattr("storeside.transformers.shards.pieces.DirectPut.deliver", deliver)
    Path("/proc/self/clear_refs").write_text("5")
    before = psutil.Process().memory_info().rss
    job = Job("s.tar", "plans", pipeline="http://target/put")
    loop = asyncio.new_event_loop()
    outcome = Gathered(job, Gathering(aistore.url), Settings(retries=0), loop.create_future(), Journal()).transform(
        plan
    )
    loop.close()
    peak = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    grown = (int(peak.split()[1]) << 10) - before
    assert outcome == Delivered(sent)
    assert sent > 100_000_000
    assert aistore.asked == ["batch"] * 25
    assert grown < 60 << 20, grown


@pytest.mark.parametrize(
    "plan", [b"", b"{}x", b"3", b"[3]", b'[["a"]]', b'[["a", "b"]]', b'[["a", Infinity]]', b"\xff"]
)
def test_other_objects_are_no_plans(plan: bytes) -> None:
    with pytest.raises(DeliveryError, match="not the plan of a shard"):
        planned(plan)


@pytest.mark.parametrize("url", ["ftp://proxy/v1/objects/b/", "http://proxy/v1/buckets/b/", "b"])
def test_the_url_of_the_source(url: str) -> None:
    assert Gathering.from_environment({}) is None
    with pytest.raises(ValueError, match="SHARD_SOURCE_URL="):
        Gathering.from_environment({"SHARD_SOURCE_URL": url})
