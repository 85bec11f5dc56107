"""The parts of the ETL server that need no process."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from storeside.transformers import settings
from storeside.transformers.contract import failures
from storeside.transformers.contract.failures import Failure
from storeside.transformers.contract.job import BadRequestError, Job, from_control_message, from_pull, from_push
from storeside.transformers.contract.journal import Journal
from storeside.transformers.settings import Settings
from storeside.transformers.workers.http_client import reason
from storeside.transformers.workers.http_connection import Incoming
from storeside.transformers.workers.wire import LARGEST_KEPT, Channel


def test_settings_have_defaults() -> None:
    found = Settings.from_environment({})
    assert found.workers == settings.usable_cpus() >= 1
    assert (found.object_timeout, found.memory_limit, found.file_access) == (300, 4 << 30, False)
    assert found.largest_body == 2 << 30


def test_settings_come_from_the_environment() -> None:
    found = Settings.from_environment(
        {
            "NUM_WORKERS": "3",
            "OBJECT_TIMEOUT": "1.5",
            "WORKER_MEMORY_LIMIT": "512Mi",
            "ETL_DIRECT_FQN": "true",
            "AIS_TARGET_URL": "http://target/secret",
            "AIS_AUTHN_TOKEN": "token",
            "SIDECAR_URL": "http://proxy/",
            "AIS_DIRECT_PUT_RETRIES": "0",
            "MAX_BODY": "1Gi",
            "AIS_MOUNTS": "/mnt/a:/mnt/b",
            "AIS_NODES": "a:1,b:2",
            "AIS_ETL_PROOF": "true",
            "AIS_SOURCES": "10.0.0.0/8",
            "RESULTS_URL": "http://proxy/out/",
        }
    )
    given = Settings(3, 1.5, 512 << 20, True, "http://target/secret", "token", "http://proxy/", 0, 1 << 30)
    assert found == dataclasses.replace(
        given,
        roots=("/mnt/a", "/mnt/b"),
        nodes=frozenset(("a:1", "b:2")),
        proof=True,
        sources=("10.0.0.0/8",),
        results_url="http://proxy/out/",
    )
    assert Settings.from_json(json.loads(found.to_json())) == found
    assert found.largest_body == 512 << 20
    assert "secret" not in repr(found)
    assert "token" not in repr(found).replace("token=", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NUM_WORKERS", "0"), ("NUM_WORKERS", "two"), ("OBJECT_TIMEOUT", "0"), ("OBJECT_TIMEOUT", "inf"),
        ("OBJECT_TIMEOUT", "nan"), ("WORKER_MEMORY_LIMIT", "1.5Gi"), ("WORKER_MEMORY_LIMIT", "0"),
        ("AIS_DIRECT_PUT_RETRIES", "-1"), ("MAX_BODY", "much"), ("AIS_SOURCES", "somewhere"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.from_environment({name: text})


@pytest.mark.parametrize(("quota", "cpus"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), (None, 8)])
def test_the_quota_of_a_container_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str | None, cpus: int
) -> None:
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(settings, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert settings.usable_cpus() == cpus


FILE = "/mnt/disk 1/@ais/in/%ob/folder/name"


def test_jobs_of_the_three_channels() -> None:
    fqn = quote(FILE, safe="")
    message = f'{{"pipeline":"p","etl_args":" a ","fqn":"{fqn}","path":"folder/name"}}'
    uname = "ais/@#/in/folder/name"
    job = Job("folder/name", "in", FILE, uname, "a", "p")
    assert from_control_message(message.encode()) == job
    query = f"etl_args=+a+&etl_fqn={quote(fqn, safe='')}".encode()
    assert from_push(b"/in/folder/name", query, "p") == job
    assert from_pull(b"/ais%2F@%23%2Fin%2Ffolder%2Fname", query, "p") == job


def test_jobs_without_a_file() -> None:
    assert from_control_message(b'{"path":"name"}') == Job("name")
    assert from_push(b"/in/folder/name", b"", "") == Job("folder/name", "in")
    assert from_push(b"/name", b"", "") == Job("name")
    pulled = from_pull(b"/aws%2F@%23%2Fin%2Fname", b"latest-ver=true", "")
    assert pulled == Job("name", "in", uname="aws/@#/in/name", latest=True)
    assert [job.needs_content for job in (Job("name"), pulled)] == [True, False]


@pytest.mark.parametrize(
    ("path", "bucket", "uname"),
    [
        ("/m/@aws/b/%ob/n", "b", "aws/@#/b/n"),
        ("/m/@ais/#space/b/%ob/n", "b", "ais/@#space/b/n"),
        ("/m/@ais/@cluster#space/b/%ob/n", "b", "ais/@cluster#space/b/n"),
        ("/m/@ais/b/%ob/x/@ais/c/%ob/n", "b", "ais/@#/b/n"),
    ],
)
def test_the_bucket_stands_in_the_path_of_the_file(path: str, bucket: str, uname: str) -> None:
    job = from_control_message(f'{{"path":"n","fqn":"{quote(path, safe="")}"}}'.encode())
    assert (job.bucket, job.file, job.uname) == (bucket, path, uname)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "@ais/b/%ob/n", "/m/@ais/b/%wk/n", "/m/@ais/b/%ob/", "/m/@ais/b/%ob/../n", "/m//@ais/b/%ob/n"],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(BadRequestError, match="not the file") as refused:
        from_control_message(f'{{"path":"n","fqn":"{quote(path, safe="")}"}}'.encode())
    assert refused.value.object == "n"


def test_the_journal_is_read_back(capfd: pytest.CaptureFixture[str]) -> None:
    listed = [
        Failure(1.5, "in", os.fsdecode(b"a\n\xff\xe2\x80\xa8"), "why\r\x85?", True),
        Failure(2.5, "", "b", "", False),
    ]
    journal = Journal()
    for failure in listed:
        journal.record(failure)
    log = "cut off" + capfd.readouterr().out
    # No table takes bytes that are not UTF-8.
    assert list(failures.parse(log)) == [dataclasses.replace(listed[0], object="a\n\\udcff\u2028"), listed[1]]


def test_a_reason_that_no_table_takes_is_escaped() -> None:
    (read,) = failures.parse(Failure(1.0, "in", "a", "bad: \ud800", True).line())
    assert read.reason == "bad: \\ud800"
    (shard,) = failures.parse_shards(failures.Shard(1.0, "in", "\udce9.tar", 1, 0, 0).line())
    assert shard.object == "\\udce9.tar"


def test_the_journal_ends_somewhere(capfd: pytest.CaptureFixture[str]) -> None:
    journal = Journal(most=2)
    before = time.time()
    for number in range(5):
        journal.record(Failure(0, "", str(number), "", False))
    log = capfd.readouterr().out
    assert [f.object for f in failures.parse(log)] == ["0", "1"]
    (unlisted,) = failures.parse_unlisted(log)
    assert unlisted.time > before, "a job that starts now may have failures that are not listed"


def test_the_journal_lists_failures_again_after_an_hour(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, clock = Journal(most=1), [1e9]
    monkeypatch.setattr("storeside.transformers.contract.journal.time", SimpleNamespace(time=lambda: clock[0]))
    for second in (0, 1, 1.5, 2.5, 3599, 3600, 3601):
        clock[0] = 1e9 + second
        journal.record(Failure(0, "", str(second), "", False))
    log = capfd.readouterr().out
    assert [f.object for f in failures.parse(log)] == ["0", "3600"]
    assert [mark.time - 1e9 for mark in failures.parse_unlisted(log)] == [2, 3.5, 3600, 3602]


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield Channel(one), Channel(other)


def test_a_channel_relays_the_memory_of_another(channels: tuple[Channel, Channel]) -> None:
    """Results go from the decoder to its worker and then to the server; the worker also sends other data."""
    decoder, from_decoder = channels
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        to_server, server = Channel(one), Channel(other)
        before = len(os.listdir("/proc/self/fd"))
        sizes = (10, 70_000, 70_001, 3_000_000, 65_600, LARGEST_KEPT + 1, 80_000, LARGEST_KEPT + 2, LARGEST_KEPT, 7)
        for size in (*sizes, *sizes):
            data = os.urandom(size)
            decoder.send({"size": size}, data)
            head, received = from_decoder.receive(copy=False) or ({}, b"")
            assert received == data
            to_server.relay(head, from_decoder, memoryview(received))
            assert server.receive() == ({"size": size}, data)
            if size % 2:
                to_server.send({}, data[::-1])
                assert server.receive() == ({}, data[::-1])
        del received
        assert len(os.listdir("/proc/self/fd")) <= before + 8


def test_memory_that_is_not_sealed_is_refused(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    descriptor = os.memfd_create("object", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 100_000)
    before = len(os.listdir("/proc/self/fd"))
    head = b"{}"
    socket.send_fds(one.socket, [struct.pack("!IQ", len(head), 100_000) + head], [descriptor])
    with pytest.raises(ValueError, match="not sealed"):
        other.receive()
    socket.send_fds(one.socket, [struct.pack("!IQ", len(head), 100_000) + head], [0])
    with pytest.raises(ValueError, match=r"not memory|not sealed"):
        other.receive()
    one.send({}, bytes(100_000))
    _, received = other.receive(copy=False) or ({}, memoryview(b""))
    assert memoryview(received).readonly
    for message in (struct.pack("!IQ", 1 << 30, 0), struct.pack("!IQ", 2, 0) + b"[]"):
        one.socket.send(message)
        with pytest.raises(ValueError, match=r"cut off|not an object"):
            other.receive()
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    os.close(descriptor)


def test_a_channel_carries_messages_of_any_size(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    before = len(os.listdir("/proc/self/fd"))
    for size in (0, 1, 65_000, 65_536, 3_000_000, 70_000, LARGEST_KEPT, LARGEST_KEPT + 1, 100_000, 5):
        data = os.urandom(size)
        one.send({"size": size}, data)
        head, received = other.receive() or ({}, b"")
        assert head == {"size": size}
        assert received == data
        other.send({"name": "\udcff"}, memoryview(data))
        assert one.receive() == ({"name": "\udcff"}, data)
    del received  # the largest was not copied
    assert len(os.listdir("/proc/self/fd")) <= before + 4, "one mapping in and out at each end"
    with pytest.raises(ValueError, match="too many"):
        one.send({"arguments": "x" * 70_000})
    one.socket.close()
    assert other.receive() is None


def test_the_reason_of_a_refusal_needs_only_the_beginning_of_the_answer() -> None:
    pieces = iter([b'{"message": "no space"', b"}" + b" " * 4096, b"never", b"read"])
    assert reason(Incoming(507, {}, pieces)) == "HTTP 507: no space"
    assert list(pieces) == [b"never", b"read"]
