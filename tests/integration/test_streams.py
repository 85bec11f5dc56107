"""Streams on a real cluster: every channel, chains, ends within a result, and the objects that are stored."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from aistore.sdk.etl import ETLConfig

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreError
from storeside.aistore.spec import EtlSpec, transformer_command
from storeside.ledger.objects import Ledger
from storeside.transform.bucket_job import BucketJob
from storeside.transform.single import get_object, transform_object
from storeside.transform.state import Options, Summary
from tests.streams import MIB, generated, sha256
from tests.support import IMAGE, INIT_SECONDS, put, read, sizes, unique, until

pytestmark = pytest.mark.usefixtures("no_etl_is_left")
Drive = Callable[[BucketJob], Summary]
TOLD = "tests.streams:Told"
PARTS = [os.urandom(3 * MIB), os.urandom(3 * MIB), b"the end"]
# Two targets store results: about a half of these objects is sent by the target that also stores the result.
GENERATED = [f"{n}/generate-9" for n in range(6)]
FAILING = {
    "bad-3": "no good object",
    "late/leave-1": "it was left out (it wishes so) after a part of its result: raise LeaveOut before the first",
    "nothing": "the transform returned nothing",
}
PASSING = {"error-3": "KeyError: 'not there'", "die-3": "the worker process died: signal 9 (SIGKILL)"}


def spec(communication: str = "hpush", **options: Any) -> EtlSpec:
    options = {"tuning": {"NUM_WORKERS": "1"}, "init_timeout": INIT_SECONDS, **options}
    return EtlSpec("test-stream", IMAGE, transformer_command(TOLD), communication=communication, **options)


def job(aistore: Any, clickhouse: Any, source: Bucket, spec: EtlSpec, **options: Any) -> BucketJob:
    to = Bucket("ais", unique("out"))
    return BucketJob(aistore, Ledger(clickhouse), source, to, run_id="run", spec=spec, options=Options(**options))


@pytest.fixture
def source(aistore: Any) -> Bucket:
    """A bucket of objects whose streams succeed, fail or are left out, and an object in chunks."""
    bucket = Bucket("ais", unique("in"))
    names = [*GENERATED, *FAILING, *PASSING, "a/upper", "early/leave-0"]
    put(aistore, bucket, {name: b"some content" for name in names})
    upload = bucket.handle(aistore).object("chunks/digest").multipart_upload().create()
    for number, part in enumerate(PARTS, 1):
        upload.add_part(number).put_content(part)
    upload.complete()
    return bucket


@contextmanager
def no_half_results(aistore: Any, job: BucketJob) -> Iterator[None]:
    yield
    found = {name: size for name, size in sizes(aistore, job.destination).items() if size}
    assert found.keys() == {*GENERATED, "a/upper", "chunks/digest"}
    assert {found[name] for name in GENERATED} == {9 * MIB}


@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
@pytest.mark.parametrize("file_access", [True, False])
def test_an_object_is_complete_or_listed_with_its_reason(
    aistore: Any, clickhouse: Any, source: Bucket, drive: Drive, communication: str, file_access: bool
) -> None:
    run = job(aistore, clickhouse, source, spec(communication, file_access=file_access))
    with no_half_results(aistore, run):
        found = drive(run)
    assert (found.done, found.failed, found.left_out) == (8, 5, 1), found
    reasons = dict(found.examples)
    assert reasons.keys() == FAILING.keys() | PASSING.keys()
    for name, reason in {**FAILING, **PASSING}.items():
        assert reasons[name].startswith(reason), reasons
    for name in GENERATED:
        assert hashlib.sha256(read(aistore, run.destination, name)).hexdigest() == sha256(9)
    whole = b"".join(PARTS)
    told = f"{len(whole)} {hashlib.sha256(whole).hexdigest()}"
    assert read(aistore, run.destination, "chunks/digest").decode() == told


def test_a_chain_of_streams(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source, content = Bucket("ais", unique("in")), os.urandom(3 * MIB)
    put(aistore, source, {f"{n}/digest": content for n in range(6)} | {"a/bad-3": b"content"})
    first = EtlSpec(
        "test-swap", IMAGE, transformer_command("tests.streams:transform_stream"), tuning={"NUM_WORKERS": "1"},
        init_timeout=INIT_SECONDS,
    )  # fmt: skip
    for communication in ("hpush", "ws"):
        run = job(aistore, clickhouse, source, (first >> spec()).over(communication))
        found = drive(run)
        assert (found.done, found.failed) == (6, 1), found
        assert found.examples[0][0] == "a/bad-3"
        assert "no good object" in found.examples[0][1]
        told = f"{len(content)} {hashlib.sha256(content.swapcase()).hexdigest()}"
        assert {read(aistore, run.destination, f"{n}/digest").decode() for n in range(6)} == {told}


def test_a_result_too_large_for_a_message_goes_over_hpush(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source = Bucket("ais", unique("in"))
    put(aistore, source, {f"{n}/generate-65": b"content" for n in range(4)})
    run = job(aistore, clickhouse, source, spec("ws"))
    found = drive(run)
    assert (found.done, found.failed) == (4, 0), found
    assert set(sizes(aistore, run.destination).values()) == {65 * MIB}


def test_one_object(aistore: Any, source: Bucket, tmp_path: Path) -> None:
    to, kept = Bucket("ais", unique("out")), {"keeper": "tests/run"}
    assert transform_object(aistore, source, GENERATED[0], to, "made", spec(), **kept) == 9 * MIB
    path = tmp_path / "got"
    assert get_object(aistore, source, GENERATED[0], path, spec(), **kept) == 9 * MIB
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256(9)
    assert get_object(aistore, source, "chunks/digest", path, spec() >> replace(spec(), label="second"), **kept) > 0
    with pytest.raises(AIStoreError, match="no good object"):
        transform_object(aistore, source, "bad-3", to, "bad", spec(), **kept)
    for name in ("bad-3", "error-3", "die-3"):
        with pytest.raises(AIStoreError):
            get_object(aistore, source, name, tmp_path / name, spec())
    assert set(sizes(aistore, to)) == {"made"}
    assert [p.name for p in tmp_path.iterdir()] == ["got"]
    # docs/differences.md: AIStore ends the answer as if it were complete
    (name,) = spec().names
    answered = bytes(source.handle(aistore).object("bad-3").get_reader(etl=ETLConfig(name)).read_all())
    assert answered[: 3 * MIB] == b"".join(map(generated, range(3)))
    assert b"unexpected EOF" in answered[3 * MIB :]
    etls.release(aistore, (spec() >> replace(spec(), label="second")).over("hpush").names)


def test_a_server_that_is_killed_leaves_no_half_result(aistore: Any, clickhouse: Any, drive: Drive) -> None:
    source = Bucket("ais", unique("in"))
    put(aistore, source, {f"{n}/slow-50": b"content" for n in range(8)})
    run = job(aistore, clickhouse, source, spec())
    run.destination.handle(aistore).create()
    found: list[dict[str, int]] = []

    def kill() -> None:
        until(lambda: sizes(aistore, run.destination), 60, "a first result")
        server = servers(TOLD)[0]  # the next objects, of which each takes 2.5 s, have begun
        server.kill()
        until(lambda: server.pid not in {p.pid for p in servers(TOLD)}, 60, "end of the server")
        found.append(dict(sizes(aistore, run.destination)))

    killing = threading.Thread(target=kill)
    killing.start()
    done = drive(run)
    killing.join()
    assert found
    assert set(found[0].values()) == {50 * MIB}
    assert (done.done, done.failed) == (8, 0), done
    assert sizes(aistore, run.destination) == {f"{n}/slow-50": 50 * MIB for n in range(8)}


def servers(transform: str) -> list[psutil.Process]:
    """Return the servers of a transformer; the pod runner starts them as processes."""
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if transform in (p.info["cmdline"] or ()) and "storeside.transformers.serve" in p.info["cmdline"]
    ]
